package rules

import (
	"slices"
	"strconv"

	"go.yaml.in/yaml/v4"
)

// payloadFields is the format of the payload source.
var payloadFields = []fieldOf[sourceDraft]{
	{"include", func(d *decoder, s *sourceDraft, n *yaml.Node, at string) { s.include = d.paths(n, at, true) }},
	{"exclude", func(d *decoder, s *sourceDraft, n *yaml.Node, at string) { s.exclude = d.paths(n, at, true) }},
}

func readPayloadSource(d *decoder, s *sourceDraft, n *yaml.Node, at string) {
	nodes := decodeObject(d, n, at, s, payloadFields)
	if len(nodes) > 1 {
		d.fail(n, at, "want either include or exclude")
	}
	d.refuseCovered(nodes["include"], join(at, "include"), s.include)
	d.refuseCovered(nodes["exclude"], join(at, "exclude"), s.exclude)
}

// refuseCovered refuses a path that lies within another path of the list.
func (d *decoder) refuseCovered(n *yaml.Node, at string, paths []Path) {
	for _, p := range paths {
		if outer, ok := covering(paths, p); ok {
			d.fail(n, at, "path %q has no effect: %q covers it", p.Text, outer.Text)
		}
	}
}

// covering returns a path of the list that contains p.
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

// completePayload sets the source's only field, which is the whole document, and the paths of include or
// exclude.
func completePayload(s *sourceDraft) {
	s.fields = []Field{newField(Path{})}
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

func ruleOfPayload(s *Source) []string {
	var args []string
	if s.project != nil {
		args = append(args, "exclude")
		if s.project.include {
			args[0] = "include"
		}
	}
	for _, path := range s.paths {
		args = append(args, strconv.Quote(path))
	}
	return args
}

// payloadKey writes the canonical JSON of the payload after include or exclude.
func (d *Deriver) payloadKey(s *Source, _ int) status {
	if !d.readPayload() {
		return bad
	}
	raw := s.fields[0].slotIn(d)
	if s.project != nil {
		mark := len(d.text) // the match and earlier sources may have added texts
		var ok bool
		d.projector.projection = *s.project
		if d.text, ok = d.projector.append(d.text, raw); !ok {
			return d.skip(s.text, "the payload has none of the paths")
		}
		raw = d.text[mark:]
	}
	var reason string
	if d.buf, reason = d.appendCanonical(d.buf, raw); reason != "" {
		return d.fail("payload", reason)
	}
	d.hashed = d.buf
	return found
}

// readRaw reads the value of raw: true, or the word text.
func readRaw(d *decoder, s *sourceDraft, n *yaml.Node, at string) {
	if s.ofText = n.Kind == yaml.ScalarNode && n.Value == "text"; !s.ofText {
		readFlag(d, s, n, at)
	}
}

func ruleOfRaw(s *Source) []string {
	if s.ofText {
		return []string{"text"}
	}
	return nil
}

// rawKey uses the payload's bytes as they are: with raw: true any bytes, with raw: text only bytes that are a
// text and not JSON.
func (d *Deriver) rawKey(s *Source, _ int) status {
	if s.ofText {
		if d.readPayload() {
			return d.skip("raw payload", "JSON")
		}
		if !d.isText() {
			return bad
		}
	}
	if len(d.in.Value) == 0 {
		return d.skip("raw payload", emptyCause(d.in.Value))
	}
	d.hashed = d.in.Value
	return found
}
