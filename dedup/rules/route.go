package rules

import (
	"slices"
	"strings"
	"time"

	"go.yaml.in/yaml/v4"

	"oncebus/dedup"
)

// Route is one rule set: it selects input records, derives their dedup keys, and sets the window and the
// policies for them.
type Route struct {
	Name      string
	Namespace string // the scope of the keys; the route's name unless the file sets it
	Index     int    // in Routes.Routes
	// Off reports that the route is switched off: the worker forwards every event with the verdict bypassed and
	// stores nothing.
	Off bool

	Topics         []string // inputs
	Match          *Match   // nil: takes every record of its topics
	Prepartitioned bool     // the input is partitioned by the dedup key already
	Mode           Mode

	Keys   []Source // tried in order
	Secret bool     // HMAC-SHA-256 in place of SHA-256
	// MaxKeyBytes is the longest id, or sum of the parts of a composite, in bytes. A longer id makes the
	// record malformed.
	MaxKeyBytes int

	Window time.Duration // how long after the first event of its key an event is a duplicate
	Grace  time.Duration // how late an event may be beyond the window
	Skew   time.Duration // how far event time may be ahead of broker time, at most Window + Grace
	Time   *EventTime    // nil: the record's timestamp

	Output       string
	Headers      Headers // of unique events, in plain mode
	Duplicates   Duplicates
	CountHits    bool   // plain mode: the row of a key counts its duplicates, and has the time of the last one
	OnMissingKey Policy // DeadLetter (default), Forward or Drop
	OnLate       Policy // DeadLetter (default), Forward or Drop
	OnFuture     Policy // DeadLetter (default, verdict invalid) or Clamp
	// RejectsAfterWindow: an event after the window of its key is still a duplicate, as long as the row is
	// kept. If the field is false, an event after the window is emitted and begins a new window.
	RejectsAfterWindow bool
	DeadLetter         string // topic
	Limits             Limits
	// FailOpen: a worker forwards events unchecked while it cannot use its local state. If the field is false,
	// the events wait in Kafka.
	FailOpen bool

	// Fingerprint names the payload fields in which an event and its duplicates must agree. An event whose key
	// is stored, but whose values in these fields differ, is a Collision.
	Fingerprint []Detail
	Collision   Policy // DeadLetter (default) or Forward

	fingerprintRule uint8 // see ruleOf

	Claim Claims // of ClaimMode
	HTTP  *HTTP  // nil: the ingress has no endpoint for the route

	Tenant *Tenant // nil: the keys of all records have one scope
	Quota  *Quota  // nil: a tenant may have any number of keys and events
	Sender *Sender // nil: duplicates are not counted by sender
	Shadow *Shadow // nil: no other key rule is tried out

	format  RecordFormat            // see FormatOf
	formats map[string]RecordFormat // likewise, by topic

	shadowOf string // see ShadowOf

	written map[string]string // see Written
}

// Defaults of a route's optional fields.
const (
	DefaultGrace       = 10 * time.Minute
	DefaultSkew        = time.Hour // or the window, where that is shorter
	DefaultDeadLetter  = "oncebus.dead-letter"
	DefaultMaxKeyBytes = 4096

	DefaultLease       = 5 * time.Minute
	DefaultMaxWaiting  = 16
	DefaultResultBytes = 64 << 10
)

// Policy says what the app does with records of a certain verdict.
type Policy uint8

// Policies. Each field of Route lists the ones it allows.
const (
	DeadLetter Policy = iota // to the route's dead-letter topic, with the reason
	Forward                  // to the output, marked with the verdict
	Drop                     // counted, not emitted
	ToTopic                  // duplicates: to a separate topic
	Clamp                    // an event from the far future: its time becomes broker time + skew
	Reject                   // only the sender learns the verdict, by a reply
)

var policyNames = [...]string{"dead_letter", "forward", "drop", "to", "clamp", "reject"}

// String returns the policy's name in the routes file.
func (p Policy) String() string { return policyNames[p] }

// Duplicates says what the app does with duplicates in plain mode.
type Duplicates struct {
	Policy Policy // Drop (default), Forward or ToTopic
	Topic  string // for ToTopic
}

// Mode selects plain deduplication or claims.
type Mode uint8

// Modes.
const (
	Plain     Mode = iota // duplicates are dropped, or follow Route.Duplicates
	ClaimMode             // duplicates get the outcome of the first event
)

var modeNames = [...]string{"plain", "claim"}

// String returns the mode's name in the routes file.
func (m Mode) String() string { return modeNames[m] }

// Limits bounds the state of a route.
type Limits struct {
	// LiveKeys is the most keys of the route's namespace that may be live in one partition, as dedup.KeyCounter
	// counts them; 0 for no limit.
	LiveKeys int
	// OnLimit is the policy for an event with a new key over the limit: DeadLetter (default) or Forward. Either
	// way, no row is stored for the key.
	OnLimit Policy
}

var routeFields = []fieldOf[Route]{
	{"name", func(d *decoder, r *Route, n *yaml.Node, at string) { r.Name, _ = d.text(n, at) }},
	{"namespace", func(d *decoder, r *Route, n *yaml.Node, at string) { r.Namespace, _ = d.text(n, at) }},
	{"enabled", func(d *decoder, r *Route, n *yaml.Node, at string) {
		on, ok := d.boolean(n, at)
		if r.Off = ok && !on; r.Off {
			d.warn(n, at, "the route is switched off: each of its events is forwarded, with its copies, and nothing is stored")
		}
	}},
	{"topics", func(d *decoder, r *Route, n *yaml.Node, at string) {
		d.list(n, at, func(n *yaml.Node, at string) {
			if topic, ok := d.text(n, at); ok {
				r.Topics = append(r.Topics, topic)
			}
		})
	}},
	{"match", func(d *decoder, r *Route, n *yaml.Node, at string) { r.Match = d.match(n, at) }},
	{"prepartitioned", func(d *decoder, r *Route, n *yaml.Node, at string) { r.Prepartitioned, _ = d.boolean(n, at) }},
	{"format", func(d *decoder, r *Route, n *yaml.Node, at string) { r.format = d.recordFormat(n, at) }},
	{"formats", func(d *decoder, r *Route, n *yaml.Node, at string) { r.formats = d.formatsByTopic(n, at) }},
	{"mode", func(d *decoder, r *Route, n *yaml.Node, at string) {
		r.Mode = Mode(max(0, d.choice(n, at, modeNames[:]...)))
	}},
	{"key", func(d *decoder, r *Route, n *yaml.Node, at string) { r.Keys = d.sources(n, at) }},
	{"secret", decodeSecret},
	{"max_key_bytes", func(d *decoder, r *Route, n *yaml.Node, at string) {
		r.MaxKeyBytes = d.integer(n, at, 1, keyBytesMax)
	}},
	{"window", func(d *decoder, r *Route, n *yaml.Node, at string) { r.Window = d.duration(n, at, shortestWindow) }},
	{"grace", func(d *decoder, r *Route, n *yaml.Node, at string) { r.Grace = d.duration(n, at, 0) }},
	{"skew", func(d *decoder, r *Route, n *yaml.Node, at string) { r.Skew = d.duration(n, at, 0) }},
	{"time", func(d *decoder, r *Route, n *yaml.Node, at string) { r.Time = d.eventTime(n, at) }},
	{"output", func(d *decoder, r *Route, n *yaml.Node, at string) { r.Output, _ = d.text(n, at) }},
	{"headers", func(d *decoder, r *Route, n *yaml.Node, at string) { r.Headers = d.headers(n, at) }},
	{"duplicates", func(d *decoder, r *Route, n *yaml.Node, at string) { r.Duplicates = d.duplicates(n, at) }},
	{"count_hits", func(d *decoder, r *Route, n *yaml.Node, at string) { r.CountHits, _ = d.boolean(n, at) }},
	{"on_missing_key", func(d *decoder, r *Route, n *yaml.Node, at string) {
		r.OnMissingKey = d.policy(n, at, DeadLetter, Forward, Drop)
	}},
	{"on_late", func(d *decoder, r *Route, n *yaml.Node, at string) {
		r.OnLate = d.policy(n, at, DeadLetter, Forward, Drop)
	}},
	{"on_future", func(d *decoder, r *Route, n *yaml.Node, at string) {
		r.OnFuture = d.policy(n, at, DeadLetter, Clamp)
	}},
	{"on_after_window", func(d *decoder, r *Route, n *yaml.Node, at string) {
		r.RejectsAfterWindow = d.choice(n, at, "forward", "reject") == 1
	}},
	{"dead_letter", func(d *decoder, r *Route, n *yaml.Node, at string) { r.DeadLetter, _ = d.text(n, at) }},
	{"fingerprint", func(d *decoder, r *Route, n *yaml.Node, at string) {
		r.Fingerprint = d.fingerprint(n, at)
	}},
	{"collision", func(d *decoder, r *Route, n *yaml.Node, at string) {
		r.Collision = d.policy(n, at, DeadLetter, Forward, Reject)
	}},
	{"on_state_failure", func(d *decoder, r *Route, n *yaml.Node, at string) {
		r.FailOpen = d.choice(n, at, stateFailureNames[:]...) == 1
	}},
	{"outcomes", func(d *decoder, r *Route, n *yaml.Node, at string) { r.Claim.Outcomes, _ = d.text(n, at) }},
	{"answers", func(d *decoder, r *Route, n *yaml.Node, at string) { r.Claim.Answers, _ = d.text(n, at) }},
	{"replies", func(d *decoder, r *Route, n *yaml.Node, at string) { r.Claim.Replies, _ = d.text(n, at) }},
	{"lease", func(d *decoder, r *Route, n *yaml.Node, at string) {
		r.Claim.Lease = d.duration(n, at, time.Millisecond)
	}},
	{"executor_group", func(d *decoder, r *Route, n *yaml.Node, at string) { r.Claim.Group, _ = d.text(n, at) }},
	{"while_in_progress", func(d *decoder, r *Route, n *yaml.Node, at string) {
		r.Claim.Wait = d.choice(n, at, inProgressNames[:]...) == 1
	}},
	{"max_waiting", func(d *decoder, r *Route, n *yaml.Node, at string) {
		r.Claim.MaxWaiting = d.integer(n, at, 1, dedup.WaitingMax)
	}},
	{"result_limit", func(d *decoder, r *Route, n *yaml.Node, at string) {
		r.Claim.ResultBytes = d.integer(n, at, 0, resultLimitMax)
	}},
	{"request", func(d *decoder, r *Route, n *yaml.Node, at string) { r.Claim.Request = d.requestID(n, at) }},
	{"http", func(d *decoder, r *Route, n *yaml.Node, at string) { r.HTTP = d.http(n, at) }},
	{"tenant", func(d *decoder, r *Route, n *yaml.Node, at string) { r.Tenant = d.tenant(n, at) }},
	{"quota", func(d *decoder, r *Route, n *yaml.Node, at string) { r.Quota = d.quota(n, at) }},
	{"sender", func(d *decoder, r *Route, n *yaml.Node, at string) { r.Sender = d.sender(n, at) }},
	{"shadow", func(d *decoder, r *Route, n *yaml.Node, at string) { r.Shadow = d.shadow(n, at) }},
	{"limits", func(d *decoder, r *Route, n *yaml.Node, at string) {
		if nodes := decodeObject(d, n, at, &r.Limits, limitsFields); nodes != nil {
			d.require(n, at, nodes, "live_keys")
		}
	}},
}

var limitsFields = []fieldOf[Limits]{
	{"live_keys", func(d *decoder, l *Limits, n *yaml.Node, at string) { l.LiveKeys = d.integer(n, at, 1, liveKeysMax) }},
	{"on_limit", func(d *decoder, l *Limits, n *yaml.Node, at string) { l.OnLimit = d.policy(n, at, DeadLetter, Forward) }},
}

var duplicatesFields = []fieldOf[Duplicates]{
	{"to", func(d *decoder, x *Duplicates, n *yaml.Node, at string) { x.Topic, _ = d.text(n, at) }},
}

// keyBytesMax is the highest max_key_bytes: the usual limit of a Kafka record.
const keyBytesMax = 1 << 20

// liveKeysMax is the highest live_keys: more than any partition can store.
const liveKeysMax = 1_000_000_000

// stateFailureNames are the choices of on_state_failure.
var stateFailureNames = [...]string{"fail_closed", "fail_open"}

// shortestWindow is the shortest window, and the shortest step.
const shortestWindow = time.Millisecond

// route reads one route and fills in the defaults.
func (d *decoder) route(n *yaml.Node, at string) *draft {
	r := &draft{at: at, node: n, Route: Route{
		MaxKeyBytes: DefaultMaxKeyBytes,
		Grace:       DefaultGrace,
		Duplicates:  Duplicates{Policy: Drop},
		DeadLetter:  DefaultDeadLetter,
		Claim:       Claims{Lease: DefaultLease, MaxWaiting: DefaultMaxWaiting, ResultBytes: DefaultResultBytes},
	}}
	n = d.expand(n)
	r.node, r.nodes = n, decodeObject(d, n, at, &r.Route, routeFields)
	if _, set := r.nodes["namespace"]; !set {
		r.Namespace = r.Name
	}
	if _, set := r.nodes["skew"]; !set {
		// The skew is at most the window. A sender whose clock is fast can then move stream time ahead by at
		// most the window, so events that are late by no more than the grace are still judged.
		r.Skew = min(DefaultSkew, r.Window)
	}
	if _, set := r.nodes["collision"]; !set && r.Mode == ClaimMode {
		r.Collision = Reject // the sender made the mistake, and the reply tells it so
	}
	r.completeHTTP()
	return r
}

func (d *decoder) validateRoute(r *draft) {
	d.require(r.node, r.at, r.nodes, "name", "topics", "key", "window", "output")
	for _, field := range []string{"name", "namespace"} {
		value := r.Name
		if field == "namespace" {
			value = r.Namespace
		}
		if field == "namespace" {
			base, shadow, promoted := strings.Cut(value, ShadowMark)
			if promoted && base != "" && shadow != "" && len(value) <= nameBytesMax {
				value = base + shadow // the namespace of a promoted shadow
			}
		}
		if r.nodes[field] != nil && value != "" && !validName(value) {
			d.failAt(r, field, "%q: want 1 to %d of a-z, 0-9, dot, dash and underscore", value, nameBytesMax)
		}
	}
	topics := r.nodes["topics"]
	seen := map[string]bool{}
	for _, topic := range r.Topics {
		d.checkTopic(r, "topics", topic)
		if seen[topic] {
			d.fail(topics, join(r.at, "topics"), "%s is listed twice", topic)
		}
		seen[topic] = true
	}
	if r.Prepartitioned && len(r.Topics) > 1 {
		d.failAt(r, "topics", "a prepartitioned route takes one topic, because the state of each prepartitioned topic is separate: "+
			"duplicates on two topics would not be found; write a route for each, or leave prepartitioned out")
	}
	if bound := r.Window + r.Grace; r.Skew > bound && r.Window > 0 {
		d.failAt(r, "skew", "%v is longer than window and grace, %v: one sender with a fast clock could make every event of the others late; want at most %v",
			r.Skew, bound, bound)
	}
	d.checkTopic(r, "output", r.Output)
	d.checkTopic(r, "duplicates", r.Duplicates.Topic)
	d.checkTopic(r, "dead_letter", r.DeadLetter)
	d.validateClaim(r)
	d.validateCollision(r)
	d.validateAdjacentBuckets(r)
	d.validateHTTP(r)
	d.validateFormats(r)
	d.validateTenant(r)
	d.validateSender(r)
	if m := r.Match; m != nil {
		d.refuseOwnHeader(r.nodes["match"], join(r.at, "match"), m.Header)
	}
}

// nameBytesMax bounds the names of routes and namespaces.
const nameBytesMax = 64

func validName(s string) bool {
	const legal = "abcdefghijklmnopqrstuvwxyz0123456789-_."
	return len(s) <= nameBytesMax && strings.IndexFunc(s, func(c rune) bool { return !strings.ContainsRune(legal, c) }) < 0
}

// topicBytesMax is Kafka's limit on a topic name.
const topicBytesMax = 249

// checkTopic applies Kafka's rule for topic names (org.apache.kafka.common.internals.Topic). It accepts "".
func (d *decoder) checkTopic(r *draft, field, topic string) {
	legal := func(c rune) bool {
		return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c == '.' || c == '_' || c == '-'
	}
	if strings.HasPrefix(topic, "__") {
		d.failAt(r, field, "%s: names that begin with __ are Kafka's own topics", topic)
	}
	illegal := strings.IndexFunc(topic, func(c rune) bool { return !legal(c) }) >= 0
	if illegal || len(topic) > topicBytesMax || topic == "." || topic == ".." {
		d.failAt(r, field, "%.260q is no topic name: want 1 to %d of a-z, A-Z, 0-9, dot, dash and underscore", topic, topicBytesMax)
	}
}

func decodeSecret(d *decoder, r *Route, n *yaml.Node, at string) {
	if n.Kind != yaml.ScalarNode || n.ShortTag() != "!!bool" {
		// The message omits the value: it may be a secret.
		d.fail(n, at, "want true or false: the secret itself comes from ONCEBUS_KEY_SECRET, never from the file")
		return
	}
	r.Secret, _ = d.boolean(n, at)
}

func (d *decoder) duplicates(n *yaml.Node, at string) Duplicates {
	if n.Kind == yaml.MappingNode {
		x := Duplicates{Policy: ToTopic}
		d.require(n, at, decodeObject(d, n, at, &x, duplicatesFields), "to")
		return x
	}
	policies := [...]Policy{Drop, Forward}
	if n.Kind == yaml.ScalarNode {
		for _, p := range policies {
			if n.Value == p.String() {
				return Duplicates{Policy: p}
			}
		}
	}
	d.fail(n, at, "want drop, forward or {to: TOPIC}, found %s", describe(n))
	return Duplicates{Policy: Drop}
}

// policy reads one of the allowed policies.
func (d *decoder) policy(n *yaml.Node, at string, allowed ...Policy) Policy {
	names := make([]string, len(allowed))
	for i, p := range allowed {
		names[i] = p.String()
	}
	return allowed[max(0, d.choice(n, at, names...))]
}

// Span returns the route's window in the form that package dedup uses.
func (r *Route) Span() dedup.Window {
	return dedup.Window{
		Size:        r.Window.Milliseconds(),
		Grace:       r.Grace.Milliseconds(),
		Skew:        r.Skew.Milliseconds(),
		ClampFuture: r.OnFuture == Clamp,
	}
}

// AdjacentStep returns how far apart, in ms, the timestamps in two orders in adjacent buckets may be if one is
// to be a duplicate of the other; 0 on a route without adjacent_buckets.
func (r *Route) AdjacentStep() int64 {
	for i := range r.Keys {
		if o := r.Keys[i].order; o != nil && o.AdjacentBuckets {
			return o.Step
		}
	}
	return 0
}

// HasOrder reports whether the route has the key source order. The rows of such keys do not tell to which
// partition they belong, because their partition is the hash of a digest without the bucket.
func (r *Route) HasOrder() bool {
	return slices.ContainsFunc(r.Keys, func(s Source) bool { return s.order != nil })
}

// validateAdjacentBuckets refuses a window shorter than the step, because within such a window hardly any order
// in an adjacent bucket would be found as a duplicate.
func (d *decoder) validateAdjacentBuckets(r *draft) {
	for i := range r.Keys {
		o := r.Keys[i].order
		if o == nil || !o.AdjacentBuckets {
			continue
		}
		if o.Step > r.Window.Milliseconds() {
			d.failAt(r, "window", "is shorter than the order's step, so no order in an adjacent bucket is a duplicate")
		}
	}
}

// ForwardsCollisions reports whether an event whose key belongs to a different event makes a claim under a
// second key. It is only for claim mode: a plain route forwards such an event without storing it.
func (r *Route) ForwardsCollisions() bool {
	return r.Mode == ClaimMode && r.Collision == Forward && r.Fingerprint != nil
}

// AwaitsOutcomes reports whether requests of the route wait for outcomes.
func (r *Route) AwaitsOutcomes() bool {
	return r.Claim.Wait || r.HTTP != nil && r.HTTP.Answer != nil
}

// MayForwardUnchecked reports whether the worker may emit an event whose key it did not look up or did not
// store. If a sender sends such an event again, the worker emits it again, because no row says that it was
// emitted.
func (r *Route) MayForwardUnchecked() bool { return r.FailOpen || r.Off || r.forwardsKeyWithoutRow() }

// ForwardsWithoutRow reports whether a policy of the route emits events, with or without a key, for which no
// row is stored. If a worker reads such an event again, it emits the event again.
func (r *Route) ForwardsWithoutRow() bool {
	return r.Off || r.OnMissingKey == Forward || r.forwardsKeyWithoutRow()
}

// forwardsKeyWithoutRow reports whether a policy of the route emits events that have a key, but for which no
// row is stored.
func (r *Route) forwardsKeyWithoutRow() bool {
	collisions := r.Collision == Forward && r.Fingerprint != nil && !r.ForwardsCollisions()
	return r.OnLate == Forward || collisions || r.Limits.LiveKeys > 0 && r.Limits.OnLimit == Forward
}

// RetentionMS returns how far behind stream time a row is retained, in ms; see
// dedup.Window.Retention.
func (r *Route) RetentionMS() int64 { return r.Span().Retention() }

// eachPath calls f for every payload path that the route reads, with the address
// of its slot.
func (r *Route) eachPath(f func(segments []segment, slot *int)) {
	field := func(x *Field) { f(x.Path.segments, &x.slot) }
	if r.Match != nil && r.Match.Header == "" {
		field(&r.Match.Field)
	}
	if r.Time != nil {
		field(&r.Time.Field)
	}
	if r.Tenant != nil && r.Tenant.Kind == TenantField {
		field(&r.Tenant.Field)
	}
	for i := range r.Fingerprint {
		for k := range r.Fingerprint[i].Fields {
			field(&r.Fingerprint[i].Fields[k])
		}
	}
	if x := r.Claim.Request; x != nil && x.Header == "" {
		field(&x.Field)
	}
	for i := range r.Keys {
		for _, x := range r.Keys[i].payloadFields() {
			field(x)
		}
	}
}

// failAt adds a mistake at a route's field, or at the route if the file does not have the field.
func (d *decoder) failAt(r *draft, field, format string, args ...any) {
	n := r.nodes[field]
	if n == nil {
		n = r.node
	}
	d.fail(n, join(r.at, field), format, args...)
}

// require adds a mistake for every missing field.
func (d *decoder) require(n *yaml.Node, at string, nodes map[string]*yaml.Node, names ...string) {
	for _, name := range names {
		if _, ok := nodes[name]; !ok {
			d.fail(n, join(at, name), "is required")
		}
	}
}
