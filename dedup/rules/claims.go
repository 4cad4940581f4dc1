package rules

import (
	"time"

	"go.yaml.in/yaml/v4"

	"oncebus/dedup"
)

// Claims is what a route in claim mode says beyond deduplication.
type Claims struct {
	Outcomes string // topic: executors tell here what became of an attempt
	Replies  string // topic: who sent an event, or a copy of it, is answered here
	// Lease is how long a claim without an outcome keeps others from running
	// the event, by the broker's clock.
	Lease time.Duration
	// Wait holds the reply to a copy back until there is an outcome; without
	// it the copy is told so at once.
	Wait bool
	// MaxWaiting is how many copies of one event may wait.
	MaxWaiting int
	// ResultBytes is the longest result, headers included, that is kept.
	ResultBytes int
	// Request is where an event has the id by which its sender knows it; nil
	// where it has none.
	Request *RequestID
}

// RequestID names the payload field or header that holds a sender's own id of
// a request. It is no key: it only stands in replies.
type RequestID struct {
	Field  Field  // Path.Text is "" where Header is set
	Header string // header name
}

var requestFields = []fieldOf[RequestID]{
	{"field", func(d *decoder, x *RequestID, n *yaml.Node, at string) { x.Field = d.field(n, at) }},
	{"header", func(d *decoder, x *RequestID, n *yaml.Node, at string) {
		x.Header, _ = d.text(n, at)
		d.refuseOwnHeader(n, at, x.Header)
	}},
}

// inProgressNames are the choices of while_in_progress.
var inProgressNames = [...]string{"reject", "wait"}

// What a claim keeps is one row of the changelog, whose topic takes 1 MiB
// unless somebody changed that: waitingMax requests of twice RequestBytesMax
// fit, and so does the longest result.
const (
	resultLimitMax = 512 << 10
)

func (d *decoder) requestID(n *yaml.Node, at string) *RequestID {
	x := &RequestID{}
	if nodes := decodeObject(d, n, at, x, requestFields); nodes != nil && len(nodes) != 1 {
		d.fail(n, at, "want either field or header")
	}
	return x
}

// claimOnly are the fields that mean something in claim mode alone.
var claimOnly = []string{"outcomes", "replies", "lease", "while_in_progress", "max_waiting", "result_limit", "request"}

func (d *decoder) validateClaim(r *draft) {
	if r.Mode != ClaimMode {
		for _, field := range claimOnly {
			if r.nodes[field] != nil {
				d.failAt(r, field, "belongs to mode: claim")
			}
		}
		return
	}
	d.require(r.node, r.at, r.nodes, "outcomes", "replies")
	d.checkTopic(r, "outcomes", r.Claim.Outcomes)
	d.checkTopic(r, "replies", r.Claim.Replies)
	if r.Prepartitioned {
		d.failAt(r, "prepartitioned", "a claim's outcome reaches its task through the repartition topic only: leave prepartitioned out")
	}
	if r.nodes["duplicates"] != nil {
		d.failAt(r, "duplicates", "copies are answered on replies in claim mode: leave duplicates out")
	}
	if r.nodes["max_waiting"] != nil && !r.Claim.Wait {
		d.failAt(r, "max_waiting", "says how many copies may wait, but none does: write while_in_progress: wait")
	}
	if r.Claim.Lease > r.Window {
		d.failAt(r, "lease", "%v is longer than the window of %v, after which the claim is forgotten anyway", r.Claim.Lease, r.Window)
	}
	if r.Claim.Outcomes != "" && r.Claim.Outcomes == r.Claim.Replies {
		d.failAt(r, "replies", "%s is the route's outcomes topic: replies would be taken for outcomes", r.Claim.Replies)
	}
}

// sameClaims tells whether an outcome means the same to both routes: it finds
// its route by the namespace of the claim.
func (r *draft) sameClaims(other *draft) bool {
	a, b := r.Claim, other.Claim
	a.Request, b.Request = nil, nil
	return a == b
}

// ClaimRule returns what the decision on a claim needs to know of the route.
func (r *Route) ClaimRule() dedup.ClaimRule {
	rule := dedup.ClaimRule{Lease: r.Claim.Lease.Milliseconds(), ResultBytes: r.Claim.ResultBytes}
	if r.Claim.Wait {
		rule.Wait = r.Claim.MaxWaiting
	}
	return rule
}

// request is the sender's id of the request: a header, a string, or a number as
// it is written. Anything else, and an id that is too long, is none: it decides
// nothing.
func (d *Deriver) request(x *RequestID) string {
	var id []byte
	if x.Header != "" {
		id = d.header(x.Header)
	} else if d.readPayload() {
		switch raw := x.Field.slotIn(d); {
		case len(raw) == 0:
		case raw[0] == '"':
			id = d.string(raw)
		case raw[0] == '-' || isDigit(raw[0]):
			id = raw
		}
	}
	if len(id) > dedup.RequestBytesMax {
		return ""
	}
	return string(id)
}
