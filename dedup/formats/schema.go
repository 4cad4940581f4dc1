package formats

import "errors"

// Schema is a compiled schema with which values were written. It never changes.
type Schema struct {
	avro     *avroNode
	messages []*protoMessage // of a Protobuf file, in its order
}

// ErrNoSchema is the error of a value of a format that needs a schema, without one.
var ErrNoSchema = errors.New("no schema")

// Decoder turns values into JSON text. It is for one goroutine, and keeps scratch memory.
type Decoder struct {
	parts []protoPart
	pack  messagePackReader
}

// AppendJSON appends the JSON text of a value of format f. schema is the one that the value
// names; nil for a format without schemas. It returns dst as far as it is written, and an
// error that names what is wrong with the value.
func (d *Decoder) AppendJSON(dst []byte, f Format, schema *Schema, l *Located) ([]byte, error) {
	switch f {
	case Avro:
		if schema == nil || schema.avro == nil {
			return dst, ErrNoSchema
		}
		r := avroReader{b: l.Body, limit: len(dst) + textLimit(len(l.Body))}
		dst, err := r.value(dst, schema.avro, 0)
		if err == nil && len(r.b) > 0 {
			err = errLeftOver
		}
		return dst, err
	case Protobuf:
		if schema == nil || schema.messages == nil {
			return dst, ErrNoSchema
		}
		message, err := schema.message(l.path)
		if err != nil {
			return dst, err
		}
		r := protoReader{parts: d.parts[:0], limit: len(dst) + textLimit(len(l.Body))}
		dst, err = r.message(dst, message, l.Body, 0)
		d.parts = r.parts[:0]
		return dst, err
	case CBOR:
		return appendCBOR(dst, l.Body)
	case MessagePack:
		return d.pack.document(dst, l.Body)
	case JSON, JSONSchema:
	}
	return append(dst, l.Body...), nil
}
