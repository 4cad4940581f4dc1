package rules

import (
	"slices"
	"strings"

	"go.yaml.in/yaml/v4"
)

// sourceDraft is one entry of a key list being read.
type sourceDraft struct {
	Source
	named     []string // the sources it names: must be one
	include   []Path
	exclude   []Path
	normalise *yaml.Node
}

// The format of a key source.
var (
	payloadFields = []fieldOf[sourceDraft]{
		{"include", func(d *decoder, s *sourceDraft, n *yaml.Node, at string) { s.include = d.paths(n, at, true) }},
		{"exclude", func(d *decoder, s *sourceDraft, n *yaml.Node, at string) { s.exclude = d.paths(n, at, true) }},
	}
	orderFields  = makeOrderFields()
	sourceFields = makeSourceFields()

	stepFields = []fieldOf[Normaliser]{
		{"decimals", func(d *decoder, x *Normaliser, n *yaml.Node, at string) {
			x.kind = decimals
			x.places = d.integer(n, at, 0, decimalPlacesMax)
		}},
		{"step", func(d *decoder, x *Normaliser, n *yaml.Node, at string) {
			x.kind = step
			x.step = d.stepMS(n, at)
		}},
		{"format", func(d *decoder, x *Normaliser, n *yaml.Node, at string) { x.format = d.timeFormat(n, at) }},
	}
)

func makeOrderFields() []fieldOf[Order] {
	var fields []fieldOf[Order]
	for _, name := range []string{"account", "symbol", "side", "quantity", "type", "limit", "stop", "timestamp"} {
		fields = append(fields, fieldOf[Order]{name, func(d *decoder, o *Order, n *yaml.Node, at string) {
			*o.byName()[name] = d.field(n, at)
		}})
	}
	return append(fields,
		fieldOf[Order]{"format", func(d *decoder, o *Order, n *yaml.Node, at string) { o.Format = d.timeFormat(n, at) }},
		fieldOf[Order]{"adjacent_buckets", func(d *decoder, o *Order, n *yaml.Node, at string) { o.AdjacentBuckets, _ = d.boolean(n, at) }},
		fieldOf[Order]{"step", func(d *decoder, o *Order, n *yaml.Node, at string) { o.Step = d.stepMS(n, at) }},
	)
}

func makeSourceFields() []fieldOf[sourceDraft] {
	readers := [...]func(*decoder, *sourceDraft, *yaml.Node, string){
		sourceRecordKey:  readFlag,
		sourceHeader:     readHeader,
		sourceField:      readField,
		sourceComposite:  readFields,
		sourceHash:       readFields,
		sourcePayload:    readPayloadSource,
		sourceRaw:        readFlag,
		sourceCloudEvent: readFlag,
		sourceOrder:      readOrder,
	}
	var fields []fieldOf[sourceDraft]
	for kind, read := range readers {
		name := sourceNames[kind]
		fields = append(fields, fieldOf[sourceDraft]{name, func(d *decoder, s *sourceDraft, n *yaml.Node, at string) {
			s.named = append(s.named, name)
			s.kind = sourceKind(kind)
			read(d, s, n, at)
		}})
	}
	return append(fields, fieldOf[sourceDraft]{"normalise", func(_ *decoder, s *sourceDraft, n *yaml.Node, _ string) { s.normalise = n }})
}

// sources reads a route's key list.
func (d *decoder) sources(n *yaml.Node, at string) []Source {
	var sources []Source
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

// source reads one key source: a name for those that need nothing else, or an
// object with the name as its field.
func (d *decoder) source(n *yaml.Node, at string) (Source, bool) {
	var s sourceDraft
	before := len(d.mistakes)
	if n.Kind == yaml.ScalarNode {
		kind := slices.Index(sourceNames[:], n.Value)
		switch sourceKind(kind) {
		case sourceRecordKey, sourceRaw, sourceCloudEvent, sourceOrder:
			s.kind = sourceKind(kind)
		default:
			d.fail(n, at, "want a source such as {field: PATH}, or one of record_key, raw, cloudevent, order; found %s", describe(n))
			return s.Source, false
		}
	} else {
		if decodeObject(d, n, at, &s, sourceFields) == nil {
			return s.Source, false
		}
		if len(s.named) != 1 {
			if len(d.mistakes) == before {
				d.fail(n, at, "want exactly one source, found %d: each source is an entry of its own", len(s.named))
			}
			return s.Source, false
		}
	}
	if len(d.mistakes) > before {
		return s.Source, false
	}
	s.complete()
	if s.normalise != nil {
		d.normalisers(&s, s.normalise, join(at, "normalise"))
	}
	return s.Source, len(d.mistakes) == before
}

// complete fills in what follows from what was read.
func (s *sourceDraft) complete() {
	s.text = sourceNames[s.kind]
	switch s.kind {
	case sourceRecordKey:
		s.fields = []Field{{label: "record key"}}
	case sourceHeader:
		s.text += ": " + s.header
		s.fields = []Field{{label: "header " + s.header}}
	case sourceField:
		s.text += ": " + s.fields[0].Path.Text
	case sourceComposite, sourceHash:
		var paths []Path
		for _, f := range s.fields {
			paths = append(paths, f.Path)
		}
		s.text += ": " + textOf(paths)
	case sourceCloudEvent:
		for _, name := range []string{"source", "id"} {
			s.fields = append(s.fields, newField(Path{Text: name, segments: []segment{{name: name, index: -1}}}))
		}
	case sourceOrder:
		if s.order == nil {
			s.order = newOrder()
		}
	case sourcePayload:
		s.completePayload()
	case sourceRaw:
	}
	if s.kind == sourceHash {
		s.setMembers()
	}
}

func (s *sourceDraft) completePayload() {
	paths, word := s.exclude, "exclude"
	if s.include != nil {
		paths, word = s.include, "include"
	}
	if paths == nil {
		return
	}
	s.text += ": {" + word + ": " + textOf(paths) + "}"
	s.project = &projection{tree: newPathTree(), include: s.include != nil}
	for _, p := range paths {
		s.project.tree.add(p.segments, 0)
		s.paths = append(s.paths, p.Text)
	}
	s.project.tree.spreadStars()
	slices.Sort(s.paths)
}

func readFlag(d *decoder, _ *sourceDraft, n *yaml.Node, at string) {
	if on, ok := d.boolean(n, at); ok && !on {
		d.fail(n, at, "want true: leave the source out to switch it off")
	}
}

func readHeader(d *decoder, s *sourceDraft, n *yaml.Node, at string) {
	s.header, _ = d.text(n, at)
	d.refuseOwnHeader(n, at, s.header)
}

// ownHeaderPrefix begins the names of the headers that oncebus sets. What comes
// in under such a name is removed, so nothing may depend on it.
const ownHeaderPrefix = "oncebus-"

func (d *decoder) refuseOwnHeader(n *yaml.Node, at, name string) {
	if strings.HasPrefix(strings.ToLower(name), ownHeaderPrefix) {
		d.fail(n, at, "incoming %s* headers are never trusted", ownHeaderPrefix)
	}
}

func readField(d *decoder, s *sourceDraft, n *yaml.Node, at string) {
	s.fields = []Field{d.field(n, at)}
}

func readFields(d *decoder, s *sourceDraft, n *yaml.Node, at string) {
	for _, p := range d.paths(n, at, false) {
		s.fields = append(s.fields, newField(p))
	}
}

func readPayloadSource(d *decoder, s *sourceDraft, n *yaml.Node, at string) {
	nodes := decodeObject(d, n, at, s, payloadFields)
	if len(nodes) > 1 {
		d.fail(n, at, "want either include or exclude")
	}
	d.refuseCovered(nodes["include"], join(at, "include"), s.include)
	d.refuseCovered(nodes["exclude"], join(at, "exclude"), s.exclude)
}

// refuseCovered finds paths that lie within another one of the list.
func (d *decoder) refuseCovered(n *yaml.Node, at string, paths []Path) {
	for _, p := range paths {
		if outer, ok := covering(paths, p); ok {
			d.fail(n, at, "path %q says nothing: %q covers it", p.Text, outer.Text)
		}
	}
}

// covering returns a path of the list that p lies within.
func covering(paths []Path, p Path) (Path, bool) {
	for _, outer := range paths {
		if len(outer.segments) > len(p.segments) || outer.Text == p.Text {
			continue
		}
		within := true
		for i, s := range outer.segments {
			within = within && (s == p.segments[i] || s.star)
		}
		if within {
			return outer, true
		}
	}
	return Path{}, false
}

func readOrder(d *decoder, s *sourceDraft, n *yaml.Node, at string) {
	s.order = newOrder()
	decodeObject(d, n, at, s.order, orderFields)
}

// stepMS reads a duration of at least a millisecond, in milliseconds.
func (d *decoder) stepMS(n *yaml.Node, at string) int64 {
	return max(d.duration(n, at, shortestWindow).Milliseconds(), 1)
}

// normalisers reads the normalise field: a step or a list of steps for sources
// of one value, and for fields and hash an object of such by path.
func (d *decoder) normalisers(s *sourceDraft, n *yaml.Node, at string) {
	switch s.kind {
	case sourceRecordKey, sourceHeader, sourceField:
		s.fields[0].Normalise = d.steps(n, at)
		return
	case sourceComposite, sourceHash:
	default:
		d.fail(n, at, "%s takes no normalisers", sourceNames[s.kind])
		return
	}
	var fields []fieldOf[sourceDraft]
	for i := range s.fields {
		fields = append(fields, fieldOf[sourceDraft]{s.fields[i].Path.Text,
			func(d *decoder, s *sourceDraft, n *yaml.Node, at string) { s.fields[i].Normalise = d.steps(n, at) }})
	}
	decodeObject(d, n, at, s, fields)
}

func (d *decoder) steps(n *yaml.Node, at string) []Normaliser {
	if n.Kind != yaml.SequenceNode {
		return []Normaliser{d.step(n, at)}
	}
	var steps []Normaliser
	d.list(n, at, func(n *yaml.Node, at string) { steps = append(steps, d.step(n, at)) })
	return steps
}

func (d *decoder) step(n *yaml.Node, at string) Normaliser {
	var x Normaliser
	if n.Kind == yaml.ScalarNode {
		i := slices.Index(normaliserNames[:decimals], n.Value)
		if i < 0 {
			d.fail(n, at, "want trim, upper, lower, {decimals: N} or {step: DURATION}, found %s", describe(n))
			return x
		}
		return Normaliser{kind: normaliserKind(i)}
	}
	nodes := decodeObject(d, n, at, &x, stepFields)
	if nodes == nil {
		return x
	}
	_, places := nodes["decimals"]
	_, truncate := nodes["step"]
	_, format := nodes["format"]
	if places == truncate || format && !truncate {
		d.fail(n, at, "want {decimals: N}, {step: DURATION} or {step: DURATION, format: FORMAT}")
	}
	x.auto = truncate && !format
	return x
}
