package rules

import (
	"fmt"
	"slices"
	"strings"

	"oncebus/dedup"
)

// HeaderSource gives a record's headers. Kafka allows a name to occur more than
// once: the first occurrence counts, so that a header appended on the way
// cannot change a record's key.
type HeaderSource interface {
	Header(name string) (value []byte, ok bool)
}

// Input is a record as key derivation sees it. Nothing in it is changed, and
// nothing that is returned refers to it; it must stay as it is until Derive returns.
type Input struct {
	Topic      string
	Key, Value []byte
	Headers    HeaderSource // nil: no headers
	Timestamp  int64        // the record's, Unix milliseconds
}

// Finding is what key derivation found.
type Finding uint8

// Findings.
const (
	Keyed      Finding = iota // a source yielded a key
	KeyMissing                // no source yields: verdict MissingKey
	Malformed                 // verdict Invalid
)

var findingNames = [...]string{"keyed", "missing_key", "malformed"}

// String returns the finding in lower case.
func (f Finding) String() string { return findingNames[f] }

// Derived is what key derivation says about one record. It holds no reference
// to the record or the deriver.
type Derived struct {
	// Route takes the record. Where no match holds it is the topic's first
	// route, with Malformed; nil only for a topic that no route names.
	Route   *Route
	Finding Finding
	Key     [32]byte     // the dedup key
	Digest  dedup.Digest // the state key
	// Routing is what the repartition hash is taken over: Digest, unless the
	// source has a moving part (the order key's bucket).
	Routing dedup.Digest
	// Near are the digests of the keys beside this one, of which an event less
	// than Route.NearStep away is the original; only with HasNear. Shift is the
	// order's own timestamp minus Time, in ms.
	Adjacent    [2]dedup.Digest
	HasAdjacent bool
	Shift       int64
	// Fingerprint is a digest of the details that must agree between copies; 0
	// where the route names none.
	Fingerprint uint64
	// Request is the sender's own id of the request, in claim mode; "" for none.
	Request string
	Time    int64  // event time, Unix milliseconds; the record's timestamp unless Keyed
	Source  string // the source that yielded the key, as in the file
	Reason  string // unless Keyed: names field and cause
}

// Explanation shows how a key came about, for people.
type Explanation struct {
	Hashed  []byte   // what the dedup key is the hash of
	HMAC    bool     // HMAC-SHA-256 with the secret, else SHA-256
	Kind    string   // id, composite, content or order
	State   []byte   // what the digest is the hash of
	Skipped []string // why earlier sources did not yield
}

// Deriver derives keys for one goroutine; it reuses its buffers.
type Deriver struct {
	routes *Routes
	in     *Input
	plan   *topicPlan
	hasher
	payload

	buf      []byte // the bytes to hash, where they are not the record's own
	routing  []byte // order: the bytes without the bucket
	adjacent []byte // order: the bytes with another bucket
	bucket   bucket // order
	details  []byte // the bytes of the fingerprint
	hashed   []byte // what was hashed
	// text holds unescaped and normalised texts of this record, one after the
	// other: nothing in it is overwritten before the next record.
	text     []byte
	digits   []byte // scratch of parseDecimal
	shortest []byte // scratch of checkNumber
	why      []why  // why the sources so far did not yield
	fault    why    // what makes the record malformed
}

// why names a thing and what is wrong with it. The parts are joined only when
// somebody reads them: an absent field is no rarity on the way to a fallback.
type why struct{ what, cause string }

func (w why) String() string { return strings.TrimSpace(w.what + ": " + w.cause) }

// status is how far a source came.
type status uint8

const (
	found status = iota
	none         // it does not yield; d.why says why
	bad          // the record is malformed; d.fault says why
)

// NewDeriver returns a deriver. The secret is used by routes with secret: true;
// it is an error of the caller to have one of those (NeedsSecret) and no
// secret, because keys anybody can compute would look like protected ones.
func (rs *Routes) NewDeriver(secret []byte) *Deriver {
	if rs.NeedsSecret() && len(secret) == 0 {
		panic("dedup: a route has secret: true, but there is no secret")
	}
	d := &Deriver{routes: rs, hasher: newHasher(secret)}
	d.found = make([][]byte, rs.slots)
	return d
}

// Derive picks the record's route and derives its dedup key and event time.
func (d *Deriver) Derive(in *Input) Derived {
	d.begin(in)
	out := Derived{Time: in.Timestamp}
	if d.plan == nil {
		out.Finding, out.Reason = Malformed, shorten("no route names topic "+in.Topic)
		return out
	}
	route, st := d.pick()
	out.Route = route
	if st == found {
		st = d.try(route, &out)
	}
	if st == found {
		st = d.eventTime(route, &out.Time)
	}
	if out.HasAdjacent {
		out.Shift = d.bucket.at - out.Time
	}
	if st == found && (route.Fingerprint != nil || route.Claim.Request != nil) {
		st = d.more(route, &out)
	}
	switch st {
	case found:
	case none:
		out.Finding, out.Reason = KeyMissing, shorten("no key: "+joinWhy(d.why))
	case bad:
		out = Derived{Route: route, Finding: Malformed, Time: in.Timestamp, Reason: shorten(d.fault.String())}
	}
	return out
}

// Explain is Derive with the bytes that were hashed.
func (d *Deriver) Explain(in *Input) (Derived, Explanation) {
	out := d.Derive(in)
	var ex Explanation
	for _, w := range d.why {
		ex.Skipped = append(ex.Skipped, shorten(w.String()))
	}
	if out.Finding == Keyed {
		ex.Hashed = slices.Clone(d.hashed)
		ex.HMAC = out.Route.Secret
		for i := range out.Route.Keys {
			if s := &out.Route.Keys[i]; s.text == out.Source {
				makes := kinds[s.kind].makes
				ex.Kind = string(makes)
				d.digest(out.Route.Secret, out.Route.Namespace, makes, &out.Key)
				break
			}
		}
		ex.State = slices.Clone(d.net)
	}
	return out, ex
}

// scratchBytesMax bounds what a deriver keeps between records: one huge record
// must not pin its size for ever.
const scratchBytesMax = 1 << 20

func (d *Deriver) begin(in *Input) {
	for _, b := range [...]*[]byte{&d.buf, &d.routing, &d.adjacent, &d.details, &d.text, &d.digits, &d.shortest, &d.name} {
		if cap(*b) > scratchBytesMax {
			*b = nil
		}
		*b = (*b)[:0]
	}
	d.in, d.plan = in, d.routes.byTopic[in.Topic]
	d.why, d.fault, d.hashed = d.why[:0], why{}, nil
	if d.plan != nil {
		d.open(in.Value, d.plan.wanted)
	}
}

// try goes through the sources and fills in key and digests.
func (d *Deriver) try(r *Route, out *Derived) status {
	for i := range r.Keys {
		s := &r.Keys[i]
		d.buf, d.routing = d.buf[:0], d.routing[:0]
		k := &kinds[s.kind]
		switch k.derive(d, s, r.MaxKeyBytes) {
		case none:
			continue
		case bad:
			return bad
		case found:
		}
		out.Source = s.text
		out.Key = d.key(r.Secret, d.hashed)
		out.Digest = d.digest(r.Secret, r.Namespace, k.makes, &out.Key)
		out.Routing = out.Digest
		if len(d.routing) > 0 {
			stable := d.key(r.Secret, d.routing)
			out.Routing = d.digest(r.Secret, r.Namespace, k.makes, &stable)
		}
		if s.order != nil && s.order.AdjacentBuckets {
			out.Adjacent, out.HasAdjacent = d.adjacentDigests(r), true
		}
		return found
	}
	return none
}

// readPayload makes the payload's pass. It returns false for a malformed one.
func (d *Deriver) readPayload() bool {
	if d.read(d.plan.tree) {
		return true
	}
	d.fault = why{what: "payload", cause: d.broken}
	return false
}

// header returns a header's value, nil where there is none.
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

// skip notes why a source does not yield.
func (d *Deriver) skip(what, cause string) status {
	d.why = append(d.why, why{what, cause})
	return none
}

// fail notes why the record is malformed.
func (d *Deriver) fail(what, cause string) status {
	d.fault = why{what, cause}
	return bad
}

func joinWhy(list []why) string {
	parts := make([]string, len(list))
	for i, w := range list {
		parts[i] = w.String()
	}
	return strings.Join(parts, "; ")
}

func reasonKeyLimit(size, limit int) string {
	return fmt.Sprintf("%d bytes are over the key limit of %d", size, limit)
}
