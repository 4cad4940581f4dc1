package rules

import (
	"errors"
	"fmt"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v4"
)

// Path names a place in a JSON payload: member names joined by dots, "order.id".
// A segment of digits without a leading zero is an index where the payload has
// an array and a name where it has an object: "items.0.sku". A backslash takes
// the meaning from a dot, a star or a backslash: `a\.b` is one member. "*"
// stands for every element of an array and every member of an object; only the
// payload source takes it.
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

type segment struct {
	name  string
	index int  // of an array; -1 where name is no index
	star  bool // matches all; name is "*"
}

// pathSegmentsMax bounds a path's depth, and with it the recursion of every
// walk that follows a path.
const pathSegmentsMax = 32

// parsePath reads a path. Only with star may it have "*" segments.
func parsePath(text string, star bool) (Path, error) {
	p := Path{Text: text}
	var name strings.Builder
	escapedStar := false // the segment has \*, so it is a name
	for i := 0; i <= len(text); i++ {
		switch {
		case i == len(text) || text[i] == '.':
			s, err := newSegment(name.String(), star, escapedStar)
			if err != nil {
				return p, err
			}
			p.segments = append(p.segments, s)
			name.Reset()
			escapedStar = false
		case text[i] == '\\':
			i++
			if i == len(text) || !strings.ContainsRune(`.\*`, rune(text[i])) {
				return p, errors.New(`has a backslash before something other than a dot, a star or a backslash`)
			}
			escapedStar = escapedStar || text[i] == '*'
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

// newSegment makes a segment of an unescaped name. escapedStar reports that a star
// in it had a backslash.
func newSegment(name string, star, escapedStar bool) (segment, error) {
	s := segment{name: name, index: -1}
	switch {
	case name == "":
		return s, errors.New(`has an empty segment (\. is a dot inside a name)`)
	case escapedStar && name != "*": // one way to write a path: its text is part of the key rule
		return s, errors.New(`has \* inside a longer name, where the star needs no backslash`)
	case name == "*" && !escapedStar:
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
	}
	return p
}

// paths reads a list of payload paths.
func (d *decoder) paths(n *yaml.Node, at string, star bool) []Path {
	var paths []Path
	d.list(n, at, func(n *yaml.Node, at string) {
		text, ok := d.text(n, at)
		if !ok {
			return
		}
		for _, p := range paths {
			if p.Text == text {
				d.fail(n, at, "path %q is listed twice", text)
				return
			}
		}
		paths = append(paths, d.path(n, at, text, star))
	})
	return paths
}

// textOf is how a list of paths stands in a source's text.
func textOf(paths []Path) string {
	texts := make([]string, len(paths))
	for i, p := range paths {
		texts[i] = p.Text
	}
	return "[" + strings.Join(texts, ", ") + "]"
}

// pathNode is a tree of paths that share their beginnings. One walk over a
// payload follows all of them.
type pathNode struct {
	segment
	children []*pathNode
	slot     int // where the value found here goes; -1: it is only on the way
}

func newPathTree() *pathNode { return &pathNode{slot: -1} }

// add puts a path under slot and returns the node it ends in. Adding the same
// path again returns the same node.
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

// spreadStars makes what a star leads to reachable through its siblings too, so
// that "items.*.a" also applies next to "items.0.b". Only projection uses it,
// because it copies slots.
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

// member returns the child for an object's member: the one with its name, else
// the star.
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

// element returns the child for an array's element: the one with its index,
// else the star.
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
