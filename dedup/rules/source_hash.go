package rules

import (
	"slices"
	"unicode/utf16"

	"github.com/go-json-experiment/json/jsontext"
	"go.yaml.in/yaml/v4"
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

// optionalFields reads which fields of hash may be absent. At least one field stays required, so that a
// payload without any of the fields has no key.
func (d *decoder) optionalFields(s *sourceDraft, n *yaml.Node, at string) {
	if s.kind != sourceHash {
		d.fail(n, at, "%s takes no optional fields: hash does", kinds[s.kind].name)
		return
	}
	required := len(s.fields)
	paths := d.paths(n, at, false)
	for _, path := range paths {
		i := slices.IndexFunc(s.fields, func(f Field) bool { return f.part == ofPayload && f.Path.Text == path.Text })
		if i < 0 {
			d.fail(n, at, "path %q is not one of hash: add it there", path.Text)
			continue
		}
		s.fields[i].optional = true
		required--
	}
	if required == 0 {
		d.fail(n, at, "every path is optional, so that events without any would have one key: leave out those that each event has")
	}
	s.text += ", optional: " + textOf(paths)
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

// hashKey writes the canonical object of the listed fields to d.buf. If one part is missing and another part
// cannot be read, the source yields no key, and the record is not malformed; fieldsKey has the same rule.
func (d *Deriver) hashKey(s *Source, _ int) status {
	if len(s.names) == 0 || s.readsPart(ofPayload) {
		if !d.readPayload() {
			return bad
		}
	}
	all := found
	separator := byte('{')
	for i := range s.members {
		m := &s.members[i]
		if m.field.optional && isAbsent(m.field.slotIn(d)) {
			continue
		}
		d.buf, separator = append(d.buf, separator), ','
		d.buf = append(d.buf, m.name...)
		st := d.hashMember(m.field)
		if st == none {
			return none
		}
		all = max(all, st)
	}
	d.buf = append(d.buf, '}')
	d.hashed = d.buf
	return all
}

// hashMember appends the value of one member of the object.
func (d *Deriver) hashMember(f *Field) status {
	if f.part != ofPayload {
		return d.hashPart(f)
	}
	raw, st := d.requireValue(f)
	switch {
	case st != found:
		return st
	case len(f.Normalise) > 0:
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

// normalised returns a field's normalised value as canonical JSON: a string, or a number if the normalisers
// left a number. The result aliases the tail of d.text.
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
