package rules

import (
	"slices"
	"strconv"
	"strings"
	"unicode/utf16"

	"github.com/go-json-experiment/json/jsontext"
)

// Source is one way to derive a dedup key: one entry of a route's key list.
type Source struct {
	kind   sourceKind
	text   string // as in the file, "field: traceId"
	header string
	// fields are the payload fields read, in the file's order; for record_key
	// and header one that only carries the label and the normalisers.
	fields  []Field
	members []member    // hash: the fields in canonical order
	project *projection // payload: nil takes the whole
	paths   []string    // payload: the paths as written, sorted
	root    int         // payload: the slot of the whole document
	order   *Order
}

type sourceKind uint8

const (
	sourceRecordKey sourceKind = iota
	sourceHeader
	sourceField
	sourceComposite
	sourceHash
	sourcePayload
	sourceRaw
	sourceCloudEvent
	sourceOrder
)

var sourceNames = [...]string{"record_key", "header", "field", "fields", "hash", "payload", "raw", "cloudevent", "order"}

var sourceKinds = [...]keyKind{kindID, kindID, kindID, kindComposite, kindContent, kindContent, kindContent, kindComposite, kindOrder}

// String returns the source as it stands in the file.
func (s *Source) String() string { return s.text }

// Reads returns the payload fields that the source names; none if it takes
// something else, or the payload as a whole.
func (s *Source) Reads() []Field {
	switch s.kind {
	case sourceField, sourceComposite, sourceHash:
		return s.fields
	case sourceOrder:
		fields := make([]Field, 0, len(s.order.all()))
		for _, f := range s.order.all() {
			fields = append(fields, *f)
		}
		return fields
	default:
		return nil
	}
}

// Field is a value a source reads, with the normalisers to apply to it.
type Field struct {
	Path      Path
	Normalise []Normaliser

	label string // for reasons: "field traceId"
	slot  int
}

// newField returns a field with its label; its slot is given by the index.
func newField(path Path) Field { return Field{Path: path, label: "field " + path.Text, slot: -1} }

// member is one member of the object that the hash source builds.
type member struct {
	field *Field
	name  []byte // quoted, with the colon
}

// setMembers puts the fields of a hash source into canonical order: RFC 8785
// sorts names by their UTF-16 code units (section 3.2.3).
func (s *Source) setMembers() {
	s.members = make([]member, len(s.fields))
	for i := range s.fields {
		name, _ := jsontext.AppendQuote(nil, s.fields[i].Path.Text) // the text is valid UTF-8: it was YAML
		s.members[i] = member{field: &s.fields[i], name: append(name, ':')}
	}
	slices.SortFunc(s.members, func(a, b member) int {
		return slices.Compare(utf16.Encode([]rune(a.field.Path.Text)), utf16.Encode([]rune(b.field.Path.Text)))
	})
}

// rule returns the canonical text of what the source hashes, see Route.KeyRule.
func (s *Source) rule() string {
	var args []string
	switch s.kind {
	case sourceHeader:
		args = append(args, strconv.Quote(s.header)+fieldRule(&s.fields[0]))
	case sourceRecordKey:
		args = append(args, strings.TrimPrefix(fieldRule(&s.fields[0]), "|"))
	case sourceField, sourceComposite:
		for i := range s.fields {
			args = append(args, strconv.Quote(s.fields[i].Path.Text)+fieldRule(&s.fields[i]))
		}
	case sourceHash: // the order in the file does not matter
		for _, m := range s.members {
			args = append(args, strconv.Quote(m.field.Path.Text)+fieldRule(m.field))
		}
	case sourcePayload:
		if s.project != nil {
			args = append(args, "exclude")
			if s.project.include {
				args[0] = "include"
			}
		}
		for _, path := range s.paths {
			args = append(args, strconv.Quote(path))
		}
	case sourceOrder:
		args = s.order.rule()
	case sourceRaw, sourceCloudEvent: // nothing to choose
	}
	return sourceNames[s.kind] + "(" + strings.Join(args, ",") + ")"
}

func fieldRule(f *Field) string {
	var b strings.Builder
	for _, n := range f.Normalise {
		b.WriteString("|" + n.String())
	}
	return b.String()
}

// KeyRule returns the canonical text of everything that decides a key:
// namespace, secret or not, sources with their normalisers in order. It is
// pinned in the manifest, because another rule would no longer find the rows of
// this one. Files that mean the same give the same text.
func (r *Route) KeyRule() string {
	var b strings.Builder
	b.WriteString("v1 namespace=" + r.Namespace + " secret=" + strconv.FormatBool(r.Secret) + " key=")
	for i := range r.Keys {
		if i > 0 {
			b.WriteByte(';')
		}
		b.WriteString(r.Keys[i].rule())
	}
	return b.String()
}
