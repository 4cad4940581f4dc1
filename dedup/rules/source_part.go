package rules

import (
	"fmt"
	"slices"
	"strconv"
	"unicode/utf8"

	"go.yaml.in/yaml/v4"
)

// fieldPart is the part of a record in which a field of the sources fields and hash is.
type fieldPart uint8

const (
	ofPayload fieldPart = iota
	ofHeader
	ofRecordKey
	ofTopic
	ofTenant
)

var fieldPartNames = [...]string{"field", "header", "record_key", "topic", "tenant"}

// partDraft is an element of fields or hash that is not a path, while the decoder reads the element.
type partDraft struct {
	Field
	named int // how many parts the element names: must be one
}

// partFields lists the fields of an element that is not a path.
var partFields = []fieldOf[partDraft]{
	{"header", func(d *decoder, x *partDraft, n *yaml.Node, at string) {
		x.header, _ = d.text(n, at)
		d.refuseOwnHeader(n, at, x.header)
		x.names(ofHeader)
	}},
	{"record_key", func(d *decoder, x *partDraft, n *yaml.Node, at string) { readFlag(d, nil, n, at); x.names(ofRecordKey) }},
	{"topic", func(d *decoder, x *partDraft, n *yaml.Node, at string) { readFlag(d, nil, n, at); x.names(ofTopic) }},
	{"tenant", func(d *decoder, x *partDraft, n *yaml.Node, at string) { readFlag(d, nil, n, at); x.names(ofTenant) }},
	{"normalise", func(d *decoder, x *partDraft, n *yaml.Node, at string) { x.Normalise = d.steps(n, at) }},
}

func (x *partDraft) names(part fieldPart) { x.part, x.named = part, x.named+1 }

// part reads an element of fields or hash that is an object.
func (d *decoder) part(n *yaml.Node, at string) (Field, bool) {
	for i := 0; i+1 < len(n.Content); i += 2 {
		if n.Content[i].Value == "field" {
			d.fail(n, at, "want the path alone, as a text of the list: %s, with its steps in normalise of the source", n.Content[i+1].Value)
			return Field{}, false
		}
	}
	before := len(d.mistakes)
	var x partDraft
	if decodeObject(d, n, at, &x, partFields) != nil && x.named != 1 {
		d.fail(n, at, "want exactly one of header, record_key, topic and tenant, found %d", x.named)
	}
	x.label, x.slot = fieldPartNames[x.part], -1
	switch x.part {
	case ofHeader:
		x.label += " " + x.header
	case ofRecordKey:
		x.label = "record key"
	case ofPayload, ofTopic, ofTenant:
	}
	return x.Field, len(d.mistakes) == before
}

// partText returns the field as it is written in the routes file.
func (f *Field) partText() string {
	switch f.part {
	case ofPayload:
		return f.Path.Text
	case ofHeader:
		return "{header: " + f.header + "}"
	case ofRecordKey, ofTopic, ofTenant:
	}
	return "{" + fieldPartNames[f.part] + ": true}"
}

// describe names the field in the text of a mistake.
func (f *Field) describe() string {
	if f.part == ofPayload {
		return fmt.Sprintf("path %q", f.Path.Text)
	}
	return f.partText()
}

// partRule returns the field as part of the key rule. A path has quotes there, so no other part looks like a
// path.
func (f *Field) partRule() string {
	switch f.part {
	case ofPayload:
		return strconv.Quote(f.Path.Text) + f.rule()
	case ofHeader:
		return "header(" + strconv.Quote(f.header) + ")" + f.rule()
	case ofRecordKey, ofTopic, ofTenant:
	}
	return fieldPartNames[f.part] + "()" + f.rule()
}

// partName returns the name of the field among the hashed bytes. The name of a part that is not a path begins
// with a dot. No path begins with a dot, so the names differ.
func (f *Field) partName() string {
	switch f.part {
	case ofPayload:
		return f.Path.Text
	case ofHeader:
		return "." + fieldPartNames[f.part] + ":" + f.header
	case ofRecordKey, ofTopic, ofTenant:
	}
	return "." + fieldPartNames[f.part]
}

// hasParts reports whether a source reads parts that are not paths. If it does, its hashed bytes contain the
// name of every part.
func hasParts(fields []Field) bool {
	return slices.ContainsFunc(fields, func(f Field) bool { return f.part != ofPayload })
}

// readsPart reports whether the source reads that part of a record as one of its fields.
func (s *Source) readsPart(part fieldPart) bool {
	return (s.kind == sourceComposite || s.kind == sourceHash) && slices.ContainsFunc(s.fields, func(f Field) bool { return f.part == part })
}

// headers returns the headers that the source reads by name.
func (s *Source) headers() (names []string) {
	if s.kind == sourceHeader {
		return []string{s.header}
	}
	for i := range s.fields {
		if s.fields[i].part == ofHeader {
			names = append(names, s.fields[i].header)
		}
	}
	return names
}

// partBytes returns the bytes of a part that is no path; nil if it is missing.
func (d *Deriver) partBytes(f *Field) []byte {
	switch f.part {
	case ofHeader:
		return d.header(f.header)
	case ofRecordKey:
		return d.in.Key
	case ofTopic:
		return d.plan.name
	case ofTenant:
		return d.tenant
	case ofPayload:
	}
	return nil
}

// idOf returns the id of a field of the source fields, normalised and at most limit bytes long.
func (d *Deriver) idOf(f *Field, limit int) (scalar, status) {
	if f.part == ofPayload {
		return d.id(f, limit)
	}
	value := d.partBytes(f)
	if len(value) == 0 {
		return scalar{}, d.skip(f.label, emptyCause(value))
	}
	return d.idFrom(f, scalar{text: value}, limit)
}

// appendPart appends "<length>:<name>=<length>:<value>,". In a list of netstrings a comma and no equals sign
// follows the bytes, so the hashed bytes of a source with named parts never equal the hashed bytes of a source
// without names.
func appendPart(dst []byte, name string, value []byte) []byte {
	dst = strconv.AppendInt(dst, int64(len(name)), 10)
	dst = append(append(append(dst, ':'), name...), '=')
	return appendNetstring(dst, value)
}

// hashPart appends a part that is no path as a canonical JSON string, or as a number if the normalisers left a
// number. It is the value of a member in the object that the source hash builds.
func (d *Deriver) hashPart(f *Field) status {
	value := d.partBytes(f)
	switch {
	case value == nil:
		return d.skip(f.label, causeAbsent)
	case !utf8.Valid(value):
		return d.fail(f.label, "is no UTF-8, which hash needs: use fields, which takes any bytes")
	}
	s, st := d.write(f, scalar{text: value})
	if st != found {
		return st
	}
	if s.number {
		d.buf = append(d.buf, s.text...)
	} else {
		d.buf = appendQuoted(d.buf, s.text)
	}
	return found
}
