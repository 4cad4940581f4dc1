package rules

import (
	"encoding/binary"
	"hash/crc32"
	"strconv"
)

// deriveDetails sets the fingerprint and the request id, which only some routes
// have.
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

// ruleOf returns the lowest byte of a fingerprint, 1 to 255. It identifies the list
// of details, so that a changed list does not turn duplicates into collisions.
func ruleOf(r *Route) uint8 {
	rule := "secret=" + strconv.FormatBool(r.Secret)
	for i := range r.Fingerprint {
		rule += "," + strconv.Quote(r.Fingerprint[i].Path.Text)
	}
	return uint8(crc32.ChecksumIEEE([]byte(rule))%255) + 1
}

// fingerprint appends the canonical JSON of the details to d.details, and null for
// an absent one.
func (d *Deriver) fingerprint(r *Route) status {
	if !d.readPayload() {
		return bad
	}
	for i := range r.Fingerprint {
		f := &r.Fingerprint[i]
		raw := f.slotIn(d)
		if len(raw) == 0 {
			raw = jsonNull
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
