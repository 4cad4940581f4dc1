package rules

import (
	"slices"
	"strconv"

	"go.yaml.in/yaml/v4"
)

// Match is the condition under which a route takes a record: the text of a payload field or header is one of
// the texts in In. Numbers and booleans compare by their JSON text. An object or an array never matches; an
// absent field or null matches only MatchAbsent.
type Match struct {
	Field  Field  // payload field; Path.Text is "" where Header is set
	Header string // header name
	In     []string
	// Normalise has the steps that make different spellings of the value equal.
	Normalise []Normaliser
}

// MatchAbsent is what Match.In contains if the file has the word null in the list: the route then takes records
// whose field is absent or null. No JSON string has these bytes.
const MatchAbsent = "\xff"

var matchFields = []fieldOf[Match]{
	{"field", func(d *decoder, m *Match, n *yaml.Node, at string) { m.Field = d.field(n, at) }},
	{"header", func(d *decoder, m *Match, n *yaml.Node, at string) { m.Header, _ = d.text(n, at) }},
	{"in", decodeMatchIn},
	{"normalise", func(d *decoder, m *Match, n *yaml.Node, at string) { m.Normalise = d.cases(n, at) }},
}

func decodeMatchIn(d *decoder, m *Match, n *yaml.Node, at string) {
	d.list(n, at, func(n *yaml.Node, at string) {
		if n.Kind != yaml.ScalarNode {
			d.fail(n, at, "want a value, found %s", describe(n))
			return
		}
		switch n.ShortTag() {
		case "!!str":
			if n.Style&(yaml.SingleQuotedStyle|yaml.DoubleQuotedStyle) == 0 && isNumber(n.Value) {
				d.fail(n, at, "%s is a number that no event has: put it in quotes to match a string", n.Value)
			}
			m.In = append(m.In, n.Value)
		case "!!bool":
			value, _ := d.boolean(n, at)
			m.In = append(m.In, strconv.FormatBool(value))
		case "!!int", "!!float":
			var scratch Deriver
			_, reason := parseDecimal(nil, []byte(n.Value)) // parseDecimal refuses the numbers of YAML that JSON lacks
			var text []byte
			if reason == "" {
				text, reason = scratch.appendNumber(nil, []byte(n.Value))
			}
			switch {
			case reason != "":
				d.fail(n, at, "%s: put it in quotes to match a string", reason)
			case string(text) != n.Value:
				d.fail(n, at, "the number %s is %s in every spelling: write that, or put %s in quotes to match a string", n.Value, text, n.Value)
			}
			m.In = append(m.In, string(text))
		case "!!null":
			if n.Value != "null" { // the file has an empty item
				d.fail(n, at, "want a value: write null for a field that is absent or null")
			}
			m.In = append(m.In, MatchAbsent)
		default:
			d.fail(n, at, "want a string, number, boolean or null, found %s", describe(n))
		}
	})
}

// cases reads normalisers that change only the case of a text and remove the space around it.
func (d *decoder) cases(n *yaml.Node, at string) []Normaliser {
	steps := d.steps(n, at)
	if slices.ContainsFunc(steps, func(x Normaliser) bool { return x.kind > lower }) {
		d.fail(n, at, "want trim, upper or lower")
		return nil
	}
	return steps
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
	if m.Header != "" && slices.Contains(m.In, MatchAbsent) {
		d.fail(n, join(at, "in"), "null is a payload field that is absent or null: a header has none")
	}
	for _, want := range m.In {
		if want == MatchAbsent {
			continue
		}
		var scratch Deriver
		s, _ := scratch.normalise(scalar{text: []byte(want)}, m.Normalise)
		if string(s.text) != want {
			d.fail(n, join(at, "in"), "%q never matches, because normalise makes it %q", want, s.text)
		}
	}
	return m
}

// matchGroup has all routes of a topic that compare the same value of a record, so that a deriver reads and
// searches the value once for all of them.
type matchGroup struct {
	match  *Match         // match of the group's first route; nil for a route that takes every record
	first  int            // place of the group's first route among the routes of the topic
	byText map[string]int // for each text, the place of the first route that takes it
}

// groupMatches returns the groups of the routes, in the order of their first routes. It must be called after
// slots were assigned to the paths of the routes.
func groupMatches(routes []*Route) (groups []matchGroup) {
	for place, r := range routes {
		if r.Match == nil {
			return append(groups, matchGroup{first: place}) // the routes behind r get no record
		}
		at := slices.IndexFunc(groups, func(g matchGroup) bool { return g.match.readsAs(r.Match) })
		if at < 0 {
			at = len(groups)
			groups = append(groups, matchGroup{match: r.Match, first: place, byText: map[string]int{}})
		}
		for _, text := range r.Match.In {
			if _, known := groups[at].byText[text]; !known {
				groups[at].byText[text] = place
			}
		}
	}
	return groups
}

// readsAs reports whether two conditions compare the same value of every record.
func (m *Match) readsAs(other *Match) bool {
	return m.Header == other.Header && m.Field.slot == other.Field.slot && slices.Equal(m.Normalise, other.Normalise)
}

// faultUnmatched is the fault of a record for which its topic has no route. Such a record is given to the
// topic's first route.
var faultUnmatched = fault{"match", "no route takes this record"}

// compared describes the values of the record that the routes of its topic compare.
func (d *Deriver) compared() (all []string) {
	for i := range d.plan.groups {
		m := d.plan.groups[i].match
		what := "header " + m.Header
		if m.Header == "" {
			what = m.Field.label
		}
		switch text, st := d.matchValue(m); st {
		case found:
			all = append(all, what+" is "+strconv.Quote(string(text)))
		case none, bad:
			all = append(all, what+" is missing, or no text, number or boolean")
		}
	}
	return all
}

// selectRoute returns the first route of the topic that matches the record. It reads the value of a group
// only if a route of the group may come before the routes that are known to match.
func (d *Deriver) selectRoute() (*Route, status) {
	best := len(d.plan.routes)
	for i := range d.plan.groups {
		group := &d.plan.groups[i]
		if group.first > best {
			break
		}
		if group.match == nil {
			best = group.first
			break
		}
		text, st := d.matchValue(group.match)
		if st == bad {
			return d.plan.routes[0], bad
		}
		if place, ok := group.byText[string(text)]; ok && st == found {
			best = min(best, place)
		}
	}
	if best == len(d.plan.routes) {
		return d.plan.routes[0], d.fail(faultUnmatched.part, faultUnmatched.cause)
	}
	return d.plan.routes[best], found
}

// matchValue returns the text that a condition compares, which may be empty. The status none says that the
// value never matches, the status bad that the payload is not valid JSON.
func (d *Deriver) matchValue(m *Match) (text []byte, st status) {
	if m.Header != "" {
		if text = d.header(m.Header); text == nil {
			return nil, none
		}
	} else {
		if !d.readPayload() {
			return nil, bad
		}
		raw := m.Field.slotIn(d)
		if isAbsent(raw) {
			return absentText, found
		}
		if text, st = d.matchText(raw); st != found {
			return nil, st
		}
	}
	s, _ := d.normalise(scalar{text: text}, m.Normalise) // changing the case never fails
	return s.text, found
}

var absentText = []byte(MatchAbsent)

// matchText returns the text of a value for Match. The status none says that it never matches.
func (d *Deriver) matchText(raw []byte) ([]byte, status) {
	switch c := raw[0]; {
	case c == '"':
		return d.string(raw), found
	case c == 't' || c == 'f':
		return raw, found
	case c == '-' || isDigit(c):
		mark := len(d.text)
		var reason string
		if d.text, reason = d.appendNumber(d.text, raw); reason == "" {
			return d.text[mark:], found
		}
	}
	return nil, none
}
