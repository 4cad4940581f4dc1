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

// Action is the effect of a rule on the frames it strikes.
type Action int

// The actions. Those that cut a connection close both its sides, by RST with
// [Rule.Reset], else by FIN.
const (
	// DropRequest cuts the connection instead of delivering the request: it is not
	// executed.
	DropRequest Action = iota + 1
	// DropResponse waits for the node's response and cuts the connection instead of
	// forwarding it: the request was executed. The client sees no difference to
	// DropRequest.
	DropResponse
	// DelayRequest delivers the request after Delay, plus up to Jitter.
	DelayRequest
	// DelayResponse forwards the response after Delay, plus up to Jitter.
	DelayResponse
	// HoldRequest cuts the client's side only, and delivers the request to the node
	// after Delay or when Release is closed, whichever comes first: after the client
	// has reconnected. [Fault.Late] returns the node's response.
	HoldRequest
	// DuplicateRequest delivers the request twice in a row; the client gets the first response.
	DuplicateRequest
	// Refuse responds to the request with Error and does not deliver it, like a
	// broker that is loading or busy.
	Refuse
	// PatchResponse changes the response to a delivered request: every error code in
	// it becomes Error, or Patch edits it.
	PatchResponse
	// Blackhole stops the frames of Direction until the rule is removed; then they
	// continue, as after a network outage. It also stops the end of a connection.
	Blackhole
	// Throttle limits the frames of Direction to BytesPerSecond, for all matching
	// connections together.
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

// Direction chooses the frames of a connection for a [Blackhole] or a [Throttle].
type Direction int

// The directions.
const (
	Both     Direction = iota
	ToBroker           // requests
	ToClient           // responses
)

// Match chooses requests, or the responses to them. Its zero value matches all.
type Match struct {
	// APIs has the api keys (kmsg.EndTxn.Int16()); empty means every API.
	APIs []int16
	// ClientID is a client id, or a part of one that ends before a dash: "app-one"
	// matches the client app-one and app-one-dedup-0, but not app-one2. "" means
	// every client.
	ClientID string
	// Node is the number of one node, from 1 in the order of [Proxy.Addrs]; 0 means every node.
	Node int32
	// Where, if set, decides by the decoded request, for example a commit and not an
	// abort. It is called with requests of APIs only, from several goroutines, and
	// must not change the request.
	Where func(kmsg.Request) bool
}

// Rule is a fault to inject. Rules apply in the order in which they were added, each
// to the frames that the earlier ones delivered.
type Rule struct {
	// Name identifies the rule in logs and reports; the default is the action's name.
	Name string
	Match
	Action Action

	// Skip is how many matching frames pass before the rule begins.
	Skip int
	// Count is how often the rule strikes; 0 means until its removal.
	Count int
	// Probability is that of a strike at a matching frame, above 0 and up to 1; 0
	// means 1.
	Probability float64

	// Delay is for DelayRequest, DelayResponse and HoldRequest.
	Delay time.Duration
	// Jitter is the longest random addition to Delay, for DelayRequest and
	// DelayResponse; uniformly distributed.
	Jitter time.Duration
	// Release, if set, ends a HoldRequest when it is closed, or by itself if Delay is 0.
	Release <-chan struct{}
	// Error is for Refuse and PatchResponse.
	Error *kerr.Error
	// Patch edits the response in place, for PatchResponse without Error.
	Patch func(kmsg.Response)
	// Direction is for Blackhole and Throttle.
	Direction Direction
	// BytesPerSecond is for Throttle.
	BytesPerSecond int
	// Reset makes DropRequest, DropResponse and HoldRequest cut by RST.
	Reset bool
}

// validate returns an error for a rule that lacks a setting of its action, or has one
// that the action does not use.
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

// concerns reports whether the rule acts on frames in this direction, ToBroker or
// ToClient.
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

// matchesClient reports whether the match includes a client and a node, for some API.
func (m Match) matchesClient(node int32, clientID string) bool {
	if m.Node != 0 && m.Node != node {
		return false
	}
	rest, ok := strings.CutPrefix(clientID, m.ClientID)
	return ok && (m.ClientID == "" || rest == "" || rest[0] == '-')
}
