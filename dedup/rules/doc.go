// Package rules reads the routes file and derives the dedup key of a record.
// It is pure: no I/O, no clock, no goroutine, no logging.
//
// It imports package dedup, a JSON scanner and a YAML decoder.
//
// The table kinds describes every key source; a new source is one row and a file.
// Derive allocates nothing, and a recorded key never changes: golden tests pin both.
//
// # From bytes to digest
//
// A route lists key sources; they are tried in order and the first that yields
// wins. A source does not yield when its value is absent, null or (for ids) an
// empty string. A value that cannot be an id makes the record malformed: an object,
// a boolean, an id over the limit, a payload that is not JSON. The next source is
// not tried, because that would hide the fault.
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
// bytes of the dedup key: namespaces never collide, nor does an id with a
// hash of content. Length prefixes separate "a"+"bc" from "ab"+"c".
//
// # Numbers
//
// RFC 8785 writes numbers as a float64 would print them. That rounding must never
// merge two ids, so a literal that float64 cannot represent is malformed; see
// checkNumber for the exact rule.
//
// # Not a mistake
//
//   - scan refuses valid JSON: the decoder reads whatever the quick pass cannot.
//   - The first of several headers with one name counts: a program that appends a
//     header cannot change the key.
//   - A route may share its namespace only with the same key rule and window, and
//     its path only with the same settings.
package rules
