package rules

import (
	"bytes"
	"fmt"
	"maps"
	"slices"
	"strings"
	"unicode/utf8"

	"oncebus/dedup"
	"oncebus/dedup/formats"
)

// HeaderSource returns a record's headers. In Kafka a record may have several headers with one name. The first
// of them counts, so that no program can change a key by appending a header.
type HeaderSource interface {
	Header(name string) (value []byte, ok bool)
}

// Input is a record from which Derive makes a key. Derive neither changes it nor keeps a reference to it.
type Input struct {
	Topic      string
	Key, Value []byte
	Headers    HeaderSource // nil: no headers
	Timestamp  int64        // the record's, Unix milliseconds
	// AsJSON reports that Value is JSON whatever the topic's format is, because the event does not come from
	// the topic: a person typed it, or it is from a file of seeds.
	AsJSON bool
}

// Finding is the result of key derivation.
type Finding uint8

// Findings.
const (
	Keyed      Finding = iota // a source yields a key
	KeyMissing                // no source yields a key: verdict MissingKey
	Malformed                 // verdict Invalid
	// SchemaPending is no verdict: the record's schema has not been read from its registry yet, and the caller
	// must call Derive again once the schema has been read. Derived.Schema names the schema, unless the topic's
	// format has a schema file.
	SchemaPending
)

var findingNames = [...]string{"keyed", "missing_key", "malformed", "schema_pending"}

// String returns the finding in lower case.
func (f Finding) String() string { return findingNames[f] }

// Derived is the key of one record, with what belongs to it. It has no reference to the record or to the
// deriver.
type Derived struct {
	// Route is the route that takes the record. If no route matches, it is the topic's first route, with
	// Malformed and Unmatched. It is nil for a topic of no route.
	Route     *Route
	Unmatched bool
	Finding   Finding
	Key       [32]byte     // the dedup key
	Hashed    Part         // the part of the value whose SHA-256 is Key; zero if Key is made of other bytes, or is an HMAC
	Digest    dedup.Digest // the state key
	// Routing is the input of the repartition hash. It is Digest, except for the key source order: there
	// Routing is a digest without the bucket, so that orders in adjacent buckets are in the same task.
	Routing dedup.Digest
	// Adjacent are the digests that the order would have in the previous and in the next bucket, if HasAdjacent
	// is set; see dedup.Event.Prior. Shift is the timestamp that the order itself contains minus Time, in ms.
	Adjacent    [2]dedup.Digest
	HasAdjacent bool
	Shift       int64
	// Fingerprint is a digest of the details in which an event and its duplicates must agree; 0 if the route
	// names no details.
	Fingerprint uint64
	// Request is the sender's request id, in claim mode; "" for none.
	Request string
	// Tenant is the name of the record's tenant; "" if the route has no tenants.
	Tenant string
	Time   int64             // event time, Unix milliseconds; the record's timestamp unless Keyed
	Format RecordFormat      // the record's format, with SchemaPending
	Schema formats.Reference // the record's schema, with SchemaPending; unset if the format has a schema file
	Source string            // the source that yielded the key, as in the file
	Reason string            // unless Keyed: the field and the cause
}

// Explanation shows a person how a key was derived.
type Explanation struct {
	Hashed  []byte   // the bytes whose hash is the dedup key
	HMAC    bool     // HMAC-SHA-256 with the secret, else SHA-256
	Kind    string   // id, composite, content or order
	Skipped []string // why each earlier source yielded no key
	// Compared has the values of the record that the match conditions of the topic's routes compare. It is set
	// only if no route takes the record.
	Compared []string
}

// Deriver derives keys for one goroutine; it reuses its buffers.
type Deriver struct {
	routes *Routes
	in     *Input
	plan   *topicPlan
	hasher
	payload

	form     []byte // the JSON of a form
	buf      []byte // the bytes to hash, where they are not the record's own
	scope    []byte // buf, or the record's own bytes, behind the name of the tenant
	routing  []byte // order: the bytes without the bucket
	adjacent []byte // order: the bytes with another bucket
	bucket   bucket // order
	details  []byte // the bytes of the fingerprint
	hashed   []byte // what was hashed
	// text has the unescaped and normalised texts of the current record, one after the other. Results alias
	// text, so it is only appended to until the next record begins.
	text       []byte
	digits     []byte // scratch of parseDecimal
	shortest   []byte // scratch of checkNumber
	projector  projector
	formats    formats.Decoder
	transcoded []byte            // the record's value as JSON, if the topic has another format
	schemas    Schemas           // nil: there are no schemas
	pending    formats.Reference // the record's schema, with isPending
	isPending  bool              // the record's schema was not read yet
	tenant     []byte            // of the record; nil for none
	names      map[string]string // of tenants, see nameOf
	skipped    []fault           // why the sources tried so far yielded no key
	fault      fault             // why the record is malformed
}

// fault is a part of the record and the cause why that part cannot be used. The two are joined only in String,
// when somebody needs the text: on many routes the first of two sources is often absent, and to make the text
// each time would cost time.
type fault struct{ part, cause string }

func (f fault) String() string { return strings.TrimSpace(f.part + ": " + f.cause) }

// status is the result of a source.
type status uint8

const (
	found status = iota
	none         // the source yields no key; d.skipped has the cause
	bad          // the record is malformed; d.fault has the cause
)

// NewDeriver returns a deriver. Routes with secret: true use the secret for their hashes (HMAC). NewDeriver
// panics if NeedsSecret and secret is empty, because without a secret anyone could compute the keys.
func (rs *Routes) NewDeriver(secret []byte) *Deriver {
	if rs.NeedsSecret() && len(secret) == 0 {
		panic("dedup: a route has secret: true, but there is no secret")
	}
	d := &Deriver{routes: rs, hasher: newHasher(secret)}
	d.found = make([][]byte, rs.slots)
	return d
}

// Derive selects the record's route and derives its dedup key and event time.
func (d *Deriver) Derive(in *Input) (out Derived) {
	d.DeriveTo(&out, in)
	return out
}

// DeriveTo is Derive, but it overwrites out with the result instead of returning the result. This saves a copy:
// a Derived is as long as three cache lines.
func (d *Deriver) DeriveTo(out *Derived, in *Input) {
	d.begin(in)
	*out = Derived{Time: in.Timestamp}
	if d.plan == nil {
		out.Finding, out.Reason = Malformed, shorten("no route names topic "+in.Topic+"; the routes name "+strings.Join(slices.Sorted(maps.Keys(d.routes.byTopic)), ", "))
		return
	}
	route, st := d.selectRoute()
	out.Route = route
	unmatched := st != found
	if st == found {
		st = d.deriveTenant(route, out)
	}
	if st == found {
		st = d.deriveKey(route, out)
	}
	if st == found {
		st = d.eventTime(route, &out.Time)
	}
	if out.HasAdjacent {
		out.Shift = d.bucket.at - out.Time
	}
	if st == found && (route.Fingerprint != nil || route.Claim.Request != nil) {
		st = d.deriveDetails(route, out)
	}
	switch st {
	case found:
	case none:
		out.Finding, out.Reason = KeyMissing, shorten("no key: "+joinFaults(d.skipped))
	case bad:
		*out = Derived{Route: route, Finding: Malformed, Time: in.Timestamp, Reason: shorten(d.fault.String())}
	}
	out.Unmatched = unmatched
	if d.isPending {
		*out = Derived{Route: route, Finding: SchemaPending, Format: d.plan.format, Schema: d.pending, Time: in.Timestamp, Reason: out.Reason}
		return
	}
	if out.Finding != Keyed && route.Claim.Request != nil {
		out.Request = d.request(route.Claim.Request) // the sender of this record gets a reply, too
	}
}

// Explain does what Derive does, and also returns how the key was derived, with the hashed bytes.
func (d *Deriver) Explain(in *Input) (Derived, Explanation) {
	out := d.Derive(in)
	var ex Explanation
	for _, f := range d.skipped {
		ex.Skipped = append(ex.Skipped, shorten(f.String()))
	}
	if d.fault == faultUnmatched {
		ex.Compared = d.compared()
	}
	if out.Finding == Keyed {
		ex.Hashed = slices.Clone(d.hashed)
		ex.HMAC = out.Route.Secret
		for i := range out.Route.Keys {
			if s := &out.Route.Keys[i]; s.text == out.Source {
				ex.Kind = string(kinds[s.kind].makes)
				break
			}
		}
	}
	return out, ex
}

// scratchBytesMax is the largest buffer that a deriver keeps for the next record, so that one huge record
// does not occupy memory for good.
const scratchBytesMax = 1 << 20

// begin prepares the deriver for a record: it empties the buffers and drops the results of the record before.
func (d *Deriver) begin(in *Input) {
	for _, b := range [...]*[]byte{&d.form, &d.buf, &d.scope, &d.routing, &d.adjacent, &d.details, &d.text, &d.digits, &d.shortest, &d.name, &d.transcoded} {
		if cap(*b) > scratchBytesMax {
			*b = nil
		}
		*b = (*b)[:0]
	}
	d.in = in
	if d.plan == nil || d.plan.topic != in.Topic { // most often the previous record was of the same topic
		d.plan = d.routes.byTopic[in.Topic]
	}
	d.skipped, d.fault, d.hashed, d.isPending = d.skipped[:0], fault{}, nil, false
	if d.plan != nil {
		d.open(in.Value, d.plan.wanted)
	}
}

// Release drops the deriver's references to the last record. Without a call of Release that record, and with it
// the whole batch in which it arrived, stays in memory until the next record.
func (d *Deriver) Release() {
	d.in, d.hashed, d.tenant, d.fault = nil, nil, nil, fault{}
	clear(d.skipped[:cap(d.skipped)])
	d.payload.release()
}

// deriveKey tries the sources in order and sets the key and the digests.
func (d *Deriver) deriveKey(r *Route, out *Derived) status {
	for i := range r.Keys {
		s := &r.Keys[i]
		d.buf, d.routing = d.buf[:0], d.routing[:0]
		switch kinds[s.kind].derive(d, s, r.MaxKeyBytes) {
		case none:
			d.fault = fault{} // if a part is missing, the source yields no key, whatever fault another part has
			continue
		case bad:
			if !d.isText() || !slices.ContainsFunc(r.Keys[i+1:], func(s Source) bool { return s.kind == sourceRaw }) {
				return bad
			}
			d.skipped = append(d.skipped, d.fault)
			continue
		case found:
		}
		out.Source = s.text
		d.hashed = d.scoped(r, d.hashed)
		out.Key = d.key(r.Secret, d.hashed)
		if !r.Secret {
			out.Hashed = partOf(d.in.Value, d.hashed)
		}
		out.Digest = s.digest(&out.Key)
		out.Routing = out.Digest
		if len(d.routing) > 0 {
			stable := d.key(r.Secret, d.scoped(r, d.routing))
			out.Routing = s.digest(&stable)
		}
		if s.order != nil && s.order.AdjacentBuckets {
			out.Adjacent, out.HasAdjacent = d.adjacentDigests(r, s), true
		}
		return found
	}
	return none
}

// isText reports whether a payload that could not be read as JSON is a text: it is UTF-8 and does not begin as
// an object or array, with or without a byte order mark. If the source raw is in the list behind other sources,
// it makes a key of such a text. It makes no key of damaged JSON, because that would hide the damage.
func (d *Deriver) isText() bool {
	if d.state != payloadBroken || d.plan.format.Format != formats.JSON || d.plan.form {
		return false
	}
	first := bytes.TrimLeft(bytes.TrimPrefix(d.in.Value, []byte("\xef\xbb\xbf")), " \t\r\n")
	return len(first) > 0 && first[0] != '{' && first[0] != '[' && utf8.Valid(first)
}

// isEncoded reports whether the value has another format than JSON. If the schema of a value without bytes is
// known, the value is a whole message, all of whose fields have their defaults.
func (d *Deriver) isEncoded() bool {
	f := d.plan.format
	if len(d.json) > 0 {
		return f.Format != formats.JSON
	}
	return d.json != nil && f.Format.NeedsSchema() && (!f.FromRegistry() || d.header(formats.ValueSchemaHeader) != nil)
}

// readPayload reads the payload once. It returns false for a malformed one.
func (d *Deriver) readPayload() bool {
	if d.plan.form && d.state == payloadUnread {
		d.readForm()
	}
	if d.state == payloadUnread && d.isEncoded() && !d.in.AsJSON && !d.asJSON() {
		d.fault = fault{part: "payload", cause: d.broken}
		return false
	}
	if d.read(d.plan.tree) {
		return true
	}
	d.fault = fault{part: "payload", cause: d.broken}
	return false
}

// header returns a header's value; nil without the header.
func (d *Deriver) header(name string) []byte {
	if d.in.Headers == nil {
		return nil
	}
	value, ok := d.in.Headers.Header(name)
	if !ok {
		return nil
	}
	return value
}

// skip records why a source yields no key.
func (d *Deriver) skip(part, cause string) status {
	d.skipped = append(d.skipped, fault{part, cause})
	return none
}

// fail records the first cause why the record is malformed.
func (d *Deriver) fail(part, cause string) status {
	if d.fault == (fault{}) {
		d.fault = fault{part, cause}
	}
	return bad
}

func joinFaults(list []fault) string {
	texts := make([]string, len(list))
	for i, f := range list {
		texts[i] = f.String()
	}
	return strings.Join(texts, "; ")
}

func reasonKeyLimit(size, limit int) string {
	return fmt.Sprintf("%d bytes are over the key limit of %d", size, limit)
}
