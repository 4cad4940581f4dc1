package rules

import (
	"strconv"
	"strings"

	"go.yaml.in/yaml/v4"
)

// This file has the key sources that read ids: record_key, header, field and fields.

func completeRecordKey(s *sourceDraft) { s.fields = []Field{{label: "record key"}} }

func ruleOfRecordKey(s *Source) []string {
	return []string{strings.TrimPrefix(s.fields[0].rule(), "|")}
}

func (d *Deriver) recordKey(s *Source, limit int) status {
	return d.bytesKey(&s.fields[0], d.in.Key, limit)
}

func readHeader(d *decoder, s *sourceDraft, n *yaml.Node, at string) {
	s.header, _ = d.text(n, at)
	d.refuseOwnHeader(n, at, s.header)
}

func completeHeader(s *sourceDraft) {
	s.text += ": " + s.header
	s.fields = []Field{{label: "header " + s.header}}
}

func ruleOfHeader(s *Source) []string { return []string{strconv.Quote(s.header) + s.fields[0].rule()} }

func (d *Deriver) headerKey(s *Source, limit int) status {
	return d.bytesKey(&s.fields[0], d.header(s.header), limit)
}

// bytesKey derives the key from a record key or header, which may be any bytes.
func (d *Deriver) bytesKey(f *Field, value []byte, limit int) status {
	if len(value) == 0 {
		return d.skip(f.label, emptyCause(value))
	}
	s, st := d.idFrom(f, scalar{text: value}, limit)
	d.hashed = s.text
	return st
}

func readField(d *decoder, s *sourceDraft, n *yaml.Node, at string) {
	s.fields = []Field{d.field(n, at)}
}

func completeField(s *sourceDraft) { s.text += ": " + s.fields[0].Path.Text }

func (d *Deriver) fieldKey(s *Source, limit int) status {
	if !d.readPayload() {
		return bad
	}
	id, st := d.id(&s.fields[0], limit)
	d.hashed = id.text
	return st
}

// readFields reads a list of paths and other parts of a record.
func readFields(d *decoder, s *sourceDraft, n *yaml.Node, at string) {
	seen := map[string]bool{}
	d.list(n, at, func(n *yaml.Node, at string) {
		var f Field
		if n.Kind == yaml.MappingNode {
			var ok bool
			if f, ok = d.part(n, at); !ok {
				return
			}
		} else {
			text, ok := d.text(n, at)
			if !ok {
				return
			}
			f = newField(d.path(n, at, text, false))
		}
		if seen[f.partText()] {
			d.fail(n, at, "%s is listed twice", f.describe())
			return
		}
		seen[f.partText()] = true
		s.fields = append(s.fields, f)
	})
}

// completeFields sets the text of the source, and the names of its parts unless all of them are paths.
func completeFields(s *sourceDraft) {
	texts := make([]string, len(s.fields))
	for i := range s.fields {
		texts[i] = s.fields[i].partText()
	}
	s.text += ": [" + strings.Join(texts, ", ") + "]"
	if hasParts(s.fields) {
		for i := range s.fields {
			s.names = append(s.names, s.fields[i].partName())
		}
	}
}

func ruleOfFields(s *Source) []string {
	var args []string
	for i := range s.fields {
		args = append(args, s.fields[i].partRule())
	}
	return args
}

// fieldsKey writes the composite of several payload fields or parts of the record. If one part is missing and
// another part cannot be read, the source yields no key, and the record is not malformed, whichever of the two
// parts comes first.
func (d *Deriver) fieldsKey(s *Source, limit int) status {
	if len(s.names) == 0 || s.readsPart(ofPayload) {
		if !d.readPayload() {
			return bad
		}
	}
	size, all := 0, found
	for i := range s.fields {
		f := &s.fields[i]
		id, st := d.idOf(f, limit)
		if size += len(id.text); st == found && size > limit {
			st = d.fail(f.label, "up to here "+reasonKeyLimit(size, limit))
		}
		if st == none {
			return none
		}
		all = max(all, st)
		d.buf = s.appendID(d.buf, i, id.text)
	}
	d.hashed = d.buf
	return all
}

// appendID appends the id of a field of a composite.
func (s *Source) appendID(dst []byte, field int, id []byte) []byte {
	if len(s.names) == 0 {
		return appendNetstring(dst, id)
	}
	return appendPart(dst, s.names[field], id)
}
