package formats

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/bufbuild/protocompile"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// protoMessage is a compiled message type. A type may refer to itself.
type protoMessage struct {
	name   string
	nested []*protoMessage // in the file's order, without the entries of map<...>
	inFile []*protoMessage // in the file's order, with the entries of map<...>
	entry  bool            // of a map
	fields []protoField    // by ascending number
	known  wellKnown
}

// protoField is a field of a message type. The label is its name as the start of a JSON member.
type protoField struct {
	number   int32
	label    []byte
	kind     protoreflect.Kind
	list     bool // a repeated field that is no map
	entry    bool // of a map
	implicit bool // a scalar without presence: if it is not on the wire, it has its default
	oneof    int  // which oneof of its message it belongs to; -1 for none
	message  *protoMessage
	symbols  map[int32][]byte // of an enum, as JSON strings
}

// wellKnown is the kind of a message type whose JSON is not an object of its fields.
type wellKnown uint8

const (
	ordinary wellKnown = iota
	protoTimestamp
	protoDuration
	protoWrapper // of one value
	protoStruct
	protoValue
	protoList
	protoDecimal
)

var wellKnownTypes = map[protoreflect.FullName]wellKnown{
	"google.protobuf.Timestamp": protoTimestamp, "google.protobuf.Duration": protoDuration,
	"google.protobuf.DoubleValue": protoWrapper, "google.protobuf.FloatValue": protoWrapper, "google.protobuf.Int64Value": protoWrapper,
	"google.protobuf.UInt64Value": protoWrapper, "google.protobuf.Int32Value": protoWrapper, "google.protobuf.UInt32Value": protoWrapper,
	"google.protobuf.BoolValue": protoWrapper, "google.protobuf.StringValue": protoWrapper, "google.protobuf.BytesValue": protoWrapper,
	"google.protobuf.Struct": protoStruct, "google.protobuf.Value": protoValue, "google.protobuf.ListValue": protoList,
	"confluent.type.Decimal": protoDecimal,
}

// schemaFile is the name under which the schema itself is compiled. No import has this name.
const schemaFile = "oncebus.schema.proto"

// ParseProtobuf compiles the text of a .proto file. read returns the text of a file that the schema imports,
// directly or through another import, by the name in the import line. ParseProtobuf does not ask read for
// Google's well-known types. Each text may also be a FileDescriptorProto in base64, which Confluent's
// serialisers for Python register.
func ParseProtobuf(schema string, read func(name string) (string, error)) (*Schema, error) {
	c := protoCompiler{named: map[protoreflect.FullName]*protoMessage{}}
	find := func(name string) (protocompile.SearchResult, error) {
		text, known := knownImports[name]
		if name == schemaFile {
			text, known = schema, true
		}
		if !known {
			var err error
			if text, err = read(name); err != nil {
				return protocompile.SearchResult{}, err
			}
		}
		file, implied, err := protoFile(name, text)
		if name == schemaFile {
			c.implied = implied
		}
		return protocompile.SearchResult{Proto: file}, err
	}
	compiler := protocompile.Compiler{Resolver: protocompile.WithStandardImports(protocompile.ResolverFunc(find))}
	linked, err := compiler.Compile(context.Background(), schemaFile)
	if err != nil {
		return nil, fmt.Errorf("protobuf schema: %w", err)
	}
	s := &Schema{messages: c.all(linked[0].Messages())}
	if len(s.messages) == 0 {
		return nil, errors.New("protobuf schema: it defines no message type")
	}
	return s, nil
}

// message returns the message type at a path.
func (s *Schema) message(path messagePath) (*protoMessage, error) {
	if path.depth == 0 {
		return s.messages[0], nil
	}
	found, err := path.in(s.messages, func(m *protoMessage) []*protoMessage { return m.nested })
	if err != nil {
		// The index of a type in its file depends on the serialiser: Confluent's serialisers for Java do not
		// count the entries of map<...> as types, the serialisers for other languages do. A record value itself
		// is never such an entry.
		if other, wrong := path.in(s.messages, func(m *protoMessage) []*protoMessage { return m.inFile }); wrong == nil {
			return other, nil
		}
	}
	return found, err
}

// in follows a path through the types of a file.
func (p messagePath) in(among []*protoMessage, nested func(*protoMessage) []*protoMessage) (found *protoMessage, err error) {
	for _, at := range p.at[:p.depth] {
		if int(at) >= len(among) || among[at].entry {
			return nil, fmt.Errorf("its message type is number %d, its schema has %d there", at, len(among))
		}
		found = among[at]
		among = nested(found)
	}
	return found, nil
}

// OfMessage returns a Located, without a body, for values of a Protobuf message type that name neither their
// schema nor their type. name is the name of the type, with or without its package, or the last part of the
// name; "" means the first type of the file. It returns false if the file has no such type.
func (s *Schema) OfMessage(name string) (l Located, ok bool) {
	if name == "" {
		l.path.depth = 1
		return l, true
	}
	within := len(s.messages[0].name) - len(lastPart(s.messages[0].name)) // the package and a dot
	for _, whole := range [...]bool{true, false} {
		for i, m := range s.messages {
			if l.path, ok = m.pathOf(name, within, whole, messagePath{}, i); ok {
				return l, true
			}
		}
	}
	return l, false
}

// pathOf returns the path of the type with a name among m and the types nested in it. path and at lead to m.
// whole says whether name is the whole name of the type (with or without the package, whose length is within)
// or its last part.
func (m *protoMessage) pathOf(name string, within int, whole bool, path messagePath, at int) (messagePath, bool) {
	if int(path.depth) == len(path.at) {
		return path, false
	}
	path.at[path.depth] = uint16(at)
	path.depth++
	if whole && (m.name == name || m.name[within:] == name) || !whole && lastPart(m.name) == name {
		return path, true
	}
	for i, nested := range m.nested {
		if path, ok := nested.pathOf(name, within, whole, path, i); ok {
			return path, true
		}
	}
	return path, false
}

func lastPart(name string) string { return string(protoreflect.FullName(name).Name()) }

// protoCompiler turns the descriptors of a file into protoMessages, each type once.
type protoCompiler struct {
	named   map[protoreflect.FullName]*protoMessage
	implied map[protoreflect.FullName]bool // entries of maps that the text has as map<...>
}

func (c *protoCompiler) all(of protoreflect.MessageDescriptors) []*protoMessage {
	var all []*protoMessage
	for i := range of.Len() {
		all = append(all, c.compile(of.Get(i)))
	}
	return all
}

func (c *protoCompiler) compile(of protoreflect.MessageDescriptor) *protoMessage {
	if known := c.named[of.FullName()]; known != nil {
		return known
	}
	m := &protoMessage{name: string(of.FullName()), known: wellKnownTypes[of.FullName()]}
	c.named[of.FullName()] = m
	m.entry = of.IsMapEntry()
	m.inFile = c.all(of.Messages())
	m.nested = slices.DeleteFunc(slices.Clone(m.inFile), func(n *protoMessage) bool { return c.implied[protoreflect.FullName(n.name)] })
	for i := range of.Fields().Len() {
		m.fields = append(m.fields, c.field(of.Fields().Get(i)))
	}
	slices.SortFunc(m.fields, func(a, b protoField) int { return int(a.number) - int(b.number) })
	return m
}

func (c *protoCompiler) field(of protoreflect.FieldDescriptor) protoField {
	f := protoField{
		number: int32(of.Number()), label: append(quoteName(of.Name()), ':'), kind: of.Kind(),
		list: of.IsList(), entry: of.IsMap(), implicit: !of.HasPresence() && of.Cardinality() != protoreflect.Repeated, oneof: -1,
	}
	if o := of.ContainingOneof(); o != nil && !o.IsSynthetic() {
		f.oneof = o.Index()
	}
	switch {
	case of.Message() != nil:
		f.message = c.compile(of.Message())
	case of.Enum() != nil:
		f.symbols = map[int32][]byte{}
		values := of.Enum().Values()
		for i := range values.Len() {
			value := values.Get(i)
			if _, ok := f.symbols[int32(value.Number())]; !ok { // a number with several names gets the first
				f.symbols[int32(value.Number())] = quoteName(value.Name())
			}
		}
	}
	return f
}

// quoteName returns a name as a JSON string. Names have letters, digits and underscores only.
func quoteName(name protoreflect.Name) []byte {
	return append(append([]byte{'"'}, name...), '"')
}

// find returns the index of the field with a number; -1 for none.
func (m *protoMessage) find(number int32) int {
	if at := int(number) - 1; at < len(m.fields) && at >= 0 && m.fields[at].number == number {
		return at // most often the fields are numbered without a gap
	}
	at, ok := slices.BinarySearchFunc(m.fields, number, func(f protoField, number int32) int { return int(f.number) - int(number) })
	if !ok {
		return -1
	}
	return at
}
