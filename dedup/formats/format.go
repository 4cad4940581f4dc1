package formats

import (
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
)

// Format is the encoding of record values.
type Format uint8

// Formats.
const (
	JSON       Format = iota
	Avro              // Apache Avro, binary
	Protobuf          // Protocol Buffers
	JSONSchema        // JSON text behind the prefix of a schema registry
	CBOR              // RFC 8949
	MessagePack
)

var formatNames = [...]string{"json", "avro", "protobuf", "json_schema", "cbor", "msgpack"}

// Names returns the names of the formats in a routes file.
func Names() []string { return slices.Clone(formatNames[:]) }

// String returns the format's name in a routes file.
func (f Format) String() string { return formatNames[f] }

// NeedsSchema reports whether a value can be read only with the schema with which it was written.
func (f Format) NeedsSchema() bool { return f == Avro || f == Protobuf }

// ValueSchemaHeader is the header in which newer Confluent clients name the schema of a value. Such a value
// has no prefix.
const ValueSchemaHeader = "__value_schema_id"

// The first byte of the name of a schema, in a prefix or a header.
const (
	magicID   = 0 // followed by an id of 4 bytes
	magicGUID = 1 // followed by a GUID of 16 bytes
)

// Reference names the schema of a record in its registry, by id or by GUID. The zero Reference names none. A
// Reference is comparable.
type Reference struct {
	id     uint32
	guid   [16]byte
	byGUID bool
	set    bool
}

// IDReference returns the reference to the schema with an id.
func IDReference(id uint32) Reference { return Reference{id: id, set: true} }

// IsSet reports whether the reference names a schema.
func (r Reference) IsSet() bool { return r.set }

// ID returns the id of the schema; false if the reference names it by a GUID.
func (r Reference) ID() (uint32, bool) { return r.id, r.set && !r.byGUID }

// GUID returns the GUID as it is written in the paths of a registry; false if the reference names the schema
// by an id.
func (r Reference) GUID() (string, bool) {
	if !r.byGUID {
		return "", false
	}
	h := hex.EncodeToString(r.guid[:])
	return h[:8] + "-" + h[8:12] + "-" + h[12:16] + "-" + h[16:20] + "-" + h[20:], true
}

// String returns "schema 7" or "schema 89791762-2336-...".
func (r Reference) String() string {
	if guid, ok := r.GUID(); ok {
		return "schema " + guid
	}
	return "schema " + strconv.FormatUint(uint64(r.id), 10)
}

// Located is a record value together with the reference to its schema.
type Located struct {
	Schema Reference
	Body   []byte // encoded, without a prefix
	path   messagePath
}

// messagePath says which message type of a Protobuf file a value has: the index among the types of the file,
// then the index among the types nested in that type, and so on.
type messagePath struct {
	at    [messageDepthMax]uint16
	depth uint8
}

// messageDepthMax is how deep a message type may be nested in others.
const messageDepthMax = 8

// Errors of a record that does not name its schema as the format demands.
var (
	errNoPrefix = errors.New("does not begin with a zero byte and the id of a schema, as the Confluent wire format does, and has no header " + ValueSchemaHeader)
	errHeader   = errors.New("header " + ValueSchemaHeader + " is neither a zero byte and an id of 4 bytes nor a one and a GUID of 16")
	errID       = errors.New("names a schema by a negative id, which no registry has")
	errPath     = fmt.Errorf("the path of its message type is cut short, or has more than %d steps", messageDepthMax)
)

// Locate finds the schema that a record names: in the header (nil for none), else in the prefix of the value.
// A value of JSONSchema may have neither.
func (f Format) Locate(value, header []byte) (l Located, err error) {
	from := value
	if header != nil {
		from = header
	}
	var rest []byte
	switch {
	case len(from) >= 5 && from[0] == magicID && from[1] >= 0x80: // a registry would answer a negative id as a wrong request
		return Located{}, errID
	case len(from) >= 5 && from[0] == magicID:
		l.Schema, rest = IDReference(binary.BigEndian.Uint32(from[1:])), from[5:]
	case len(from) >= 17 && from[0] == magicGUID:
		l.Schema, rest = Reference{guid: [16]byte(from[1:17]), byGUID: true, set: true}, from[17:]
	case header != nil:
		return Located{}, errHeader
	case f == JSONSchema:
		return Located{Body: value}, nil
	default:
		return Located{}, errNoPrefix
	}
	if f == Protobuf {
		if rest, err = l.path.read(rest); err != nil {
			return Located{}, err
		}
	}
	if l.Body = rest; header != nil {
		if len(rest) > 0 {
			return Located{}, errHeader
		}
		l.Body = value
	}
	return l, nil
}

// read reads a path of the Confluent wire format: the number of steps, then each step, as varints in zigzag
// form. A single zero stands for the first type of the file.
func (p *messagePath) read(b []byte) ([]byte, error) {
	n, size := binary.Varint(b)
	if size <= 0 || n < 0 || n > messageDepthMax {
		return nil, errPath
	}
	b = b[size:]
	if n == 0 {
		p.depth = 1
		return b, nil
	}
	for i := range n {
		at, size := binary.Varint(b)
		if size <= 0 || at < 0 || at > math.MaxUint16 {
			return nil, errPath
		}
		p.at[i], b = uint16(at), b[size:]
	}
	p.depth = uint8(n)
	return b, nil
}
