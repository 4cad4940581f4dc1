package formats

import (
	"encoding/binary"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/tinylib/msgp/msgp"
)

// messagePackReader reads one value.
type messagePackReader struct {
	b     []byte
	limit int // longest text, in bytes
}

// document appends the JSON text of b, which must be exactly one value.
func (r *messagePackReader) document(dst, b []byte) ([]byte, error) {
	r.b, r.limit = b, len(dst)+textLimit(len(b))
	defer func() { r.b = nil }()
	dst, err := r.value(dst, 0)
	switch {
	case errors.Is(err, msgp.ErrShortBytes):
		err = errShort
	case err == nil && len(r.b) > 0:
		err = errLeftOver
	}
	return dst, err
}

// value reads the next value, with all values in it, and appends its JSON text.
func (r *messagePackReader) value(dst []byte, depth int) (_ []byte, err error) {
	if depth > depthMax {
		return dst, errDeep
	}
	if len(dst) > r.limit {
		return dst, errLong(r.limit)
	}
	if len(r.b) == 0 {
		return dst, errShort
	}
	switch kind := msgp.NextType(r.b); kind {
	case msgp.NilType:
		r.b, err = msgp.ReadNilBytes(r.b)
		return append(dst, "null"...), err
	case msgp.BoolType:
		var v bool
		v, r.b, err = msgp.ReadBoolBytes(r.b)
		return strconv.AppendBool(dst, v), err
	case msgp.IntType:
		var v int64
		v, r.b, err = msgp.ReadInt64Bytes(r.b)
		return appendInt(dst, v), err
	case msgp.UintType:
		var v uint64
		v, r.b, err = msgp.ReadUint64Bytes(r.b)
		return appendUint(dst, v), err
	case msgp.Float32Type:
		var v float32
		v, r.b, err = msgp.ReadFloat32Bytes(r.b)
		return appendFloat(dst, float64(v), 32), err
	case msgp.Float64Type:
		var v float64
		v, r.b, err = msgp.ReadFloat64Bytes(r.b)
		return appendFloat(dst, v, 64), err
	case msgp.StrType:
		return r.text(dst)
	case msgp.BinType:
		var v []byte
		v, r.b, err = msgp.ReadBytesZC(r.b)
		return appendBase64(dst, v), err
	case msgp.ArrayType:
		return r.array(dst, depth)
	case msgp.MapType:
		return r.object(dst, depth)
	case msgp.InvalidType:
		return dst, fmt.Errorf("byte %#x begins no value", r.b[0])
	default:
		return r.extension(dst)
	}
}

func (r *messagePackReader) text(dst []byte) ([]byte, error) {
	v, rest, err := msgp.ReadStringZC(r.b)
	if err != nil {
		return dst, err
	}
	r.b = rest
	return appendText(dst, v)
}

func (r *messagePackReader) array(dst []byte, depth int) ([]byte, error) {
	n, rest, err := msgp.ReadArrayHeaderBytes(r.b)
	if err != nil {
		return dst, err
	}
	r.b, dst = rest, append(dst, '[')
	for i := range n {
		if i > 0 {
			dst = append(dst, ',')
		}
		if dst, err = r.value(dst, depth+1); err != nil {
			return dst, err
		}
	}
	return append(dst, ']'), nil
}

// object reads a map. A key is a text or an integer, which becomes a name in quotes.
func (r *messagePackReader) object(dst []byte, depth int) ([]byte, error) {
	n, rest, err := msgp.ReadMapHeaderBytes(r.b)
	if err != nil {
		return dst, err
	}
	r.b, dst = rest, append(dst, '{')
	for i := range n {
		if i > 0 {
			dst = append(dst, ',')
		}
		switch kind := msgp.NextType(r.b); {
		case len(r.b) == 0:
			return dst, errShort
		case kind == msgp.StrType:
			dst, err = r.text(dst)
		case kind == msgp.IntType || kind == msgp.UintType:
			mark := len(dst)
			if dst, err = r.value(dst, depth+1); err == nil && dst[mark] != '"' {
				dst = quoteFrom(dst, mark)
			}
		default:
			return dst, fmt.Errorf("a map has a key that is neither a text nor an integer: %s", kind)
		}
		if err != nil {
			return dst, err
		}
		if dst, err = r.value(append(dst, ':'), depth+1); err != nil {
			return dst, err
		}
	}
	return append(dst, '}'), nil
}

// extension writes a timestamp as text. It writes any other extension as an object, which is never a key,
// because only the sender knows what the extension means.
func (r *messagePackReader) extension(dst []byte) ([]byte, error) {
	rest, err := msgp.Skip(r.b)
	if err != nil {
		return dst, err
	}
	whole := r.b[:len(r.b)-len(rest)]
	r.b = rest
	head := 2 // fixext: the type of the extension is the second byte
	switch whole[0] {
	case 0xc7: // ext 8: a length of one byte before the type
		head = 3
	case 0xc8:
		head = 4
	case 0xc9:
		head = 6
	}
	kind, data := int8(whole[head-1]), whole[head:]
	if kind == timestampExtension {
		return appendMessagePackTime(dst, data)
	}
	dst = strconv.AppendInt(append(dst, `{"type":`...), int64(kind), 10)
	dst = appendBase64(append(dst, `,"data":`...), data)
	return append(dst, '}'), nil
}

// timestampExtension is the type of timestamps in the MessagePack specification.
const timestampExtension = -1

func appendMessagePackTime(dst, data []byte) ([]byte, error) {
	var seconds, nanos int64
	switch len(data) {
	case 4:
		seconds = int64(binary.BigEndian.Uint32(data))
	case 8:
		both := binary.BigEndian.Uint64(data)
		seconds, nanos = int64(both&(1<<34-1)), int64(both>>34)
	case 12:
		nanos, seconds = int64(binary.BigEndian.Uint32(data)), int64(binary.BigEndian.Uint64(data[4:]))
	default:
		return dst, fmt.Errorf("a timestamp has %d bytes, want 4, 8 or 12", len(data))
	}
	if nanos >= int64(time.Second) {
		return dst, errTime
	}
	return appendSeconds(dst, seconds, nanos)
}
