package formats

import (
	"encoding/binary"
	"math"
	"time"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// protoPart is one occurrence of a field on the wire, without its tag.
type protoPart struct {
	field int // index of the field in the message type
	wire  protowire.Type
	b     []byte
}

// protoReader reads one value. Fields may be on the wire in any order and more than once. So the reader first
// finds the parts of a message, and then writes them in ascending order of the fields.
type protoReader struct {
	parts []protoPart // of the open messages, the innermost last
	limit int         // of the text
}

// message reads a message of type m from b and appends its JSON text.
func (r *protoReader) message(dst []byte, m *protoMessage, b []byte, depth int) ([]byte, error) {
	if depth > depthMax {
		return dst, errDeep
	}
	first := len(r.parts)
	defer func() { r.parts = r.parts[:first] }()
	if err := r.split(m, b); err != nil {
		return dst, err
	}
	if m.known != ordinary {
		return r.wellKnown(dst, m, first, depth)
	}
	return r.object(dst, m, first, depth)
}

// split appends the parts of a message. It ignores a part whose wire type is not one of its field, just as it
// ignores a part of a field that the schema does not have.
func (r *protoReader) split(m *protoMessage, b []byte) error {
	first := len(r.parts)
	for len(b) > 0 {
		number, wire, n := protowire.ConsumeTag(b)
		if n < 0 || number > protowire.MaxValidNumber {
			return errShort
		}
		b = b[n:]
		if n = protowire.ConsumeFieldValue(number, wire, b); n < 0 {
			return errShort
		}
		value := b[:n]
		b = b[n:]
		at := m.find(int32(number))
		if at < 0 || !m.fields[at].takes(wire) {
			continue
		}
		switch wire {
		case protowire.BytesType:
			value, _ = protowire.ConsumeBytes(value)
		case protowire.StartGroupType:
			value, _ = protowire.ConsumeGroup(number, value)
		case protowire.VarintType, protowire.Fixed32Type, protowire.Fixed64Type, protowire.EndGroupType:
		}
		r.add(m, first, protoPart{at, wire, value})
	}
	return nil
}

// add inserts a part after the earlier parts of its field. Of the fields of a oneof only the last one on the
// wire counts.
func (r *protoReader) add(m *protoMessage, first int, part protoPart) {
	f := &m.fields[part.field]
	if f.oneof >= 0 {
		kept := r.parts[:first]
		for _, p := range r.parts[first:] {
			if p.field == part.field || m.fields[p.field].oneof != f.oneof {
				kept = append(kept, p)
			}
		}
		r.parts = kept
	}
	at := len(r.parts)
	for at > first && r.parts[at-1].field > part.field {
		at--
	}
	r.parts = append(r.parts, part)
	if at < len(r.parts)-1 {
		copy(r.parts[at+1:], r.parts[at:])
		r.parts[at] = part
	}
}

// takes reports whether the field may have the wire type.
func (f *protoField) takes(wire protowire.Type) bool {
	packed := f.list && wire == protowire.BytesType && f.kind != protoreflect.GroupKind
	return packed || wire == wireTypes[f.kind]
}

var wireTypes = [...]protowire.Type{
	protoreflect.BoolKind: protowire.VarintType, protoreflect.EnumKind: protowire.VarintType,
	protoreflect.Int32Kind: protowire.VarintType, protoreflect.Sint32Kind: protowire.VarintType, protoreflect.Uint32Kind: protowire.VarintType,
	protoreflect.Int64Kind: protowire.VarintType, protoreflect.Sint64Kind: protowire.VarintType, protoreflect.Uint64Kind: protowire.VarintType,
	protoreflect.Sfixed32Kind: protowire.Fixed32Type, protoreflect.Fixed32Kind: protowire.Fixed32Type, protoreflect.FloatKind: protowire.Fixed32Type,
	protoreflect.Sfixed64Kind: protowire.Fixed64Type, protoreflect.Fixed64Kind: protowire.Fixed64Type, protoreflect.DoubleKind: protowire.Fixed64Type,
	protoreflect.StringKind: protowire.BytesType, protoreflect.BytesKind: protowire.BytesType,
	protoreflect.MessageKind: protowire.BytesType, protoreflect.GroupKind: protowire.StartGroupType,
}

// object writes the parts from first on as a JSON object. A field without presence that is not on the wire
// has its default, because senders leave out a field with the default value.
func (r *protoReader) object(dst []byte, m *protoMessage, first, depth int) ([]byte, error) {
	dst = append(dst, '{')
	open, at := len(dst), first
	for i := range m.fields {
		f, next := &m.fields[i], at
		for next < len(r.parts) && r.parts[next].field == i {
			next++
		}
		if next == at && !f.implicit {
			continue
		}
		var err error
		dst = append(appendComma(dst, open), f.label...)
		if next == at {
			dst, err = f.zero(dst)
		} else {
			dst, err = r.field(dst, f, at, next, depth)
		}
		if err != nil {
			return dst, err
		}
		if len(dst) > r.limit {
			return dst, errLong(r.limit)
		}
		at = next
	}
	return append(dst, '}'), nil
}

// field writes the parts from at to next, which all belong to one field.
func (r *protoReader) field(dst []byte, f *protoField, at, next, depth int) ([]byte, error) {
	switch {
	case f.entry:
		return r.entries(dst, f, at, next, depth)
	case f.list:
		return r.list(dst, f, at, next, depth)
	case f.message != nil:
		b, err := merged(r.parts[at:next])
		if err != nil {
			return dst, err
		}
		return r.message(dst, f.message, b, depth+1)
	default:
		return f.scalar(dst, r.parts[next-1].b)
	}
}

// merged returns the message that the parts make together, as if one followed the other; nil without parts.
func merged(parts []protoPart) (b []byte, err error) {
	if len(parts) == 1 {
		return parts[0].b, nil
	}
	for _, part := range parts {
		if !isWhole(part.b) { // otherwise the next part would complete this one
			return nil, errShort
		}
		b = append(b, part.b...)
	}
	return b, nil
}

// isWhole reports whether the bytes of a message end where one of its fields ends.
func isWhole(b []byte) bool {
	for len(b) > 0 {
		_, _, n := protowire.ConsumeField(b)
		if n < 0 {
			return false
		}
		b = b[n:]
	}
	return true
}

func (r *protoReader) list(dst []byte, f *protoField, at, next, depth int) ([]byte, error) {
	dst = append(dst, '[')
	open := len(dst)
	for ; at < next; at++ {
		var err error
		part := r.parts[at]
		switch {
		case part.wire == protowire.BytesType && wireTypes[f.kind] != protowire.BytesType:
			dst, err = f.packed(dst, part.b, open)
		case f.message != nil:
			dst, err = r.message(appendComma(dst, open), f.message, part.b, depth+1)
		default:
			dst, err = f.scalar(appendComma(dst, open), part.b)
		}
		if err != nil {
			return dst, err
		}
		if len(dst) > r.limit {
			return dst, errLong(r.limit)
		}
	}
	return append(dst, ']'), nil
}

// packed writes scalars that are packed into one part, into the list that began at open.
func (f *protoField) packed(dst, b []byte, open int) (_ []byte, err error) {
	for len(b) > 0 {
		n := protowire.ConsumeFieldValue(1, wireTypes[f.kind], b)
		if n < 0 {
			return dst, errShort
		}
		if dst, err = f.scalar(appendComma(dst, open), b[:n]); err != nil {
			return dst, err
		}
		b = b[n:]
	}
	return dst, nil
}

// appendComma appends a comma, unless dst ends where the list or object began.
func appendComma(dst []byte, open int) []byte {
	if len(dst) > open {
		return append(dst, ',')
	}
	return dst
}

// entries writes a map.
func (r *protoReader) entries(dst []byte, f *protoField, at, next, depth int) ([]byte, error) {
	if depth >= depthMax {
		return dst, errDeep
	}
	dst = append(dst, '{')
	for open := len(dst); at < next; at++ {
		var err error
		if dst, err = r.entry(appendComma(dst, open), f.message, r.parts[at].b, depth); err != nil {
			return dst, err
		}
		if len(dst) > r.limit {
			return dst, errLong(r.limit)
		}
	}
	return append(dst, '}'), nil
}

// entry writes an entry of a map. An entry is a message with the fields 1 and 2, which have their defaults if
// they are not on the wire.
func (r *protoReader) entry(dst []byte, of *protoMessage, b []byte, depth int) ([]byte, error) {
	mark := len(r.parts)
	if err := r.split(of, b); err != nil {
		return dst, err
	}
	var ofKey []byte
	values := mark
	for ; values < len(r.parts) && r.parts[values].field == 0; values++ {
		ofKey = r.parts[values].b
	}
	ofValue := r.parts[values:]
	r.parts = r.parts[:mark]
	dst, err := of.fields[0].name(dst, ofKey)
	if err != nil {
		return dst, err
	}
	dst = append(dst, ':')
	value := &of.fields[1]
	if value.message != nil {
		b, err := merged(ofValue)
		if err != nil {
			return dst, err
		}
		return r.message(dst, value.message, b, depth+2)
	}
	if len(ofValue) == 0 {
		return value.zero(dst)
	}
	return value.scalar(dst, ofValue[len(ofValue)-1].b)
}

// name writes the key of a map's entry as the name of a JSON member.
func (f *protoField) name(dst, b []byte) ([]byte, error) {
	mark := len(dst)
	var err error
	if b == nil {
		dst, err = f.zero(dst)
	} else {
		dst, err = f.scalar(dst, b)
	}
	if err == nil && dst[mark] != '"' {
		dst = quoteFrom(dst, mark)
	}
	return dst, err
}

// zero writes the default of a scalar field.
func (f *protoField) zero(dst []byte) ([]byte, error) {
	if wireTypes[f.kind] == protowire.BytesType {
		return append(dst, `""`...), nil
	}
	return f.scalar(dst, zeros[:])
}

var zeros [8]byte // 0 in each wire type of a number

// scalar writes one value that is no message. b has the whole value.
func (f *protoField) scalar(dst, b []byte) ([]byte, error) {
	switch f.kind {
	case protoreflect.StringKind:
		return appendText(dst, b)
	case protoreflect.BytesKind:
		return appendBase64(dst, b), nil
	case protoreflect.FloatKind:
		return appendFloat(dst, float64(math.Float32frombits(binary.LittleEndian.Uint32(b))), 32), nil
	case protoreflect.DoubleKind:
		return appendFloat(dst, math.Float64frombits(binary.LittleEndian.Uint64(b)), 64), nil
	case protoreflect.Fixed32Kind:
		return appendUint(dst, uint64(binary.LittleEndian.Uint32(b))), nil
	case protoreflect.Sfixed32Kind:
		return appendInt(dst, int64(int32(binary.LittleEndian.Uint32(b)))), nil
	case protoreflect.Fixed64Kind:
		return appendUint(dst, binary.LittleEndian.Uint64(b)), nil
	case protoreflect.Sfixed64Kind:
		return appendInt(dst, int64(binary.LittleEndian.Uint64(b))), nil
	default:
	}
	v, n := protowire.ConsumeVarint(b)
	if n < 0 {
		return dst, errShort
	}
	return f.varint(dst, v), nil
}

// varint writes the value of a varint. A field of 32 bits has only the lower half of it.
func (f *protoField) varint(dst []byte, v uint64) []byte {
	switch f.kind {
	case protoreflect.BoolKind:
		if v != 0 {
			return append(dst, "true"...)
		}
		return append(dst, "false"...)
	case protoreflect.EnumKind:
		if symbol, ok := f.symbols[int32(v)]; ok {
			return append(dst, symbol...)
		}
		return appendInt(dst, int64(int32(v)))
	case protoreflect.Int32Kind:
		return appendInt(dst, int64(int32(v)))
	case protoreflect.Sint32Kind:
		return appendInt(dst, int64(int32(protowire.DecodeZigZag(v&math.MaxUint32))))
	case protoreflect.Uint32Kind:
		return appendUint(dst, uint64(uint32(v)))
	case protoreflect.Sint64Kind:
		return appendInt(dst, protowire.DecodeZigZag(v))
	case protoreflect.Uint64Kind:
		return appendUint(dst, v)
	default: // Int64Kind
		return appendInt(dst, int64(v))
	}
}

// wellKnown writes a message whose type has a JSON form of its own.
func (r *protoReader) wellKnown(dst []byte, m *protoMessage, first, depth int) ([]byte, error) {
	switch m.known {
	case protoTimestamp:
		seconds, nanos := r.varintOf(first, 0), r.varintOf(first, 1)
		if nanos < 0 || nanos >= int64(time.Second) {
			return dst, errTime
		}
		return appendSeconds(dst, seconds, nanos)
	case protoDecimal:
		scale := r.varintOf(first, 2)
		if scale < -decimalScaleMax || scale > decimalScaleMax {
			return dst, errScale
		}
		return appendDecimal(dst, r.bytesOf(first, 0), int(scale)), nil
	case protoWrapper:
		if len(r.parts) == first {
			return m.fields[0].zero(dst)
		}
		return m.fields[0].scalar(dst, r.parts[len(r.parts)-1].b)
	case protoStruct, protoList:
		// Both types have one field, a map or a list, which stands for the message.
		f := &m.fields[0]
		if m.known == protoStruct {
			return r.entries(dst, f, first, len(r.parts), depth)
		}
		return r.list(dst, f, first, len(r.parts), depth)
	case protoValue:
		if len(r.parts) == first || m.fields[r.parts[len(r.parts)-1].field].kind == protoreflect.EnumKind {
			return append(dst, "null"...), nil
		}
		return r.field(dst, &m.fields[r.parts[len(r.parts)-1].field], first, len(r.parts), depth)
	case protoDuration, ordinary:
	}
	return r.duration(dst, first)
}

// duration writes a duration in seconds, with the digits that it needs: "1.5s".
func (r *protoReader) duration(dst []byte, first int) ([]byte, error) {
	const secondsMax = 315_576_000_000 // the limit of google.protobuf.Duration
	seconds, nanos := r.varintOf(first, 0), r.varintOf(first, 1)
	if seconds < -secondsMax || seconds > secondsMax || nanos <= -int64(time.Second) || nanos >= int64(time.Second) || seconds > 0 && nanos < 0 || seconds < 0 && nanos > 0 {
		return dst, errDuration
	}
	dst = append(dst, '"')
	if seconds < 0 || nanos < 0 {
		dst = append(dst, '-')
		seconds, nanos = -seconds, -nanos
	}
	dst = appendInt(dst, seconds)
	if nanos > 0 {
		digits := appendInt(nil, nanos+int64(time.Second))
		digits[0] = '.'
		for digits[len(digits)-1] == '0' {
			digits = digits[:len(digits)-1]
		}
		dst = append(dst, digits...)
	}
	return append(dst, `s"`...), nil
}

// varintOf returns the last value of a varint field of the message whose parts begin at first.
func (r *protoReader) varintOf(first, field int) int64 {
	v, _ := protowire.ConsumeVarint(r.bytesOf(first, field))
	return int64(v)
}

func (r *protoReader) bytesOf(first, field int) (b []byte) {
	for _, part := range r.parts[first:] {
		if part.field == field {
			b = part.b
		}
	}
	return b
}
