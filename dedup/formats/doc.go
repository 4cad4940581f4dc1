// Package formats reads record values of other formats than JSON as JSON text, from which
// package rules derives keys. It is pure: no I/O, no clock, no goroutine, no logging.
//
// # What it owns
//
//   - Format: the formats by name, and where a record names its schema: the prefix of the
//     Confluent wire format, or a header.
//   - Schema: a compiled Avro or Protobuf schema. Any number of goroutines may use it.
//   - Decoder: turns one value after the other into JSON, for one goroutine. With Avro,
//     Protobuf and MessagePack it allocates nothing.
//
// It may import libraries that parse schemas, and those of CBOR and MessagePack; nothing of
// oncebus.
//
// # Which JSON
//
// The same value has the same text, whatever its encoding. So a key does not depend on the
// order of fields on the wire, on the integer's width, or on the scale of a decimal:
//
//	integers              a number up to 2^53, a string of digits above
//	float, double         the shortest number that reads back as the same; NaN and infinities as strings
//	bytes, fixed          a string of base64 (RFC 4648, section 4)
//	decimal               a string of digits without zeros at the end
//	date, time, timestamp a string of RFC 3339, in UTC, with the digits that it needs
//	uuid                  a string in lower case
//	enum                  the symbol
//	union, oneof          the value alone
//
// A Protobuf field without presence that is not on the wire has its default: a sender leaves
// out the id 0 as it leaves out an id that was not set. One with presence is absent.
//
// # Invariants
//
//   - Damaged bytes are an error, never a panic and never another value: bytes that are left
//     over are an error, too.
//   - The text is at most expansionMax times as long as the value, or textMax. Few bytes can
//     otherwise stand for billions of elements.
package formats
