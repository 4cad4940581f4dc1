package formats

import "errors"

// Schema is the compiled schema with which values were written. It never changes.
type Schema struct {
	avro     *avroNode
	messages []*protoMessage // of a Protobuf file, in its order
}

// ErrNoSchema is the error for a value whose format needs a schema, if there is none.
var ErrNoSchema = errors.New("no schema")

// Decoder turns values into JSON text. It keeps scratch memory, so it is for one goroutine.
type Decoder struct {
	parts []protoPart
	pack  messagePackReader
}

// AppendJSON appends the JSON text of a value of format f. schema is the schema that the value names; nil for
// a format without schemas. AppendJSON returns dst with what it has written so far, and an error that says
// what is wrong with the value.
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
