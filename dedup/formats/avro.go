package formats

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math"
	"strings"
	"time"

	"github.com/twmb/avro"
)

// avroKind is how a value is encoded on the wire.
type avroKind uint8

const (
	avroNull avroKind = iota
	avroBoolean
	avroInt // also long: both are a varint
	avroFloat
	avroDouble
	avroBytes
	avroString
	avroFixed
	avroEnum
	avroArray
	avroMap
	avroUnion
	avroRecord
)

// avroLogical is what a value means: its logical type.
type avroLogical uint8

const (
	plain avroLogical = iota
	decimalNumber
	uuid
	date
	timeOfDay
	timestamp
	localTimestamp
)

// avroNode is a node of a compiled schema. A named type may refer to itself.
type avroNode struct {
	kind    avroKind
	logical avroLogical
	unit    time.Duration // of a time
	scale   int           // of a decimal
	size    int           // of a fixed

	fields   []avroField // of a record
	items    *avroNode   // of an array or a map
	branches []*avroNode // of a union
	symbols  [][]byte    // of an enum, as JSON strings
}

// avroField is a field of a record. The label is its name as the start of a JSON member.
type avroField struct {
	label []byte
	node  *avroNode
}

// ParseAvro compiles an Avro schema. references are the schemas to whose types the schema refers. In
// references, a schema comes after all schemas to which it refers itself.
func ParseAvro(schema string, references ...string) (*Schema, error) {
	var cache avro.SchemaCache
	c := avroCompiler{named: map[string]*avroNode{}}
	var root *avroNode
	for _, text := range append(references[:len(references):len(references)], schema) {
		parsed, err := cache.Parse(plainAvro(text), avro.WithLaxNames(nil))
		if err != nil {
			return nil, fmt.Errorf("avro schema: %w", err)
		}
		if root, err = c.compile(parsed.Root(), ""); err == nil {
			err = c.resolve()
		}
		if err != nil {
			return nil, fmt.Errorf("avro schema: %w", err)
		}
	}
	return &Schema{avro: root}, nil
}

// avroCompiler turns parsed schemas into avroNodes. It keeps the named types, because later schemas refer to
// them.
type avroCompiler struct {
	named   map[string]*avroNode
	pending []avroPending
}

// avroPending is a reference to a type whose name is defined later, if at all.
type avroPending struct {
	node            *avroNode
	name, namespace string
}

var avroPrimitives = map[string]avroKind{
	"null": avroNull, "boolean": avroBoolean, "int": avroInt, "long": avroInt, "float": avroFloat, "double": avroDouble,
	"bytes": avroBytes, "string": avroString,
}

// compile compiles a node. namespace is the namespace of the type around the node.
func (c *avroCompiler) compile(n *avro.SchemaNode, namespace string) (node *avroNode, err error) {
	node = &avroNode{scale: n.Scale, size: n.Size}
	if kind, ok := avroPrimitives[n.Type]; ok {
		node.kind = kind
		node.setLogical(n)
		return node, nil
	}
	switch n.Type {
	case "array":
		node.kind = avroArray
		node.items, err = c.compile(n.Items, namespace)
	case "map":
		node.kind = avroMap
		node.items, err = c.compile(n.Values, namespace)
	case "union":
		node.kind = avroUnion
		for i := range n.Branches {
			branch, err := c.compile(&n.Branches[i], namespace)
			if err != nil {
				return nil, err
			}
			node.branches = append(node.branches, branch)
		}
	case "record", "error", "enum", "fixed":
		err = c.compileNamed(n, node)
	default:
		if known := c.find(n.Type, namespace); known != nil {
			return known, nil
		}
		c.pending = append(c.pending, avroPending{node, n.Type, namespace})
	}
	return node, err
}

// compileNamed compiles a named type. It registers the name first, because fields of the type may refer to the
// type itself.
func (c *avroCompiler) compileNamed(n *avro.SchemaNode, node *avroNode) error {
	namespace, name := n.Namespace, n.Name
	if dot := strings.LastIndexByte(name, '.'); dot >= 0 {
		namespace, name = name[:dot], name[dot+1:]
	}
	c.named[fullName(namespace, name)] = node
	switch n.Type {
	case "enum":
		node.kind = avroEnum
		for _, symbol := range n.Symbols {
			quoted, err := appendText(nil, []byte(symbol))
			if err != nil {
				return fmt.Errorf("a symbol of %s: %w", n.Name, err)
			}
			node.symbols = append(node.symbols, quoted)
		}
	case "fixed":
		node.kind = avroFixed
		node.setLogical(n)
	default:
		node.kind = avroRecord
		for i := range n.Fields {
			field := &n.Fields[i]
			label, err := appendText(nil, []byte(field.Name))
			if err != nil {
				return fmt.Errorf("a field of %s: %w", n.Name, err)
			}
			of, err := c.compile(&field.Type, namespace)
			if err != nil {
				return err
			}
			node.fields = append(node.fields, avroField{append(label, ':'), of})
		}
	}
	return nil
}

// find returns the type with a name; nil for none. A name without a namespace is looked up in namespace
// first.
func (c *avroCompiler) find(name, namespace string) *avroNode {
	if !strings.Contains(name, ".") {
		if node := c.named[fullName(namespace, name)]; node != nil {
			return node
		}
	}
	return c.named[name]
}

// resolve completes the references to types that are defined after their first use.
func (c *avroCompiler) resolve() error {
	for _, p := range c.pending {
		node := c.find(p.name, p.namespace)
		if node == nil {
			return fmt.Errorf("it refers to the type %s, which neither it nor one of its references defines", p.name)
		}
		*p.node = *node
	}
	c.pending = nil
	return nil
}

func fullName(namespace, name string) string {
	if namespace == "" {
		return name
	}
	return namespace + "." + name
}

// setLogical sets what a value means. An unknown logical type has no meaning, as the specification demands.
func (n *avroNode) setLogical(of *avro.SchemaNode) {
	switch of.LogicalType {
	case "decimal":
		if n.kind == avroBytes || n.kind == avroFixed {
			n.logical = decimalNumber
		}
	case "uuid":
		if n.kind == avroString || n.kind == avroFixed && n.size == 16 {
			n.logical = uuid
		}
	case "date":
		n.setTime(of.Type == "int", date, 24*time.Hour)
	case "time-millis":
		n.setTime(of.Type == "int", timeOfDay, time.Millisecond)
	case "time-micros":
		n.setTime(of.Type == "long", timeOfDay, time.Microsecond)
	case "timestamp-millis":
		n.setTime(of.Type == "long", timestamp, time.Millisecond)
	case "timestamp-micros":
		n.setTime(of.Type == "long", timestamp, time.Microsecond)
	case "timestamp-nanos":
		n.setTime(of.Type == "long", timestamp, time.Nanosecond)
	case "local-timestamp-millis":
		n.setTime(of.Type == "long", localTimestamp, time.Millisecond)
	case "local-timestamp-micros":
		n.setTime(of.Type == "long", localTimestamp, time.Microsecond)
	case "local-timestamp-nanos":
		n.setTime(of.Type == "long", localTimestamp, time.Nanosecond)
	}
}

// setTime sets the meaning of an integer, unless the logical type does not belong to the type of the integer.
func (n *avroNode) setTime(valid bool, logical avroLogical, unit time.Duration) {
	if valid {
		n.logical, n.unit = logical, unit
	}
}

// avroReader reads one value.
type avroReader struct {
	b     []byte
	limit int // longest text, in bytes
}

// value reads a value of the type n, with all values in it, and appends its JSON text.
func (r *avroReader) value(dst []byte, n *avroNode, depth int) ([]byte, error) {
	if depth > depthMax {
		return dst, errDeep
	}
	if len(dst) > r.limit {
		return dst, errLong(r.limit)
	}
	switch n.kind {
	case avroNull:
		return append(dst, "null"...), nil
	case avroBoolean:
		b, err := r.take(1)
		switch {
		case err != nil:
			return dst, err
		case b[0] > 1:
			return dst, fmt.Errorf("a boolean is %d, want 0 or 1", b[0])
		case b[0] == 1:
			return append(dst, "true"...), nil
		}
		return append(dst, "false"...), nil
	case avroInt:
		v, err := r.long()
		if err != nil {
			return dst, err
		}
		return n.appendLong(dst, v), nil
	case avroFloat:
		b, err := r.take(4)
		if err != nil {
			return dst, err
		}
		return appendFloat(dst, float64(math.Float32frombits(binary.LittleEndian.Uint32(b))), 32), nil
	case avroDouble:
		b, err := r.take(8)
		if err != nil {
			return dst, err
		}
		return appendFloat(dst, math.Float64frombits(binary.LittleEndian.Uint64(b)), 64), nil
	case avroArray, avroMap:
		return r.blocks(dst, n, depth)
	case avroEnum, avroUnion, avroRecord:
		return r.compound(dst, n, depth)
	case avroBytes, avroString, avroFixed:
	}
	return r.bytes(dst, n)
}

// compound reads an enum, a union or a record.
func (r *avroReader) compound(dst []byte, n *avroNode, depth int) ([]byte, error) {
	if n.kind == avroRecord {
		dst = append(dst, '{')
		for i := range n.fields {
			if i > 0 {
				dst = append(dst, ',')
			}
			var err error
			if dst, err = r.value(append(dst, n.fields[i].label...), n.fields[i].node, depth+1); err != nil {
				return dst, err
			}
		}
		return append(dst, '}'), nil
	}
	at, err := r.long()
	switch {
	case err != nil:
		return dst, err
	case n.kind == avroEnum && at >= 0 && at < int64(len(n.symbols)):
		return append(dst, n.symbols[at]...), nil
	case n.kind == avroUnion && at >= 0 && at < int64(len(n.branches)):
		return r.value(dst, n.branches[at], depth+1)
	case n.kind == avroEnum:
		return dst, fmt.Errorf("an enum has the index %d, its schema has %d symbols", at, len(n.symbols))
	}
	return dst, fmt.Errorf("a union has the index %d, its schema has %d branches", at, len(n.branches))
}

// blocks reads an array or a map. If the count of a block is negative, the length of the block in bytes follows
// the count, before the items.
func (r *avroReader) blocks(dst []byte, n *avroNode, depth int) ([]byte, error) {
	open, end := byte('['), byte(']')
	if n.kind == avroMap {
		open, end = '{', '}'
	}
	dst = append(dst, open)
	for first := true; ; {
		count, err := r.count()
		if err != nil || count == 0 {
			return append(dst, end), err
		}
		for ; count > 0; count-- {
			if !first {
				dst = append(dst, ',')
			}
			first = false
			if dst, err = r.item(dst, n, depth); err != nil {
				return dst, err
			}
		}
	}
}

// count reads how many items a block has.
func (r *avroReader) count() (int64, error) {
	count, err := r.long()
	if err != nil || count >= 0 {
		return count, err
	}
	if _, err := r.long(); err != nil {
		return 0, err
	}
	if count = -count; count < 0 { // the lowest int64 has no positive counterpart
		return 0, errShort
	}
	return count, nil
}

// item reads an element of an array, or a name and a value of a map.
func (r *avroReader) item(dst []byte, n *avroNode, depth int) ([]byte, error) {
	if n.kind == avroMap {
		name, err := r.text()
		if err != nil {
			return dst, err
		}
		if dst, err = appendText(dst, name); err != nil {
			return dst, err
		}
		dst = append(dst, ':')
	}
	return r.value(dst, n.items, depth+1)
}

// bytes reads bytes, a string or a fixed.
func (r *avroReader) bytes(dst []byte, n *avroNode) ([]byte, error) {
	var b []byte
	var err error
	if n.kind == avroFixed {
		b, err = r.take(n.size)
	} else {
		b, err = r.text()
	}
	switch {
	case err != nil:
		return dst, err
	case n.logical == decimalNumber:
		return appendDecimal(dst, b, n.scale), nil
	case n.logical == uuid && n.kind == avroFixed:
		return appendUUID(dst, [16]byte(b)), nil
	case n.logical == uuid:
		return appendText(dst, bytes.ToLower(b))
	case n.kind == avroString:
		return appendText(dst, b)
	}
	return appendBase64(dst, b), nil
}

// appendLong appends an int or a long. A value that is not a time in the years 0 to 9999, or not a time of day,
// is written as a number and is no error, because some senders use the highest long for "never".
func (n *avroNode) appendLong(dst []byte, v int64) []byte {
	mark, err := len(dst), errTime
	switch n.logical {
	case date:
		if v > -1_000_000 && v < 10_000_000 { // days; appendTime knows the exact bounds
			dst, err = appendTime(dst, layoutDate, v*24*60*60, time.Second)
		}
	case timeOfDay:
		if v >= 0 && v < int64(24*time.Hour/n.unit) {
			dst, err = appendTime(dst, layoutTime, v, n.unit)
		}
	case timestamp:
		dst, err = appendTime(dst, layoutTimestamp, v, n.unit)
	case localTimestamp:
		dst, err = appendTime(dst, layoutLocal, v, n.unit)
	case plain, decimalNumber, uuid:
	}
	if err != nil {
		return appendInt(dst[:mark], v)
	}
	return dst
}

// long reads an int or a long: a varint in zigzag form.
func (r *avroReader) long() (int64, error) {
	v, n := binary.Varint(r.b)
	if n <= 0 {
		return 0, errShort
	}
	r.b = r.b[n:]
	return v, nil
}

// text reads a length, and then that many bytes.
func (r *avroReader) text() ([]byte, error) {
	n, err := r.long()
	if err != nil || n < 0 || n > int64(len(r.b)) {
		return nil, errShort
	}
	return r.take(int(n))
}

func (r *avroReader) take(n int) ([]byte, error) {
	if n > len(r.b) {
		return nil, errShort
	}
	b := r.b[:n]
	r.b = r.b[n:]
	return b, nil
}
