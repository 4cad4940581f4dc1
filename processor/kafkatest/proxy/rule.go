package proxy

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// Action is what a rule does with the frames that it strikes.
type Action int

// The actions. An action that cuts a connection closes both of its sides: by RST if [Rule.Reset] is set, else by FIN.
const (
	// DropRequest cuts the connection instead of delivering the request. The node does not execute the request.
	DropRequest Action = iota + 1
	// DropResponse delivers the request, waits for the node's response, and cuts the connection instead of forwarding
	// the response. The node has executed the request, but the client sees the same as with DropRequest.
	DropResponse
	// DelayRequest delivers the request after Delay, plus up to Jitter.
	DelayRequest
	// DelayResponse forwards the response after Delay, plus up to Jitter.
	DelayResponse
	// HoldRequest cuts the client's side only. It delivers the request to the node after Delay or when Release is
	// closed, whichever comes first, so that the request arrives after the client has reconnected. [Fault.Late]
	// returns the node's response.
	HoldRequest
	// DuplicateRequest delivers the request twice in a row. The client gets the first response.
	DuplicateRequest
	// Refuse does not deliver the request but responds with Error, like a broker that is loading or busy.
	Refuse
	// PatchResponse delivers the request and changes the response: it sets every error code to Error, or Patch edits
	// the response.
	PatchResponse
	// Blackhole stops the frames of Direction, and the end of the connection, until the rule is removed. Then it
	// delivers them, as after a network outage.
	Blackhole
	// Throttle limits the frames of Direction to BytesPerSecond. All matching connections share this limit.
	Throttle
)

var actionNames = map[Action]string{
	DropRequest: "drop-request", DropResponse: "drop-response", DelayRequest: "delay-request", DelayResponse: "delay-response",
	HoldRequest: "hold-request", DuplicateRequest: "duplicate-request", Refuse: "refuse", PatchResponse: "patch-response",
	Blackhole: "blackhole", Throttle: "throttle",
}

func (a Action) String() string {
	if name, ok := actionNames[a]; ok {
		return name
	}
	return fmt.Sprintf("action(%d)", int(a))
}

// Direction is the direction of frames on a connection, for [Blackhole] and [Throttle].
type Direction int

// The directions.
const (
	Both     Direction = iota
	ToBroker           // requests
	ToClient           // responses
)

// Match chooses requests, or the responses to them. The zero value matches every request.
type Match struct {
	// APIs has the API keys to match, such as kmsg.EndTxn.Int16(). An empty list matches every API.
	APIs []int16
	// ClientID is a client id, or the first part of a client id up to a dash: "app-one" matches the clients app-one
	// and app-one-dedup-0, but not app-one2. "" matches every client.
	ClientID string
	// Node is the number of a node, from 1, in the order of [Proxy.Addrs]. 0 matches every node.
	Node int32
	// Where, if set, decides by the decoded request, for example to match a commit but not an abort. The proxy calls
	// it only with requests of APIs and from several goroutines. Where must not change the request.
	Where func(kmsg.Request) bool
}

// Rule is a fault to inject. The proxy applies rules in the order in which they were added; a later rule sees only
// the frames that the earlier rules delivered.
type Rule struct {
	// Name identifies the rule in logs and reports. The default is the name of the action.
	Name string
	Match
	Action Action

	// Skip is how many matching frames pass before the rule begins to strike.
	Skip int
	// Count is how often the rule strikes; 0 means until the rule is removed.
	Count int
	// Probability is the probability with which the rule strikes a matching frame, above 0 and up to 1. 0 means 1.
	Probability float64

	// Delay is the delay of DelayRequest, DelayResponse and HoldRequest.
	Delay time.Duration
	// Jitter is the longest random addition to Delay, for DelayRequest and DelayResponse. The additions are uniformly
	// distributed.
	Jitter time.Duration
	// Release, if set, makes a HoldRequest deliver its request when the channel is closed. With Delay 0, only Release
	// does.
	Release <-chan struct{}
	// Error is the error of Refuse and PatchResponse.
	Error *kerr.Error
	// Patch edits the response in place, for PatchResponse without Error.
	Patch func(kmsg.Response)
	// Direction is the direction of Blackhole and Throttle.
	Direction Direction
	// BytesPerSecond is the limit of Throttle.
	BytesPerSecond int
	// Reset makes DropRequest, DropResponse and HoldRequest close connections by RST.
	Reset bool
}

// validate returns an error for a rule that lacks a setting that its action needs, or that has a setting that its
// action does not use.
func (r Rule) validate() error {
	var errs []error
	refuse := func(bad bool, format string, args ...any) {
		if bad {
			errs = append(errs, fmt.Errorf("rule %s: "+format, append([]any{r.name()}, args...)...))
		}
	}
	is := func(actions ...Action) bool { return slices.Contains(actions, r.Action) }
	_, known := actionNames[r.Action]
	refuse(!known, "Action is not one of the package's")
	refuse(r.Skip < 0 || r.Count < 0, "Skip %d, Count %d: neither may be below 0", r.Skip, r.Count)
	refuse(r.Probability < 0 || r.Probability > 1, "Probability %v is not between 0 and 1", r.Probability)
	refuse(r.Delay < 0 || r.Jitter < 0, "Delay %v, Jitter %v: neither may be below 0", r.Delay, r.Jitter)
	refuse(is(DelayRequest, DelayResponse) && r.Delay+r.Jitter == 0, "needs a Delay or Jitter")
	refuse(is(HoldRequest) && r.Delay == 0 && r.Release == nil, "needs a Delay or Release")
	refuse(!is(DelayRequest, DelayResponse, HoldRequest) && r.Delay > 0, "has no use for Delay")
	refuse(!is(DelayRequest, DelayResponse) && r.Jitter > 0, "has no use for Jitter")
	refuse(!is(HoldRequest) && r.Release != nil, "has no use for Release")
	refuse(is(Refuse) && r.Error == nil, "needs an Error")
	refuse(is(PatchResponse) && (r.Error == nil) == (r.Patch == nil), "needs either an Error or a Patch")
	refuse(!is(Refuse, PatchResponse) && r.Error != nil, "has no use for Error")
	refuse(!is(PatchResponse) && r.Patch != nil, "has no use for Patch")
	refuse(is(Refuse, PatchResponse) && len(r.APIs) == 0, "needs APIs")
	refuse(is(Throttle) != (r.BytesPerSecond > 0), "BytesPerSecond %d: a Throttle needs it above 0, nothing else has a use for it", r.BytesPerSecond)
	refuse(!is(Blackhole, Throttle) && r.Direction != Both, "has no use for Direction")
	refuse(r.Direction < Both || r.Direction > ToClient, "Direction is not one of the package's")
	refuse(!is(DropRequest, DropResponse, HoldRequest) && r.Reset, "has no use for Reset")
	refuse(r.Node < 0, "Node %d is below 0", r.Node)
	return errors.Join(errs...)
}

func (r Rule) name() string {
	if r.Name != "" {
		return r.Name
	}
	return r.Action.String()
}

// concerns reports whether the rule acts on frames in the direction way, which is ToBroker or ToClient.
func (r Rule) concerns(way Direction) bool {
	switch r.Action {
	case DropResponse, DelayResponse, PatchResponse:
		return way == ToClient
	case Blackhole, Throttle:
		return r.Direction == Both || r.Direction == way
	default:
		return way == ToBroker
	}
}

// matchesClient reports whether the match includes this client and this node, for at least some requests.
func (m Match) matchesClient(node int32, clientID string) bool {
	if m.Node != 0 && m.Node != node {
		return false
	}
	rest, ok := strings.CutPrefix(clientID, m.ClientID)
	return ok && (m.ClientID == "" || rest == "" || rest[0] == '-')
}
