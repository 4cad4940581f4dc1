package rules

import (
	"strconv"
	"strings"

	"go.yaml.in/yaml/v4"
)

// This file has the sources of ids: record_key, header, field and fields.

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
	if len(value) > limit {
		return d.fail(f.label, reasonKeyLimit(len(value), limit))
	}
	s, st := d.finish(f, scalar{text: value})
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

func readFields(d *decoder, s *sourceDraft, n *yaml.Node, at string) {
	for _, p := range d.paths(n, at, false) {
		s.fields = append(s.fields, newField(p))
	}
}

func completeFields(s *sourceDraft) {
	var paths []Path
	for _, f := range s.fields {
		paths = append(paths, f.Path)
	}
	s.text += ": " + textOf(paths)
}

func ruleOfFields(s *Source) []string {
	var args []string
	for i := range s.fields {
		args = append(args, strconv.Quote(s.fields[i].Path.Text)+s.fields[i].rule())
	}
	return args
}

// fieldsKey writes the composite of several payload fields.
func (d *Deriver) fieldsKey(s *Source, limit int) status {
	if !d.readPayload() {
		return bad
	}
	size := 0
	for i := range s.fields {
		f := &s.fields[i]
		id, st := d.id(f, limit)
		if st != found {
			return st
		}
		if size += len(id.text); size > limit {
			return d.fail(f.label, "up to here "+reasonKeyLimit(size, limit))
		}
		d.buf = appendNetstring(d.buf, id.text)
	}
	d.hashed = d.buf
	return found
}
