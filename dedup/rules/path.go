package rules

import (
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v4"
)

// Path locates a value in a JSON payload: member names joined by dots, such as "order.id".
//
// A segment of digits without a leading zero is an index if the payload has an array at that place, and a name
// if the payload has an object there: "items.0.sku". A backslash escapes a dot, a star or a backslash: `a\.b`
// is one member. "*" matches every element of an array and every member of an object; only the payload source
// accepts it. A path that begins with $ looks like JSONPath, so a first member that is named $ is written \$.
type Path struct {
	Text string // as written in the routes file

	segments []segment
}

// Names returns the names of the path's segments, outermost first.
func (p *Path) Names() []string {
	names := make([]string, len(p.segments))
	for i, s := range p.segments {
		names[i] = s.name
	}
	return names
}

// segment is one step of a Path.
type segment struct {
	name  string
	index int  // index in an array; -1 if name is no index
	star  bool // matches every member and element; name is "*"
}

// pathSegmentsMax is the most segments of a path. It bounds the recursion of the functions that follow paths.
const pathSegmentsMax = 32

// parsePath parses a path. It accepts "*" segments only with star.
func parsePath(text string, star bool) (Path, error) {
	p := Path{Text: text}
	var name strings.Builder
	escaped := "" // the star or dollar that has a backslash in the segment
	for i := 0; i <= len(text); i++ {
		switch {
		case i == len(text) || text[i] == '.':
			s, err := newSegment(name.String(), star, escaped, len(p.segments) == 0)
			if err != nil {
				return p, err
			}
			p.segments = append(p.segments, s)
			name.Reset()
			escaped = ""
		case text[i] == '\\':
			i++
			if i == len(text) || !strings.ContainsRune(`.\*$`, rune(text[i])) {
				return p, errors.New(`has a backslash before something other than a dot, a star, a dollar or a backslash`)
			}
			if text[i] == '*' || text[i] == '$' {
				escaped = text[i : i+1]
			}
			name.WriteByte(text[i])
		default:
			name.WriteByte(text[i])
		}
	}
	if len(p.segments) > pathSegmentsMax {
		return p, fmt.Errorf("has %d segments, at most %d are allowed", len(p.segments), pathSegmentsMax)
	}
	return p, nil
}

// newSegment makes a segment of an unescaped name. escaped is the star or dollar in the name that had a
// backslash, or "". A star or dollar may have a backslash only where it would otherwise have its special
// meaning. Therefore each path can be written in one way only. That matters because the text of the path is
// part of the key rule.
func newSegment(name string, star bool, escaped string, first bool) (segment, error) {
	s := segment{name: name, index: -1}
	switch {
	case name == "":
		return s, errors.New(`has an empty segment (\. is a dot inside a name)`)
	case escaped == "*" && name != "*":
		return s, errors.New(`has \* inside a longer name, where the star needs no backslash`)
	case escaped == "$" && (name != "$" || !first):
		return s, errors.New(`has \$ where the dollar needs no backslash: only a first name that is $ alone needs one`)
	case name == "$" && first && escaped == "":
		return s, errors.New(`begins with $, as in JSONPath: leave "$." out, or write \$ for a member of that name`)
	case name == "*" && escaped == "":
		if !star {
			return s, errors.New("has a star, which only payload include and exclude take: write a star in a name as \\*")
		}
		s.star = true
	}
	if n, err := strconv.Atoi(name); err == nil && n >= 0 && strconv.Itoa(n) == name {
		s.index = n
	}
	return s, nil
}

// field reads a payload path.
func (d *decoder) field(n *yaml.Node, at string) Field {
	text, ok := d.text(n, at)
	if !ok {
		return Field{}
	}
	return newField(d.path(n, at, text, false))
}

func (d *decoder) path(n *yaml.Node, at, text string, star bool) Path {
	p, err := parsePath(text, star)
	if err != nil {
		d.fail(n, at, "path %q %v", text, err)
		return p
	}
	if written, ok := fromPointer(text); ok {
		d.warn(n, at, "path %q is a member of that name: for a way through the payload write %s", text, written)
	}
	return p
}

// fromPointer returns the path that a JSON Pointer such as /a/0, or a JSONPath such as a[0].id, means.
func fromPointer(text string) (path string, ok bool) {
	if inner := strings.TrimPrefix(text, "/"); inner != text && inner != "" && !strings.Contains(inner, ".") {
		return strings.ReplaceAll(inner, "/", "."), true
	}
	path = indexed.ReplaceAllString(text, ".$1")
	return strings.TrimPrefix(path, "."), path != text
}

// indexed matches an element of an array in JSONPath.
var indexed = regexp.MustCompile(`\[(\d+)\]`)

// paths reads a list of payload paths.
func (d *decoder) paths(n *yaml.Node, at string, star bool) []Path {
	var paths []Path
	listed := map[string]bool{}
	d.list(n, at, func(n *yaml.Node, at string) {
		text, ok := d.text(n, at)
		if !ok {
			return
		}
		if listed[text] {
			d.fail(n, at, "path %q is listed twice", text)
			return
		}
		listed[text] = true
		paths = append(paths, d.path(n, at, text, star))
	})
	return paths
}

// textOf returns a list of paths as it appears in a source's text.
func textOf(paths []Path) string {
	texts := make([]string, len(paths))
	for i, p := range paths {
		texts[i] = p.Text
	}
	return "[" + strings.Join(texts, ", ") + "]"
}

// pathNode is a node of a tree that joins paths with common beginnings, so that all paths are followed while a
// payload is read once.
type pathNode struct {
	segment
	children []*pathNode
	slot     int // index of the value in payload.found; -1: no path ends here
}

func newPathTree() *pathNode { return &pathNode{slot: -1} }

// add adds a path with its slot and returns the path's last node. If the tree already has the path, the node
// keeps its slot.
func (n *pathNode) add(segments []segment, slot int) *pathNode {
	for _, s := range segments {
		var next *pathNode
		for _, child := range n.children {
			if child.segment == s {
				next = child
				break
			}
		}
		if next == nil {
			next = &pathNode{segment: s, slot: -1}
			n.children = append(n.children, next)
		}
		n = next
	}
	if n.slot < 0 {
		n.slot = slot
	}
	return n
}

// spreadStars adds the paths below a star to the star's siblings, so that "items.*.a" also applies to the
// element that "items.0.b" names. After that, several nodes have the same slot, which only a projection allows.
func (n *pathNode) spreadStars() {
	for _, star := range n.children {
		if !star.star {
			continue
		}
		for _, sibling := range n.children {
			if sibling != star {
				sibling.merge(star)
			}
		}
	}
	for _, child := range n.children {
		child.spreadStars()
	}
}

// merge adds the paths below other to n.
func (n *pathNode) merge(other *pathNode) {
	if n.slot < 0 {
		n.slot = other.slot
	}
	for _, child := range other.children {
		n.add([]segment{child.segment}, -1).merge(child)
	}
}

// member returns the child for a member of an object: the child with that name, else the star.
func (n *pathNode) member(name []byte) *pathNode {
	var star *pathNode
	for _, child := range n.children {
		if child.star {
			star = child
		} else if child.name == string(name) {
			return child
		}
	}
	return star
}

// element returns the child for an element of an array: the child with that index, else the star.
func (n *pathNode) element(i int) *pathNode {
	var star *pathNode
	for _, child := range n.children {
		if child.star {
			star = child
		} else if child.index == i {
			return child
		}
	}
	return star
}
