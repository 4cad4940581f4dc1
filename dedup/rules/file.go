package rules

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"

	"go.yaml.in/yaml/v4"
)

// routesBytesMax is the longest routes file.
const routesBytesMax = 1 << 20

// ParseRoutes decodes and validates a whole routes file; name is the file's name in errors. The error joins
// every Mistake, in the file's order. Unknown and repeated fields are mistakes.
func ParseRoutes(name string, data []byte) (*Routes, error) {
	d := &decoder{file: name, data: data}
	root := d.load(data)
	if root == nil {
		return nil, d.err()
	}
	var file routesFile
	decodeObject(d, root, "", &file, fileFields)
	d.validate(file.drafts)
	d.completeShadows(file.drafts)
	if err := d.err(); err != nil {
		return nil, err
	}
	d.warnUnsigned(file.drafts)
	d.warnSecrets(file.drafts)
	d.warnSources(file.drafts)
	d.warnDetails(file.drafts)
	rs := &Routes{Routes: make([]*Route, len(file.drafts)), Warnings: d.warningTexts(), Text: data, Digest: digestOf(root)}
	for i, draft := range file.drafts {
		draft.Index, draft.written = i, writtenFields(draft.nodes)
		rs.Routes[i] = &draft.Route
	}
	rs.index()
	return rs, nil
}

// routesFile is the file's top level.
type routesFile struct{ drafts []*draft }

// fileFields is the format of the file's top level.
var fileFields = []fieldOf[routesFile]{
	{"routes", func(d *decoder, f *routesFile, n *yaml.Node, at string) {
		d.list(n, at, func(n *yaml.Node, at string) { f.drafts = append(f.drafts, d.route(n, at)) })
	}},
}

// draft is a route while the decoder reads it, with the nodes of the file for the places of mistakes.
type draft struct {
	Route
	at    string                // "routes[0]"
	node  *yaml.Node            // the route
	nodes map[string]*yaml.Node // the values of the route's fields
	// matched has the texts of the route's match; nil until draft.takes looks up a text.
	matched map[string]bool
}

// decoder reads one file and collects its mistakes and warnings.
type decoder struct {
	file     string
	data     []byte
	mistakes []*Mistake
	warnings []warning
}

// fail adds a mistake at a node. at is the path of the field, such as routes[0].window; "" for the file.
func (d *decoder) fail(n *yaml.Node, at, format string, args ...any) {
	d.failPlace(n.Line, n.Column, at, format, args...)
}

// failPlace adds a mistake at a place in the file. Lines and columns begin with 1.
func (d *decoder) failPlace(line, column int, at, format string, args ...any) {
	d.mistakes = append(d.mistakes, &Mistake{File: d.file, Line: max(line, 1), Column: max(column, 1), Field: at, Problem: fmt.Sprintf(format, args...)})
}

// load parses the YAML and returns its root. After a mistake it returns nil.
func (d *decoder) load(data []byte) *yaml.Node {
	if len(data) > routesBytesMax {
		d.failPlace(1, 1, "", "the file has %d bytes, at most %d are read", len(data), routesBytesMax)
		return nil
	}
	loader, err := yaml.NewLoader(bytes.NewReader(data))
	if err != nil {
		d.failPlace(1, 1, "", "%v", err)
		return nil
	}
	var doc, second yaml.Node
	switch err := loader.Load(&doc); {
	case errors.Is(err, io.EOF):
		d.failPlace(1, 1, "", "the file is empty: want routes: with at least one route")
		return nil
	case err != nil:
		d.failSyntax(err)
		return nil
	}
	switch err := loader.Load(&second); {
	case err == nil:
		d.fail(&second, "", "a second YAML document: want one")
	case !errors.Is(err, io.EOF):
		d.failSyntax(err)
	}
	d.refuseAliases(&doc)
	if len(d.mistakes) > 0 || len(doc.Content) != 1 {
		return nil
	}
	return doc.Content[0]
}

func (d *decoder) failSyntax(err error) {
	var load *yaml.LoadError
	if !errors.As(err, &load) {
		d.failPlace(1, 1, "", "not valid YAML: %v", err)
		return
	}
	message := load.Message
	if load.ContextMsg != "" && load.ContextMark.Line > 0 {
		message += fmt.Sprintf(" (%s, begun in line %d)", load.ContextMsg, load.ContextMark.Line)
	}
	d.failPlace(load.Mark.Line, load.Mark.Column, "", "not valid YAML: %s", message)
}

// refuseAliases refuses anchors and aliases, because a few lines with them can expand to gigabytes.
func (d *decoder) refuseAliases(n *yaml.Node) {
	switch {
	case n.Kind == yaml.AliasNode:
		d.fail(n, "", "alias *%s: anchors and aliases are not supported, write the value out", n.Value)
	case n.Anchor != "":
		d.fail(n, "", "anchor &%s: anchors and aliases are not supported, write the value out", n.Anchor)
	}
	for _, child := range n.Content {
		d.refuseAliases(child)
	}
}

// fieldOf is one field of an object in the file: its name and its reader. Tables of fieldOf define the file's
// format. A test compares the JSON Schema with these tables.
type fieldOf[T any] struct {
	name string
	read func(d *decoder, t *T, n *yaml.Node, at string)
}

// decodeObject reads a mapping into t and returns the nodes of its values by name; nil if n is no mapping.
func decodeObject[T any](d *decoder, n *yaml.Node, at string, t *T, fields []fieldOf[T]) map[string]*yaml.Node {
	if n.Kind != yaml.MappingNode {
		d.fail(n, at, "want fields (%s), found %s", fieldNames(fields), describe(n))
		return nil
	}
	nodes := map[string]*yaml.Node{}
	for i := 0; i+1 < len(n.Content); i += 2 {
		key, value := n.Content[i], n.Content[i+1]
		if key.Kind != yaml.ScalarNode {
			d.fail(key, at, "want a field name, found %s", describe(key))
			continue
		}
		field := slices.IndexFunc(fields, func(f fieldOf[T]) bool { return f.name == key.Value })
		if field < 0 {
			d.unknownField(key, at, strings.Split(fieldNames(fields), ", "))
			continue
		}
		if first, ok := nodes[key.Value]; ok {
			d.fail(key, join(at, key.Value), "set twice, first in line %d", first.Line)
			continue
		}
		nodes[key.Value] = value
		fields[field].read(d, t, value, join(at, key.Value))
	}
	return nodes
}

// unknownField reports a field that does not exist, with the field that is probably meant.
func (d *decoder) unknownField(key *yaml.Node, at string, known []string) {
	if name := Nearest(key.Value, known); name != "" {
		d.fail(key, at, "unknown field %q; did you mean %s?", key.Value, name)
		return
	}
	d.fail(key, at, "unknown field %q; known are %s", key.Value, strings.Join(known, ", "))
}

func fieldNames[T any](fields []fieldOf[T]) string {
	names := make([]string, len(fields))
	for i, f := range fields {
		names[i] = f.name
	}
	return strings.Join(names, ", ")
}

// join returns the path of a field within the object at at.
func join(at, name string) string {
	if at == "" {
		return name
	}
	return at + "." + name
}

// describe returns the kind or value of a node, for messages.
func describe(n *yaml.Node) string {
	switch {
	case n.Kind == yaml.MappingNode:
		return "a mapping"
	case n.Kind == yaml.SequenceNode:
		return "a list"
	case n.ShortTag() == "!!null":
		return "nothing"
	case n.ShortTag() == "!!str":
		return strconv.Quote(n.Value)
	}
	return n.Value
}

// text reads a string that is not empty. Numbers and booleans must be quoted, because YAML versions disagree
// about values such as 0x10 and 1_000.
func (d *decoder) text(n *yaml.Node, at string) (string, bool) {
	switch {
	case n.Kind != yaml.ScalarNode || n.ShortTag() == "!!null":
		d.fail(n, at, "want a string, found %s", describe(n))
	case n.ShortTag() != "!!str":
		d.fail(n, at, "want a string, found %s: put it in quotes", n.Value)
	case n.Value == "":
		d.fail(n, at, "must not be empty")
	default:
		return n.Value, true
	}
	return "", false
}

// boolean reads true or false.
func (d *decoder) boolean(n *yaml.Node, at string) (value, ok bool) {
	if n.Kind == yaml.ScalarNode && n.ShortTag() == "!!bool" {
		if value, err := strconv.ParseBool(strings.ToLower(n.Value)); err == nil {
			return value, true
		}
	}
	d.fail(n, at, "want true or false, found %s", describe(n))
	return false, false
}

// durationMax is the longest duration in the file.
const durationMax = 10 * 365 * 24 * time.Hour

// duration reads a Go duration of whole milliseconds, from least to durationMax.
func (d *decoder) duration(n *yaml.Node, at string, least time.Duration) time.Duration {
	v, err := time.ParseDuration(n.Value)
	switch {
	case n.Kind != yaml.ScalarNode || err != nil || n.ShortTag() != "!!str" && v != 0:
		d.fail(n, at, "want a duration such as 24h, 10m or 500ms, found %s", describe(n))
	case v%time.Millisecond != 0:
		d.fail(n, at, "%s is finer than a millisecond", n.Value)
	case v < least:
		d.fail(n, at, "%s is too short: at least %v", n.Value, least)
	case v > durationMax:
		d.fail(n, at, "%s is too long: at most %v (10 years)", n.Value, durationMax)
	default:
		return v
	}
	return 0
}

// integer reads a whole number from least to most.
func (d *decoder) integer(n *yaml.Node, at string, least, most int) int {
	v, err := strconv.Atoi(n.Value)
	if n.Kind != yaml.ScalarNode || n.ShortTag() != "!!int" || err != nil || v < least || v > most {
		d.fail(n, at, "want a whole number from %d to %d, found %s", least, most, describe(n))
		return least
	}
	return v
}

// choice reads one of the names and returns its index; -1 after a mistake.
func (d *decoder) choice(n *yaml.Node, at string, names ...string) int {
	i := slices.Index(names, n.Value)
	if n.Kind != yaml.ScalarNode || i < 0 {
		d.fail(n, at, "want %s, found %s", strings.Join(names, " or "), describe(n))
		return -1
	}
	return i
}

// list calls read for every element of a list that must not be empty.
func (d *decoder) list(n *yaml.Node, at string, read func(n *yaml.Node, at string)) {
	if n.Kind != yaml.SequenceNode {
		want := "want a list"
		if n.Kind == yaml.MappingNode {
			want += ` (each element begins with "- ")`
		} else if n.Kind == yaml.ScalarNode && n.Value != "" {
			want += " such as [" + n.Value + "]"
		}
		d.fail(n, at, "%s, found %s", want, describe(n))
		return
	}
	if len(n.Content) == 0 {
		d.fail(n, at, "must not be empty")
	}
	for i, element := range n.Content {
		read(element, fmt.Sprintf("%s[%d]", at, i))
	}
}
