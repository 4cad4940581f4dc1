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

// Action is what a rule does to the frames it strikes.
type Action int

// The actions. Those that cut a connection close both its sides, by RST with [Rule.Reset], else by FIN.
const (
	// DropRequest cuts the connection instead of delivering the request: not done, and the client cannot tell.
	DropRequest Action = iota + 1
	// DropResponse waits for the node's response and cuts the connection instead of forwarding it: done, and the client cannot tell.
	DropResponse
	// DelayRequest delivers the request Delay (and up to Jitter more) later.
	DelayRequest
	// DelayResponse forwards the response Delay (and up to Jitter more) later.
	DelayResponse
	// HoldRequest cuts the client's side only, and delivers the request to the node after Delay or when Release is closed,
	// whichever comes first: late, after the client has reconnected. The node's response is kept, see [Fault.Late].
	HoldRequest
	// DuplicateRequest delivers the request twice in a row; the client gets the first response.
	DuplicateRequest
	// Refuse responds to the request with Error and does not deliver it: what a broker does that is loading or busy.
	Refuse
	// PatchResponse changes the response to a request that was delivered: every error code in it becomes Error, or Patch edits it.
	PatchResponse
	// Blackhole keeps the frames of Direction from passing until the rule is removed; then they continue, as after a network's
	// outage. The end of a connection does not pass either.
	Blackhole
	// Throttle lets frames of Direction pass at BytesPerSecond, all connections the rule matches together.
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

// Direction says which frames of a connection a [Blackhole] or a [Throttle] concerns.
type Direction int

// The directions.
const (
	Both     Direction = iota
	ToBroker           // requests
	ToClient           // responses
)

// Match says which requests, and the responses to which requests, a rule is about. Its zero value is all of them.
type Match struct {
	// APIs are the api keys (kmsg.EndTxn.Int16()); none means every API.
	APIs []int16
	// ClientID is a client id or a part of one that ends before a dash: "app-one" is the client app-one and app-one-dedup-0,
	// and not app-one2. Empty means every client.
	ClientID string
	// Node is the number of one node, from 1 in the order of [Proxy.Addrs]; 0 means every node.
	Node int32
	// Where, if set, decides by the decoded request, such as a commit but not an abort. It is called with requests of
	// the APIs above only, from several goroutines, and must not change the request.
	Where func(kmsg.Request) bool
}

// Rule is a fault to inject. Rules apply in the order they were added, each to what the ones before let pass.
type Rule struct {
	// Name identifies the rule in logs and reports; by default the action's.
	Name string
	Match
	Action Action

	// Skip is how many matching frames pass before the rule begins.
	Skip int
	// Count is how often the rule strikes; 0 means until it is removed.
	Count int
	// Probability is that of a strike at a matching frame, above 0 and up to 1; 0 means 1.
	Probability float64

	// Delay is for DelayRequest, DelayResponse and HoldRequest.
	Delay time.Duration
	// Jitter is the most a DelayRequest or DelayResponse takes longer, evenly spread.
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
	// Reset lets DropRequest, DropResponse and HoldRequest cut by RST.
	Reset bool
}

// validate reports a rule that cannot do what its action says, or that sets what its action does not use.
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

// concerns reports whether the rule acts on frames that go this way, ToBroker or ToClient.
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

// matchesClient reports whether the match includes a client and a node, whatever the API.
func (m Match) matchesClient(node int32, clientID string) bool {
	if m.Node != 0 && m.Node != node {
		return false
	}
	rest, ok := strings.CutPrefix(clientID, m.ClientID)
	return ok && (m.ClientID == "" || rest == "" || rest[0] == '-')
}
