package rules

import (
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v4"

	"oncebus/dedup"
)

// Source is one way to derive a dedup key: one entry of a route's key list.
type Source struct {
	kind   sourceKind
	text   string // as in the file
	header string
	// fields are the fields that the source reads, in the file's order. If a field is the record key or a
	// header, it has no path, only a label and normalisers.
	fields  []Field
	names   []string    // sources fields and hash: the name of each field; nil if all are paths
	members []member    // hash: the fields in canonical order
	project *projection // payload: nil is the whole payload
	paths   []string    // payload: the paths as written, sorted
	order   *Order
	ofText  bool         // raw: only of a payload that is a text and no JSON
	mask    dedup.Digest // see digest
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
	sourceForm
	kindCount
)

// A kind describes one kind of source. To add a kind, add a row to the table kinds, and a file with the
// functions of the kind.
type kind struct {
	// name is the source's field in the routes file. The manifest pins the name in the key rule.
	name string
	// makes is the kind of key that the source makes; it is part of the state digest.
	makes keyKind
	// bare: the name of the source, without settings, is a complete entry, such as key: [raw].
	bare bool
	// implied: the source reads payload fields that the file does not name.
	implied bool
	// carried is the part of the record that the source reads. The part decides whether an HTTP request can
	// have a value for the source.
	carried recordPart

	// read reads the value of the source's field in the file.
	read func(d *decoder, s *sourceDraft, n *yaml.Node, at string)
	// complete sets the fields of the Source that depend on the value that read has read; nil if no field does.
	complete func(s *sourceDraft)
	// normalise reads the normalise field; nil: the source takes no normalisers.
	normalise func(d *decoder, s *sourceDraft, n *yaml.Node, at string)
	// fields returns the payload fields that need a slot; nil: there are none.
	fields func(s *Source) []*Field
	// derive sets Deriver.hashed, the bytes of the key. The order source also sets Deriver.routing, the same
	// bytes without the bucket.
	derive func(d *Deriver, s *Source, limit int) status
	// rule returns the arguments of the source in the key rule; nil: there are none.
	rule func(s *Source) []string
}

// recordPart is the part of a record that a source reads.
type recordPart uint8

const (
	partPayload   recordPart = iota // every HTTP request has a body
	partHeader                      // of an HTTP request only the carried headers arrive
	partRecordKey                   // no HTTP request has a record key
)

var kinds = [kindCount]kind{
	sourceRecordKey: {
		name: "record_key", makes: kindID, bare: true, carried: partRecordKey,
		read: readFlag, complete: completeRecordKey, normalise: normaliseOne, derive: (*Deriver).recordKey, rule: ruleOfRecordKey,
	},
	sourceHeader: {
		name: "header", makes: kindID, carried: partHeader,
		read: readHeader, complete: completeHeader, normalise: normaliseOne, derive: (*Deriver).headerKey, rule: ruleOfHeader,
	},
	sourceField: {
		name: "field", makes: kindID,
		read: readField, complete: completeField, normalise: normaliseOne, fields: allFields, derive: (*Deriver).fieldKey, rule: ruleOfFields,
	},
	sourceComposite: {
		name: "fields", makes: kindComposite,
		read: readFields, complete: completeFields, normalise: normaliseByPath, fields: allFields, derive: (*Deriver).fieldsKey, rule: ruleOfFields,
	},
	sourceHash: {
		name: "hash", makes: kindContent,
		read: readFields, complete: completeHash, normalise: normaliseByPath, fields: allFields, derive: (*Deriver).hashKey, rule: ruleOfHash,
	},
	sourcePayload: {
		name: "payload", makes: kindContent, implied: true,
		read: readPayloadSource, complete: completePayload, fields: allFields, derive: (*Deriver).payloadKey, rule: ruleOfPayload,
	},
	sourceRaw: {
		name: "raw", makes: kindContent, bare: true,
		read: readRaw, derive: (*Deriver).rawKey, rule: ruleOfRaw,
	},
	sourceCloudEvent: {
		name: "cloudevent", makes: kindComposite, bare: true, implied: true,
		read: readFlag, complete: completeCloudEvent, fields: allFields, derive: (*Deriver).cloudEventKey,
	},
	sourceOrder: {
		name: "order", makes: kindOrder, bare: true,
		read: readOrder, complete: completeOrder, fields: orderFieldsOf, derive: (*Deriver).orderKey, rule: ruleOfOrder,
	},
	sourceForm: {
		name: "form", makes: kindContent, bare: true,
		read: readFlag, derive: (*Deriver).formKey,
	},
}

// String returns the source as written in the file.
func (s *Source) String() string { return s.text }

// Described returns the source as it is shown to a person, with its normalisers.
func (s *Source) Described() string {
	var steps []string
	for i := range s.fields {
		if f := &s.fields[i]; len(f.Normalise) > 0 {
			steps = append(steps, f.label+": "+StepsText(f.Normalise))
		}
	}
	if steps == nil {
		return s.text
	}
	return s.text + " (normalise " + strings.Join(steps, "; ") + ")"
}

// payloadFields returns the payload fields that the source reads.
func (s *Source) payloadFields() []*Field {
	if read := kinds[s.kind].fields; read != nil {
		return read(s)
	}
	return nil
}

// allFields is kind.fields for the sources whose fields are all in Source.fields.
func allFields(s *Source) []*Field {
	fields := make([]*Field, 0, len(s.fields))
	for i := range s.fields {
		if s.fields[i].part == ofPayload {
			fields = append(fields, &s.fields[i])
		}
	}
	return fields
}

// Reads returns the payload fields that the routes file names for the source.
func (s *Source) Reads() []Field {
	if kinds[s.kind].implied {
		return nil
	}
	var fields []Field
	for _, f := range s.payloadFields() {
		fields = append(fields, *f)
	}
	return fields
}

// Field is one value that a source reads, with the normalisers to apply to it.
type Field struct {
	Path      Path // if part is ofPayload
	Normalise []Normaliser

	optional bool // source hash: the object leaves the field out if it is absent or null

	part   fieldPart // the part of the record that has the value
	header string    // if part is ofHeader
	label  string    // names the field in reasons: "field traceId"
	slot   int
}

// newField returns a field of the payload with its label. Routes.index assigns the slot.
func newField(path Path) Field { return Field{Path: path, label: "field " + path.Text, slot: -1} }

// namedField returns the field for a top-level member of the payload.
func namedField(name string) Field {
	return newField(Path{Text: name, segments: []segment{{name: name, index: -1}}})
}

// rule returns the canonical text of the source, see Route.KeyRule.
func (s *Source) rule() string {
	k := &kinds[s.kind]
	var args []string
	if k.rule != nil {
		args = k.rule(s)
	}
	return k.name + "(" + strings.Join(args, ",") + ")"
}

func (f *Field) rule() string {
	var b strings.Builder
	if f.optional {
		b.WriteByte('?')
	}
	for _, n := range f.Normalise {
		b.WriteString("|" + n.String())
	}
	return b.String()
}

// KeyRule returns a canonical text of everything that decides a key: namespace, whether the secret is used,
// tenant, and the sources in order with their normalisers. The manifest stores the text and the app refuses
// another text, because with another rule the app would not find the rows that this rule has stored. Files with
// the same meaning have the same text.
func (r *Route) KeyRule() string {
	var b strings.Builder
	b.WriteString("v1 namespace=" + r.Namespace + " secret=" + strconv.FormatBool(r.Secret))
	if r.Tenant != nil {
		b.WriteString(" tenant=" + r.TenantRule())
	}
	b.WriteString(" key=")
	for i := range r.Keys {
		if i > 0 {
			b.WriteByte(';')
		}
		b.WriteString(r.Keys[i].rule())
	}
	return b.String()
}

// Extends reports whether the route has all sources of an older key rule, in the same places, and further
// sources behind them. Derive tries a source only if all sources before it yielded no key, so every event that
// had a key keeps the same key: for example when [{field: id}] becomes [{field: id}, {header: id}]. Extends is
// false if adjacent_buckets differs, because then rows are stored in another form. It is false for a shadow,
// too, because the rows of a shadow must be made by one rule for all events since the shadow began.
func (r *Route) Extends(rule string) bool {
	if r.shadowOf != "" {
		return false
	}
	for n := 1; n < len(r.Keys); n++ {
		older := *r
		if older.Keys = r.Keys[:n]; older.KeyRule() == rule {
			return older.AdjacentStep() == r.AdjacentStep()
		}
	}
	return false
}

// sourceDraft is one entry of a key list while the decoder reads it.
type sourceDraft struct {
	Source
	named     []string // the sources that the entry names: must be exactly one
	include   []Path
	exclude   []Path
	normalise *yaml.Node
	optional  *yaml.Node
}

// sourceFields is the format of a key source that is an object.
var sourceFields = makeSourceFields()

func makeSourceFields() []fieldOf[sourceDraft] {
	var fields []fieldOf[sourceDraft]
	for i := range kinds {
		k := &kinds[i]
		fields = append(fields, fieldOf[sourceDraft]{k.name, func(d *decoder, s *sourceDraft, n *yaml.Node, at string) {
			s.named = append(s.named, k.name)
			s.kind = sourceKind(i)
			k.read(d, s, n, at)
		}})
	}
	return append(fields,
		fieldOf[sourceDraft]{"normalise", func(_ *decoder, s *sourceDraft, n *yaml.Node, _ string) { s.normalise = n }},
		fieldOf[sourceDraft]{"optional", func(_ *decoder, s *sourceDraft, n *yaml.Node, _ string) { s.optional = n }})
}

// sources reads a route's key list.
func (d *decoder) sources(n *yaml.Node, at string) []Source {
	var sources []Source
	if n.Kind == yaml.ScalarNode && n.Value != "" && !slices.Contains(bareNames(), n.Value) {
		d.fail(n, at, "want a list such as [{field: %s}], found %s", n.Value, describe(n))
		return nil
	}
	d.list(n, at, func(n *yaml.Node, at string) {
		s, ok := d.source(n, at)
		if !ok {
			return
		}
		if slices.ContainsFunc(sources, func(x Source) bool { return x.text == s.text }) {
			d.fail(n, at, "%s is listed twice", s.text)
		}
		sources = append(sources, s)
	})
	return sources
}

// source reads one key source: the name of a bare kind, or an object with the
// name as its field.
func (d *decoder) source(n *yaml.Node, at string) (Source, bool) {
	before := len(d.mistakes)
	s := d.sourceValue(n, at)
	if s == nil || len(d.mistakes) > before {
		return Source{}, false
	}
	k := &kinds[s.kind]
	s.text = k.name
	if s.ofText {
		s.text += ": text"
	}
	if k.complete != nil {
		k.complete(s)
	}
	switch at := join(at, "normalise"); {
	case s.normalise == nil:
	case k.normalise == nil:
		d.fail(s.normalise, at, "%s takes no normalisers", k.name)
	default:
		k.normalise(d, s, s.normalise, at)
	}
	if s.optional != nil {
		d.optionalFields(s, s.optional, join(at, "optional"))
	}
	if s.constant() {
		d.fail(n, at, "the key is the same for all events, so that every one but the first is dropped: add what identifies an event, such as {field: PATH}")
	}
	return s.Source, len(d.mistakes) == before
}

// constant reports whether a source makes the same key for all events of a topic or of a tenant, so that it
// cannot tell events apart.
func (s *Source) constant() bool {
	if s.project != nil && !s.project.include {
		return slices.ContainsFunc(s.project.tree.children, func(n *pathNode) bool { return n.star && n.slot >= 0 })
	}
	return len(s.fields) > 0 && !slices.ContainsFunc(s.fields, func(f Field) bool { return f.part != ofTopic && f.part != ofTenant })
}

// sourceValue reads the entry of a source. It may return nil after a mistake.
func (d *decoder) sourceValue(n *yaml.Node, at string) *sourceDraft {
	if n.Kind == yaml.ScalarNode {
		i := slices.IndexFunc(kinds[:], func(k kind) bool { return k.bare && k.name == n.Value })
		if i < 0 {
			d.fail(n, at, "want a source such as {field: PATH}, or one of %s; found %s", strings.Join(bareNames(), ", "), describe(n))
			return nil
		}
		return &sourceDraft{Source: Source{kind: sourceKind(i)}}
	}
	s := &sourceDraft{}
	before := len(d.mistakes)
	if decodeObject(d, n, at, s, sourceFields) == nil {
		return nil
	}
	if len(s.named) != 1 {
		if len(d.mistakes) == before {
			d.fail(n, at, "want exactly one source, found %d: each source is an entry of its own", len(s.named))
		}
		return nil
	}
	return s
}

// SourceNames lists the names of all sources.
func SourceNames() []string {
	names := make([]string, len(kinds))
	for i := range kinds {
		names[i] = kinds[i].name
	}
	return names
}

// bareNames lists the sources whose name alone is a complete entry.
func bareNames() []string {
	var names []string
	for i := range kinds {
		if kinds[i].bare {
			names = append(names, kinds[i].name)
		}
	}
	return names
}

// readFlag reads the value of a source without settings, which can only be true.
func readFlag(d *decoder, _ *sourceDraft, n *yaml.Node, at string) {
	if on, ok := d.boolean(n, at); ok && !on {
		d.fail(n, at, "want true: leave the source out to switch it off")
	}
}
