package rules

import "bytes"

// Causes why a source yields no key.
const (
	causeAbsent = "absent"
	causeNull   = "null"
	causeEmpty  = "empty"
)

func emptyCause(b []byte) string {
	if b == nil {
		return causeAbsent
	}
	return causeEmpty
}

// slotIn returns the raw JSON value of the field in the deriver's payload; nil if
// it is absent.
func (f *Field) slotIn(d *Deriver) []byte { return d.found[f.slot] }

// requireValue returns the raw JSON value of a field. It skips the source if the
// field is absent or null.
func (d *Deriver) requireValue(f *Field) ([]byte, status) {
	raw := f.slotIn(d)
	if len(raw) == 0 {
		return nil, d.skip(f.label, causeAbsent)
	}
	if raw[0] == 'n' {
		return nil, d.skip(f.label, causeNull)
	}
	return raw, found
}

// isAbsent reports whether a field is absent or null.
func isAbsent(raw []byte) bool { return len(raw) == 0 || raw[0] == 'n' }

// id returns a field's value, normalised and then at most limit bytes long.
func (d *Deriver) id(f *Field, limit int) (scalar, status) {
	s, st := d.scalar(f)
	if st != found {
		return s, st
	}
	return d.idFrom(f, s, limit)
}

// idFrom normalises an id. It is malformed if more than limit bytes are left.
func (d *Deriver) idFrom(f *Field, s scalar, limit int) (scalar, status) {
	s, st := d.finish(f, s)
	if st == found && len(s.text) > limit {
		return s, d.fail(f.label, reasonKeyLimit(len(s.text), limit))
	}
	return s, st
}

// scalar returns a field's value. It skips the source if the value is empty.
func (d *Deriver) scalar(f *Field) (scalar, status) {
	s, st := d.value(f)
	if st == found && len(s.text) == 0 {
		return s, d.skip(f.label, causeEmpty)
	}
	return s, st
}

// value returns a field's value, which must be a JSON string or number.
func (d *Deriver) value(f *Field) (scalar, status) {
	if !d.readPayload() {
		return scalar{}, bad
	}
	raw, st := d.requireValue(f)
	if st != found {
		return scalar{}, st
	}
	switch c := raw[0]; {
	case c == '"':
		return scalar{text: d.string(raw)}, found
	case c == '-' || isDigit(c):
		return scalar{text: raw, number: true}, found
	case c == '{':
		return scalar{}, d.fail(f.label, "want a string or number, found an object")
	case c == '[':
		return scalar{}, d.fail(f.label, "want a string or number, found an array")
	}
	return scalar{}, d.fail(f.label, "want a string or number, found a boolean")
}

// finish does what write does, for an id: if the id is then empty, it skips the source.
func (d *Deriver) finish(f *Field, s scalar) (scalar, status) {
	s, st := d.write(f, s)
	if st == found && len(s.text) == 0 {
		return s, d.skip(f.label, causeEmpty)
	}
	return s, st
}

// write applies a field's normalisers and writes a number in RFC 8785 form.
func (d *Deriver) write(f *Field, s scalar) (scalar, status) {
	s, reason := d.normalise(s, f.Normalise)
	if reason != "" {
		return s, d.fail(f.label, reason)
	}
	if s.number {
		mark := len(d.text)
		if d.text, reason = d.appendNumber(d.text, s.text); reason != "" {
			return s, d.fail(f.label, reason)
		}
		s.text = d.text[mark:]
	}
	return s, found
}

// string returns the text of a JSON string, unescaped. It aliases the record or
// the tail of d.text.
func (d *Deriver) string(quoted []byte) []byte {
	if bytes.IndexByte(quoted, '\\') < 0 {
		return quoted[1 : len(quoted)-1]
	}
	mark := len(d.text)
	d.text = appendUnquoted(d.text, quoted)
	return d.text[mark:]
}
