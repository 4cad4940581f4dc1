// Package rules reads the routes file and derives the dedup key of a record.
// It is pure: no I/O, no clock, no goroutine, no logging.
//
// It imports package dedup, a JSON scanner and a YAML decoder.
//
// # From bytes to digest
//
// A route lists key sources; they are tried in order and the first that yields
// wins. A source does not yield when what it looks for is absent, null or (for
// ids) an empty string. Something that is there but cannot be an id — an
// object, a boolean, an id over the limit, a payload that is not JSON — makes
// the record malformed: falling through to the next source would hide it.
//
// What is hashed, so that another tool can recompute the oncebus-key header
// (SHA-256; HMAC-SHA-256 over the same bytes when the route says secret: true):
//
//	record_key, header, field   the id's bytes: a string's text in UTF-8, a number in RFC 8785 form
//	fields                      netstrings of the parts, in the file's order: "<length>:<bytes>," each
//	cloudevent                  netstrings of source and id
//	hash                        canonical JSON (RFC 8785) of {"<path as written>": value, ...}
//	payload                     canonical JSON of what include and exclude leave
//	raw                         the payload's bytes
//	order                       account|SYMBOL|SIDE|quantity|bucket|TYPE[|limit][|stop]
//
// The state digest is the first 16 bytes of the same function over the
// netstrings of namespace, kind (id, composite, content or order) and the 32
// bytes of the dedup key: namespaces never meet, and an id never meets a hash
// of content. Length prefixes keep "a"+"bc" and "ab"+"c" apart.
//
// # Numbers
//
// RFC 8785 writes numbers as a float64 would print them. Two ids must never be
// merged by that rounding, so a literal that float64 does not hold is malformed:
// see checkNumber for the exact rule.
package rules
