package rules

import (
	"encoding/binary"
	"hash/crc32"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v4"
)

// A Detail is one part of a fingerprint: the value of the first of its fields that is present, which means that
// the field is neither null nor an empty string.
type Detail struct {
	Fields []Field
}

// String returns the paths of the detail.
func (x *Detail) String() string {
	paths := make([]string, len(x.Fields))
	for i := range x.Fields {
		paths[i] = x.Fields[i].Path.Text
	}
	return strings.Join(paths, ", else ")
}

// Describe is String with the normalisers of each path.
func (x *Detail) Describe() string {
	paths := make([]string, len(x.Fields))
	for i := range x.Fields {
		paths[i] = x.Fields[i].Path.Text
		if steps := x.Fields[i].Normalise; len(steps) > 0 {
			paths[i] += " (" + StepsText(steps) + ")"
		}
	}
	return strings.Join(paths, ", else ")
}

// fingerprintDraft is a fingerprint while the decoder reads it.
type fingerprintDraft struct {
	details   []Detail
	normalise *yaml.Node
	at        string // place of normalise in the file
}

// fingerprintFields is the format of a fingerprint with normalisers.
var fingerprintFields = []fieldOf[fingerprintDraft]{
	{"fields", func(d *decoder, x *fingerprintDraft, n *yaml.Node, at string) { x.details = d.details(n, at) }},
	{"normalise", func(_ *decoder, x *fingerprintDraft, n *yaml.Node, at string) { x.normalise, x.at = n, at }},
}

// fingerprint reads a fingerprint: a list, or an object with the list and normalisers.
func (d *decoder) fingerprint(n *yaml.Node, at string) []Detail {
	if n.Kind != yaml.MappingNode {
		return d.details(n, at)
	}
	var x fingerprintDraft
	d.require(n, at, decodeObject(d, n, at, &x, fingerprintFields), "fields")
	if x.normalise == nil || len(x.details) == 0 {
		return x.details
	}
	byPath := map[string][]*Field{}
	var fields []fieldOf[fingerprintDraft]
	for i := range x.details {
		for k := range x.details[i].Fields {
			f := &x.details[i].Fields[k]
			path := f.Path.Text
			if byPath[path] = append(byPath[path], f); len(byPath[path]) > 1 {
				continue
			}
			fields = append(fields, fieldOf[fingerprintDraft]{path, func(d *decoder, _ *fingerprintDraft, n *yaml.Node, at string) {
				steps := d.steps(n, at)
				for _, f := range byPath[path] {
					f.Normalise = steps
				}
			}})
		}
	}
	decodeObject(d, x.normalise, x.at, &x, fields)
	return x.details
}

// details reads the list of a fingerprint: paths, and lists of paths.
func (d *decoder) details(n *yaml.Node, at string) (details []Detail) {
	d.list(n, at, func(n *yaml.Node, at string) {
		var x Detail
		if n.Kind == yaml.SequenceNode {
			for _, p := range d.paths(n, at, false) {
				x.Fields = append(x.Fields, newField(p))
			}
		} else {
			x.Fields = []Field{d.field(n, at)}
		}
		if slices.ContainsFunc(details, func(y Detail) bool { return y.String() == x.String() }) {
			d.fail(n, at, "path %q is listed twice", x.String())
		}
		details = append(details, x)
	})
	return details
}

// value returns the field that counts and its raw JSON value, or null if no field is present. It also returns
// the field's index, because the same value in two different fields of the list is not the same detail.
func (x *Detail) value(d *Deriver) (f *Field, at int, raw []byte) {
	for i := range x.Fields {
		f, raw = &x.Fields[i], x.Fields[i].slotIn(d)
		if len(x.Fields) == 1 && len(raw) > 0 || len(raw) > 0 && raw[0] != 'n' && string(raw) != `""` {
			return f, i, raw
		}
	}
	return f, 0, jsonNull
}

// deriveDetails sets the fingerprint and the request id, on the routes that have them.
func (d *Deriver) deriveDetails(r *Route, out *Derived) status {
	if r.Fingerprint != nil {
		if st := d.fingerprint(r); st != found {
			return st
		}
		sum := d.key(r.Secret, d.details)
		out.Fingerprint = binary.LittleEndian.Uint64(sum[:8])&^0xff | uint64(r.fingerprintRule)
	}
	if r.Claim.Request != nil {
		out.Request = d.request(r.Claim.Request)
	}
	return found
}

// ruleOf returns the lowest byte of a route's fingerprints, 1 to 255. It identifies the list of details, so
// that fingerprints of different lists are never compared: otherwise duplicates would become collisions when an
// operator changes the list.
func ruleOf(r *Route) uint8 {
	rule := "secret=" + strconv.FormatBool(r.Secret)
	for i := range r.Fingerprint {
		rule += "," + strconv.Quote(r.Fingerprint[i].Describe())
	}
	return uint8(crc32.ChecksumIEEE([]byte(rule))%255) + 1
}

// fingerprint appends to d.details the details of the record, normalised and as canonical JSON, with null for
// an absent detail.
func (d *Deriver) fingerprint(r *Route) status {
	if !d.readPayload() {
		return bad
	}
	for i := range r.Fingerprint {
		f, at, raw := r.Fingerprint[i].value(d)
		if at > 0 {
			d.details = appendNetstring(d.details, []byte(f.label))
		}
		if len(f.Normalise) > 0 && len(raw) > 0 && raw[0] != 'n' {
			text, st := d.normalised(f)
			if st != found {
				d.fault.part = "fingerprint " + d.fault.part
				return st
			}
			d.details = appendNetstring(d.details, text)
			continue
		}
		mark := len(d.text)
		var reason string
		if d.text, reason = d.appendCanonical(d.text, raw); reason != "" {
			return d.fail("fingerprint "+f.label, reason)
		}
		d.details = appendNetstring(d.details, d.text[mark:])
	}
	return found
}

var jsonNull = []byte("null")

// validateCollision refuses a collision policy with which events would be dropped without a trace.
func (d *decoder) validateCollision(r *draft) {
	if r.Collision == Reject && r.Mode != ClaimMode {
		d.failAt(r, "collision", "reject belongs to mode: claim, because a sender in plain mode gets no reply: write dead_letter")
	}
}
