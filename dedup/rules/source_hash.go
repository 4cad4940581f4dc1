package rules

import (
	"slices"
	"unicode/utf16"

	"github.com/go-json-experiment/json/jsontext"
)

// member is one member of the object that the hash source builds.
type member struct {
	field *Field
	name  []byte // quoted, with the colon
}

// completeHash puts the fields into canonical order: RFC 8785 sorts names by
// their UTF-16 code units (section 3.2.3).
func completeHash(s *sourceDraft) {
	completeFields(s)
	s.members = make([]member, len(s.fields))
	for i := range s.fields {
		name, _ := jsontext.AppendQuote(nil, s.fields[i].partName()) // the text is valid UTF-8, because YAML requires it
		s.members[i] = member{field: &s.fields[i], name: append(name, ':')}
	}
	slices.SortFunc(s.members, func(a, b member) int {
		return slices.Compare(utf16.Encode([]rune(a.field.partName())), utf16.Encode([]rune(b.field.partName())))
	})
}

// ruleOfHash lists the fields in canonical order, because their order in the file
// has no effect on the key.
func ruleOfHash(s *Source) []string {
	var args []string
	for _, m := range s.members {
		args = append(args, m.field.partRule())
	}
	return args
}

// hashKey writes the canonical object of the listed fields to d.buf.
func (d *Deriver) hashKey(s *Source, _ int) status {
	if len(s.names) == 0 || s.readsPart(ofPayload) {
		if !d.readPayload() {
			return bad
		}
	}
	d.buf = append(d.buf, '{')
	for i := range s.members {
		m := &s.members[i]
		if i > 0 {
			d.buf = append(d.buf, ',')
		}
		d.buf = append(d.buf, m.name...)
		if m.field.part != ofPayload {
			if st := d.hashPart(m.field); st != found {
				return st
			}
			continue
		}
		raw, st := d.requireValue(m.field)
		if st != found {
			return st
		}
		if st := d.hashValue(m.field, raw); st != found {
			return st
		}
	}
	d.buf = append(d.buf, '}')
	d.hashed = d.buf
	return found
}

// hashValue appends a field of the payload as canonical JSON.
func (d *Deriver) hashValue(f *Field, raw []byte) status {
	if len(f.Normalise) > 0 {
		text, st := d.normalised(f)
		d.buf = append(d.buf, text...)
		return st
	}
	var reason string
	if d.buf, reason = d.appendCanonical(d.buf, raw); reason != "" {
		return d.fail(f.label, reason)
	}
	return found
}

// normalised returns a field's value, normalised, as canonical JSON: a string, or a number
// if the normalisers left one. It aliases the tail of d.text.
func (d *Deriver) normalised(f *Field) ([]byte, status) {
	s, st := d.value(f)
	if st != found {
		return nil, st
	}
	if s, st = d.write(f, s); st != found || s.number {
		return s.text, st
	}
	mark := len(d.text)
	d.text = appendQuoted(d.text, s.text)
	return d.text[mark:], found
}
