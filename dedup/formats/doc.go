// Package formats turns record values that are not JSON into JSON text, from which package rules derives
// keys. It is pure: no I/O, no clock, no goroutine, no logging.
//
// # What it owns
//
//   - Format: the formats by name, and how a record names its schema: in the prefix of the Confluent wire
//     format, or in a header.
//   - Schema: a compiled Avro or Protobuf schema. Any number of goroutines may use it.
//   - Decoder: turns one value after the other into JSON, for one goroutine. For Avro, Protobuf and
//     MessagePack it allocates nothing.
//
// The package may import libraries that parse schemas, and libraries for CBOR and MessagePack, but nothing of
// oncebus.
//
// # Which JSON
//
// A value has the same JSON text in every encoding. So a key does not depend on the order of fields on the
// wire, on the width of an integer, or on the scale of a decimal:
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
// A Protobuf field without presence that is not on the wire has its default, because a sender leaves out the
// id 0 just as it leaves out an id that was not set. A field with presence that is not on the wire is absent.
//
// # Invariants
//
//   - Damaged bytes are an error, never a panic and never another value. Bytes left over after the value are
//     an error, too.
//   - The text is at most expansionMax times as long as the value, and at most textMax. Without these limits a
//     few bytes could stand for billions of elements.
package formats
