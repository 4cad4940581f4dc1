package rules

import (
	"slices"
	"time"

	"oncebus/dedup"
)

// Policy says what happens to a record of some verdict.
type Policy uint8

// Policies. Which of them a field of the routes file takes is in its comment.
const (
	DeadLetter Policy = iota // to the route's dead-letter topic, with the reason
	Forward                  // to the output, marked with the verdict
	Drop                     // counted, not emitted
	ToTopic                  // copies: to a topic of their own
	Clamp                    // far future: the event time is set to the cap
)

var policyNames = [...]string{"dead_letter", "forward", "drop", "to", "clamp"}

// String returns the policy's name in the routes file.
func (p Policy) String() string { return policyNames[p] }

// Duplicates is what happens to copies.
type Duplicates struct {
	Policy Policy // Drop (default), Forward or ToTopic
	Topic  string // for ToTopic
}

// Mode is how far a route follows its events.
type Mode uint8

// Modes.
const (
	Plain     Mode = iota // copies are dropped, or where duplicates says
	ClaimMode             // copies get the outcome of the first
)

var modeNames = [...]string{"plain", "claim"}

// String returns the mode's name in the routes file.
func (m Mode) String() string { return modeNames[m] }

// Defaults of a route's optional fields.
const (
	DefaultGrace       = 10 * time.Minute
	DefaultSkew        = time.Hour
	DefaultDeadLetter  = "oncebus.dead-letter"
	DefaultMaxKeyBytes = 4096

	DefaultLease       = 5 * time.Minute
	DefaultMaxWaiting  = 16
	DefaultResultBytes = 64 << 10
)

// MaxNamespaces bounds the namespaces of one routes file: a row holds the
// number of its namespace in one byte, and 0 stays free.
const MaxNamespaces = 255

// Routes is a validated routes file.
type Routes struct {
	Routes []*Route // in the file's order

	byTopic map[string]*topicPlan
	slots   int // number of distinct payload paths in all routes
}

// Route is one rule set: which input records it takes, how their dedup key is
// derived, for how long, and what happens to copies.
type Route struct {
	Name      string
	Namespace string // the scope of its keys; the route's name unless set
	Index     int    // place in Routes.Routes

	Topics         []string // inputs
	Match          *Match   // nil: takes every record of its topics
	Prepartitioned bool     // the input is partitioned by the dedup key already
	Mode           Mode

	Keys   []Source // tried in order
	Secret bool     // HMAC-SHA-256 in place of SHA-256
	// MaxKeyBytes bounds the id (record_key, header, field), or the sum of
	// the parts of a composite, in bytes; a longer one is malformed.
	MaxKeyBytes int

	Window time.Duration // how long after the first sighting a copy is a copy
	Grace  time.Duration // how far beyond the window an event may be late
	Skew   time.Duration // how far beyond the broker's present event time may be
	Time   *EventTime    // nil: the record's timestamp

	Output       string
	Duplicates   Duplicates
	OnMissingKey Policy // DeadLetter (default), Forward or Drop
	OnLate       Policy // DeadLetter (default), Forward or Drop
	OnFuture     Policy // DeadLetter (default, verdict invalid) or Clamp
	DeadLetter   string // topic
	Limits       Limits
	// FailOpen lets events go to the output unchecked while local state cannot
	// be used; otherwise they wait.
	FailOpen bool

	// Fingerprint names the payload fields that must agree between copies; an
	// event that has the key of another but differs in them is a Collision.
	Fingerprint []Field
	Collision   Policy // DeadLetter (default) or Forward

	fingerprintRule uint8 // see ruleOf

	Claim Claims // of ClaimMode
	HTTP  *HTTP  // nil: nothing comes in by HTTP
}

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

// Limits bounds what the events of a route can make a task remember.
type Limits struct {
	// LiveKeys is how many keys of the route's namespace may be live in one
	// partition, as Census counts them; 0 is no limit.
	LiveKeys int
	// OnLimit says what happens to an event with a new key beyond it:
	// DeadLetter (default) or Forward. It is not remembered.
	OnLimit Policy
}

// EventTime names the payload field that holds the event time.
type EventTime struct {
	Field  Field
	Format TimeFormat
}

// TimeFormat is how an event time is written.
type TimeFormat uint8

// Time formats. Numbers may also be written as strings of digits.
const (
	UnixMilli TimeFormat = iota
	UnixSecond
	RFC3339
)

var timeFormatNames = [...]string{"unix_ms", "unix_s", "rfc3339"}

// String returns the format's name in the routes file.
func (f TimeFormat) String() string { return timeFormatNames[f] }

// Match is the condition under which a route takes a record: the text of a
// payload field or header is one of In. Numbers and booleans compare by their
// JSON text; an absent field, null, an object or an array never match.
type Match struct {
	Field  Field  // payload field; Path.Text is "" where Header is set
	Header string // header name
	In     []string
}

// Inputs returns the input topics, sorted and each once: those that go through
// the router, topics of outcomes among them, and those declared prepartitioned. No topic
// is in both.
func (rs *Routes) Inputs() (routed, prepartitioned []string) {
	for topic, plan := range rs.byTopic {
		if plan.routes[0].Prepartitioned {
			prepartitioned = append(prepartitioned, topic)
		} else {
			routed = append(routed, topic)
		}
	}
	for _, r := range rs.Routes {
		if r.Mode == ClaimMode {
			routed = append(routed, r.Claim.Outcomes)
		}
	}
	slices.Sort(routed)
	slices.Sort(prepartitioned)
	return slices.Compact(routed), prepartitioned
}

// Route returns the route of that name, or nil.
func (rs *Routes) Route(name string) *Route {
	for _, r := range rs.Routes {
		if r.Name == name {
			return r
		}
	}
	return nil
}

// NeedsSecret tells whether any route hashes with the secret.
func (rs *Routes) NeedsSecret() bool {
	return slices.ContainsFunc(rs.Routes, func(r *Route) bool { return r.Secret })
}

// Span returns the route's window as the decision needs it.
func (r *Route) Span() dedup.Window {
	return dedup.Window{
		Size:        r.Window.Milliseconds(),
		Grace:       r.Grace.Milliseconds(),
		Skew:        r.Skew.Milliseconds(),
		ClampFuture: r.OnFuture == Clamp,
	}
}

// NearStep is how far, in ms of their own timestamps, an order may be from its
// original in a neighbouring bucket; 0 where neighbours do not count.
func (r *Route) AdjacentStep() int64 {
	for i := range r.Keys {
		if o := r.Keys[i].order; o != nil && o.AdjacentBuckets {
			return o.Step
		}
	}
	return 0
}

// ClaimRule returns what the decision on a claim needs to know of the route.
func (r *Route) ClaimRule() dedup.ClaimRule {
	rule := dedup.ClaimRule{Lease: r.Claim.Lease.Milliseconds(), ResultBytes: r.Claim.ResultBytes}
	if r.Claim.Wait {
		rule.Wait = r.Claim.MaxWaiting
	}
	return rule
}

// RetentionMS is how long behind stream time a row counts as held, in
// milliseconds; see Window.Retention.
func (r *Route) RetentionMS() int64 { return r.Span().Retention() }
