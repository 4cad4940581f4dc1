package rules

// projection says which part of a payload its source hashes. All derivers share the projection, which never
// changes.
type projection struct {
	tree    *pathNode
	include bool // hash only the tree's paths; else hash all but these paths
}

// projector reduces a checked JSON value to a projection. It recurses along the tree's paths only. Each
// deriver has its own projector.
type projector struct {
	projection

	name []byte // scratch of step
}

// append appends the projected value. With include, it reports whether the value has at least one path of the
// tree.
func (p *projector) append(dst, raw []byte) ([]byte, bool) {
	if p.include {
		out, _, found := p.keep(dst, raw, 0, p.tree)
		return out, found
	}
	out, _ := p.cut(dst, raw, 0, p.tree)
	return out, true
}

// cut copies the value at i without the paths below node, and returns the index after the value. If an element
// of an array is removed, the next element takes its index.
func (p *projector) cut(dst, b []byte, i int, node *pathNode) ([]byte, int) {
	if node == nil || b[i] != '{' && b[i] != '[' {
		end := skipValue(b, i)
		return append(dst, b[i:end]...), end
	}
	object := b[i] == '{'
	dst = append(dst, b[i])
	i = skipSpace(b, i+1)
	for first, n := true, 0; b[i] != '}' && b[i] != ']'; n++ {
		child, label, value := p.step(b, i, n, object, node)
		if child != nil && child.slot >= 0 {
			i = skipValue(b, value)
		} else {
			if !first {
				dst = append(dst, ',')
			}
			first = false
			dst = append(dst, label...)
			dst, i = p.cut(dst, b, value, child)
		}
		i = skipComma(b, i)
	}
	return append(dst, b[i]), i + 1
}

// keep copies only the paths below node of the value at i. It returns the index after the value, and whether
// the value has one of the paths.
//
// A member that contains none of the paths is left out; for example, it may be an empty container, or a number
// although the path has further segments. An array element that contains none of the paths becomes null, so
// that later elements keep their index, but such elements at the end of the array are left out.
func (p *projector) keep(dst, b []byte, i int, node *pathNode) ([]byte, int, bool) {
	if node.slot >= 0 {
		end := skipValue(b, i)
		return append(dst, b[i:end]...), end, true // also null: a stored key of this source has it
	}
	if b[i] != '{' && b[i] != '[' {
		return append(dst, "null"...), skipValue(b, i), false
	}
	object := b[i] == '{'
	dst = append(dst, b[i])
	i = skipSpace(b, i+1)
	open, end, found := len(dst), len(dst), false // dst[:end] ends with the last copied value
	for n := 0; b[i] != '}' && b[i] != ']'; n++ {
		before := len(dst)
		child, label, value := p.step(b, i, n, object, node)
		if before > open {
			dst = append(dst, ',')
		}
		dst = append(dst, label...)
		element, under := len(dst), false
		if child != nil {
			dst, i, under = p.keep(dst, b, value, child)
		} else {
			i = skipValue(b, value)
		}
		switch {
		case under:
			end, found = len(dst), true
		case object:
			dst = dst[:before]
		default:
			dst = append(dst[:element], "null"...)
		}
		i = skipComma(b, i)
	}
	return append(dst[:end], b[i]), i + 1, found
}

// step reads the start of the member or element n at i. It returns the child node,
// the label to copy before the value ("name":) and the index of the value.
func (p *projector) step(b []byte, i, n int, object bool, node *pathNode) (*pathNode, []byte, int) {
	if !object {
		return node.element(n), nil, i
	}
	end := skipString(b, i)
	var name []byte
	name, p.name = unquote(p.name, b[i:end])
	colon := skipSpace(b, end)
	child := node.member(name)
	if colon > end { // drop the space before the colon
		return child, append(append(make([]byte, 0, end-i+1), b[i:end]...), ':'), skipSpace(b, colon+1)
	}
	return child, b[i : colon+1], skipSpace(b, colon+1)
}

// skipComma returns the index of the next member, element or closing bracket.
func skipComma(b []byte, i int) int {
	i = skipSpace(b, i)
	if b[i] == ',' {
		i = skipSpace(b, i+1)
	}
	return i
}
