package rules

import (
	"time"

	"go.yaml.in/yaml/v4"

	"oncebus/dedup"
)

// Claims has the settings of claim mode.
type Claims struct {
	Outcomes string // topic to which executors produce outcomes
	Replies  string // topic of the replies to every sender
	Answers  string // topic of the answers to start and renew; "" for none
	// Lease is how long a claim without an outcome prevents the dispatch of a duplicate, in broker time.
	Lease time.Duration
	// Group is the consumer group of the executor; "" if the route names none.
	Group string
	// Wait delays the reply to a duplicate until the outcome is known. If Wait is false, a duplicate gets its
	// reply at once.
	Wait bool
	// MaxWaiting is how many duplicates of one event may wait.
	MaxWaiting int
	// ResultBytes is the longest result that is recorded, headers included.
	ResultBytes int
	// Request locates the sender's request id in an event; nil if the route does not name one.
	Request *RequestID
}

// RequestID names the payload field or header with the sender's request id. The request id is part of replies,
// never of the key.
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

// resultLimitMax is the highest result_limit. A claim is one record of the changelog, by default of at most 1
// MiB: the longest result and dedup.WaitingMax requests fit into it.
const resultLimitMax = 512 << 10

func (d *decoder) requestID(n *yaml.Node, at string) *RequestID {
	x := &RequestID{}
	if nodes := decodeObject(d, n, at, x, requestFields); nodes != nil && len(nodes) != 1 {
		d.fail(n, at, "want either field or header")
	}
	return x
}

// claimOnly are the fields that only claim mode has.
var claimOnly = []string{"outcomes", "replies", "answers", "lease", "executor_group", "while_in_progress", "max_waiting", "result_limit", "request"}

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
	if r.nodes["answers"] != nil {
		d.checkTopic(r, "answers", r.Claim.Answers)
	}
	if r.Prepartitioned {
		d.failAt(r, "prepartitioned", "a claim's outcome reaches its task through the repartition topic only: leave prepartitioned out")
	}
	if r.nodes["duplicates"] != nil {
		d.failAt(r, "duplicates", "duplicates get a reply in claim mode: leave duplicates out")
	}
	if r.nodes["count_hits"] != nil {
		d.failAt(r, "count_hits", "every duplicate gets a reply in claim mode, and oncebus get lists them: leave count_hits out")
	}
	if r.nodes["headers"] != nil {
		d.failAt(r, "headers", "every record of claim mode has oncebus-route, oncebus-key and oncebus-verdict: leave headers out")
	}
	if r.nodes["max_waiting"] != nil && !r.Claim.Wait {
		d.failAt(r, "max_waiting", "needs while_in_progress: wait, because otherwise no duplicate waits")
	}
	if r.Claim.Lease > r.Window {
		d.failAt(r, "lease", "%v is longer than the window of %v, and the claim expires with the window", r.Claim.Lease, r.Window)
	}
	if r.Claim.Outcomes != "" && r.Claim.Outcomes == r.Claim.Replies {
		d.failAt(r, "replies", "%s is the route's outcomes topic: oncebus would read its replies as outcomes", r.Claim.Replies)
	}
	switch r.Claim.Answers {
	case "":
	case r.Claim.Outcomes:
		d.failAt(r, "answers", "%s is the route's outcomes topic: oncebus would read its answers as outcomes", r.Claim.Answers)
	case r.Claim.Replies:
		d.failAt(r, "answers", "%s is the route's replies topic: senders would read the answers to executors as replies", r.Claim.Answers)
	}
}

// sameClaims reports whether an outcome has the same effect in both routes. An outcome names only the namespace
// of its claim and no route, so routes that share a namespace must treat outcomes alike.
func (r *draft) sameClaims(other *draft) bool {
	a, b := r.Claim, other.Claim
	a.Request, b.Request = nil, nil
	return a == b
}

// ClaimRule returns the route's settings for dedup.DecideClaim.
func (r *Route) ClaimRule() dedup.ClaimRule {
	rule := dedup.ClaimRule{Lease: r.Claim.Lease.Milliseconds(), HasGroup: r.Claim.Group != "", ResultBytes: r.Claim.ResultBytes}
	if r.Claim.Wait {
		rule.Wait = r.Claim.MaxWaiting
	}
	return rule
}

// request returns the sender's request id: the value of a header, a JSON string, or a JSON number as the sender
// wrote it. It returns "" for any other value and for an id longer than dedup.RequestBytesMax.
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
