package rules

import (
	"slices"
	"strconv"

	"go.yaml.in/yaml/v4"
)

// Match is the condition under which a route takes a record: the text of a
// payload field or header is one of In. Numbers and booleans compare by their
// JSON text; an absent field, null, an object or an array never match.
type Match struct {
	Field  Field  // payload field; Path.Text is "" where Header is set
	Header string // header name
	In     []string
}

var matchFields = []fieldOf[Match]{
	{"field", func(d *decoder, m *Match, n *yaml.Node, at string) { m.Field = d.field(n, at) }},
	{"header", func(d *decoder, m *Match, n *yaml.Node, at string) { m.Header, _ = d.text(n, at) }},
	{"in", decodeMatchIn},
}

func decodeMatchIn(d *decoder, m *Match, n *yaml.Node, at string) {
	d.list(n, at, func(n *yaml.Node, at string) {
		if n.Kind != yaml.ScalarNode {
			d.fail(n, at, "want a value, found %s", describe(n))
			return
		}
		switch n.ShortTag() {
		case "!!str":
			m.In = append(m.In, n.Value)
		case "!!bool":
			value, _ := d.boolean(n, at)
			m.In = append(m.In, strconv.FormatBool(value))
		case "!!int", "!!float":
			var scratch Deriver
			_, reason := parseDecimal(nil, []byte(n.Value)) // YAML has numbers that JSON lacks
			var text []byte
			if reason == "" {
				text, reason = scratch.appendNumber(nil, []byte(n.Value))
			}
			if reason != "" {
				d.fail(n, at, "%s: put it in quotes to match a string", reason)
			} else {
				m.In = append(m.In, string(text))
			}
		default:
			d.fail(n, at, "want a string, number or boolean, found %s", describe(n))
		}
	})
}

func (d *decoder) match(n *yaml.Node, at string) *Match {
	m := &Match{}
	nodes := decodeObject(d, n, at, m, matchFields)
	if nodes == nil {
		return m
	}
	_, field := nodes["field"]
	_, header := nodes["header"]
	if field == header {
		d.fail(n, at, "want either field or header")
	}
	d.require(n, at, nodes, "in")
	return m
}

// selectRoute returns the first route of the topic that matches the record.
func (d *Deriver) selectRoute() (*Route, status) {
	for _, r := range d.plan.routes {
		m := r.Match
		if m == nil {
			return r, found
		}
		var text []byte
		if m.Header != "" {
			text = d.header(m.Header)
		} else {
			if !d.readPayload() {
				return d.plan.routes[0], bad
			}
			text = d.matchText(m.Field.slotIn(d))
		}
		if text != nil && slices.ContainsFunc(m.In, func(s string) bool { return s == string(text) }) {
			return r, found
		}
	}
	return d.plan.routes[0], d.fail("match", "no route takes this record")
}

// matchText returns the text of a value for Match; nil for a value that never
// matches.
func (d *Deriver) matchText(raw []byte) []byte {
	if raw == nil {
		return nil
	}
	switch c := raw[0]; {
	case c == '"':
		return d.string(raw)
	case c == 't' || c == 'f':
		return raw
	case c == '-' || isDigit(c):
		mark := len(d.text)
		var reason string
		if d.text, reason = d.appendNumber(d.text, raw); reason == "" {
			return d.text[mark:]
		}
	}
	return nil
}
