package rules

import (
	"crypto/sha256"
	"encoding/hex"
	"slices"
	"strconv"

	"go.yaml.in/yaml/v4"
)

// Written returns the text of a field of the route in the file, without comments and format; "" for a field
// that the file leaves out. If two routes have the same text in a field, the field has the same value in both.
func (r *Route) Written(field string) string { return r.written[field] }

// RouteFields returns the names of all fields of a route, in the order of the schema.
func RouteFields() (names []string) {
	for _, f := range routeFields {
		names = append(names, f.name)
	}
	return names
}

// writtenFields returns the texts of a route's fields.
func writtenFields(nodes map[string]*yaml.Node) map[string]string {
	texts := map[string]string{}
	for name, n := range nodes {
		texts[name] = string(appendNode(nil, n))
	}
	return texts
}

// digestOf returns a digest of a file's content. Comments, format and the order of fields do not change the
// digest.
func digestOf(root *yaml.Node) string {
	sum := sha256.Sum256(appendNode(nil, root))
	return hex.EncodeToString(sum[:16])
}

// appendNode appends the content of a node.
func appendNode(b []byte, n *yaml.Node) []byte {
	switch n.Kind {
	case yaml.MappingNode:
		var fields []string
		for i := 0; i+1 < len(n.Content); i += 2 {
			fields = append(fields, string(appendNode(append(appendNode(nil, n.Content[i]), ':'), n.Content[i+1])))
		}
		slices.Sort(fields)
		b = append(b, '{')
		for _, f := range fields {
			b = append(append(b, f...), ',')
		}
		return append(b, '}')
	case yaml.SequenceNode:
		b = append(b, '[')
		for _, element := range n.Content {
			b = append(appendNode(b, element), ',')
		}
		return append(b, ']')
	}
	return strconv.AppendQuote(append(b, n.ShortTag()[2:]...), n.Value)
}
