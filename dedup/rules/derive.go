package rules

import "bytes"

// Causes for which a source does not yield.
const (
	causeAbsent = "absent"
	causeNull   = "null"
	causeEmpty  = "empty"
)

// derive sets d.hashed to what the source hashes.
func (d *Deriver) derive(s *Source, limit int) status {
	switch s.kind {
	case sourceRecordKey:
		return d.bytesKey(&s.fields[0], d.in.Key, limit)
	case sourceHeader:
		return d.bytesKey(&s.fields[0], d.header(s.header), limit)
	case sourceField:
		return d.fieldKey(&s.fields[0], limit)
	case sourceComposite:
		return d.fieldsKey(s.fields, limit)
	case sourceHash:
		return d.hashKey(s)
	case sourcePayload:
		return d.payloadKey(s)
	case sourceRaw:
		if len(d.in.Value) == 0 {
			return d.skip("raw payload", emptyCause(d.in.Value))
		}
		d.hashed = d.in.Value
		return found
	case sourceCloudEvent:
		return d.cloudEventKey(s, limit)
	case sourceOrder:
		return d.orderKey(s.order, limit)
	}
	panic("dedup: no such source")
}

func emptyCause(b []byte) string {
	if b == nil {
		return causeAbsent
	}
	return causeEmpty
}

// bytesKey is the source of the record key and of headers: any bytes.
func (d *Deriver) bytesKey(f *Field, value []byte, limit int) status {
	if len(value) == 0 {
		return d.skip(f.label, emptyCause(value))
	}
	if len(value) > limit {
		return d.fail(f.label, reasonKeyLimit(len(value), limit))
	}
	s, st := d.finish(f, scalar{text: value})
	d.hashed = s.text
	return st
}

// fieldKey is the source of one payload field.
func (d *Deriver) fieldKey(f *Field, limit int) status {
	if !d.readPayload() {
		return bad
	}
	s, st := d.id(f, limit)
	d.hashed = s.text
	return st
}

// fieldsKey is the composite of several payload fields.
func (d *Deriver) fieldsKey(fields []Field, limit int) status {
	if !d.readPayload() {
		return bad
	}
	size := 0
	for i := range fields {
		s, st := d.id(&fields[i], limit)
		if st != found {
			return st
		}
		if size += len(s.text); size > limit {
			return d.fail(fields[i].label, "up to here "+reasonKeyLimit(size, limit))
		}
		d.buf = appendNetstring(d.buf, s.text)
	}
	d.hashed = d.buf
	return found
}

// hashKey builds the canonical object of the listed fields.
func (d *Deriver) hashKey(s *Source) status {
	if !d.readPayload() {
		return bad
	}
	d.buf = append(d.buf, '{')
	for i := range s.members {
		m := &s.members[i]
		if i > 0 {
			d.buf = append(d.buf, ',')
		}
		d.buf = append(d.buf, m.name...)
		raw, st := d.present(m.field)
		if st != found {
			return st
		}
		var reason string
		if len(m.field.Normalise) == 0 {
			if d.buf, reason = d.appendCanonical(d.buf, raw); reason != "" {
				return d.fail(m.field.label, reason)
			}
		} else if st := d.hashNormalised(m.field); st != found {
			return st
		}
	}
	d.buf = append(d.buf, '}')
	d.hashed = d.buf
	return found
}

// hashNormalised appends a normalised field as canonical JSON: a string, or a
// number where it still is one.
func (d *Deriver) hashNormalised(f *Field) status {
	s, st := d.value(f)
	if st != found {
		return st
	}
	if s, st = d.write(f, s); st != found {
		return st
	}
	if s.number {
		d.buf = append(d.buf, s.text...)
	} else {
		d.buf = appendQuoted(d.buf, s.text)
	}
	return found
}

// payloadKey is the canonical JSON of what include and exclude leave.
func (d *Deriver) payloadKey(s *Source) status {
	if !d.readPayload() {
		return bad
	}
	raw := d.found[s.root]
	if s.project != nil {
		var hit bool
		if d.text, hit = s.project.append(d.text, raw); !hit {
			return d.skip(s.text, "nothing of it is there")
		}
		raw = d.text
	}
	var reason string
	if d.buf, reason = d.appendCanonical(d.buf, raw); reason != "" {
		return d.fail("payload", reason)
	}
	d.hashed = d.buf
	return found
}

// slotIn is the raw JSON value of the field in the deriver's payload, nil where
// it is absent.
func (f *Field) slotIn(d *Deriver) []byte { return d.found[f.slot] }

// present is the raw JSON value of a field, which must be there and not null.
func (d *Deriver) present(f *Field) ([]byte, status) {
	raw := f.slotIn(d)
	if len(raw) == 0 {
		return nil, d.skip(f.label, causeAbsent)
	}
	if raw[0] == 'n' {
		return nil, d.skip(f.label, causeNull)
	}
	return raw, found
}

// id is a scalar with its normalisers applied and its length checked.
func (d *Deriver) id(f *Field, limit int) (scalar, status) {
	s, st := d.scalar(f)
	if st != found {
		return s, st
	}
	if len(s.text) > limit {
		return s, d.fail(f.label, reasonKeyLimit(len(s.text), limit))
	}
	return d.finish(f, s)
}

// scalar takes a string that is not empty or a number from the payload.
func (d *Deriver) scalar(f *Field) (scalar, status) {
	s, st := d.value(f)
	if st == found && len(s.text) == 0 {
		return s, d.skip(f.label, causeEmpty)
	}
	return s, st
}

// value takes a string or number from the payload.
func (d *Deriver) value(f *Field) (scalar, status) {
	if !d.readPayload() {
		return scalar{}, bad
	}
	raw, st := d.present(f)
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

// finish makes an id: normalisers applied, a number in RFC 8785 form, not empty.
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
