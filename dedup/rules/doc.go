// Package rules reads the routes file and derives the dedup key of a record. It is pure: no I/O, no clock, no
// goroutine, no logging. It imports package dedup, a JSON scanner and a YAML decoder.
//
// The table kinds describes every key source; a new source is one row of the table and a file. Derive
// allocates nothing, and the key of a given event never changes, because stored rows depend on it: tests pin
// both.
//
// # From bytes to digest
//
// Derive tries the key sources of a route in order, and the first source that yields a key wins. A source
// yields no key if its value is absent, null or (for ids) an empty string. A value that cannot be an id makes
// the record malformed: an object, a boolean, an id over the limit, a payload that is not JSON. Derive then
// does not try the next source, because that would hide the fault. There is one exception: a payload that
// does not begin as an object or array is a text, which a later source raw takes.
//
// Another tool can recompute the oncebus-key header. It is the SHA-256, or with secret: true the
// HMAC-SHA-256, of these bytes:
//
//	record_key, header, field   the id's bytes: a string's text in UTF-8, a number in RFC 8785 form
//	fields                      netstrings of the parts, in the file's order: "<length>:<bytes>," each;
//	                            if a part is no path, "<length>:<name>=<length>:<bytes>," each
//	cloudevent                  netstrings of source and id
//	hash                        canonical JSON (RFC 8785) of {"<path as written>": value, ...}
//	payload                     canonical JSON of the payload after include or exclude
//	raw                         the payload's bytes
//	form                        names and values of the form, sorted, without separators
//	order                       account|SYMBOL|SIDE|quantity|bucket|TYPE[|limit][|stop]
//
// The name of a path is its text. The name of any other part is .header:NAME, .record_key, .topic or .tenant,
// and no path begins with a dot. On a route with a tenant "7:.tenant=<length>:<tenant>," stands before the
// bytes, so the key itself depends on the tenant, and the state digest needs no further part.
//
// The state digest is the first 16 bytes of the dedup key, combined by exclusive or with the first 16 bytes
// of the SHA-256 of two netstrings: namespace and kind (id, composite, content or order). So equal keys of
// two namespaces or kinds have different digests. Length prefixes separate "a"+"bc" from "ab"+"c".
//
// # Numbers
//
// RFC 8785 writes a number as its float64. That rounding must never merge two ids, so a literal that a
// float64 would change is malformed; see checkNumber for the exact rule.
//
// # Not a mistake
//
//   - scan refuses some valid JSON: the slower decoder then reads the payload.
//   - If a record has several headers with one name, the first counts: a program that appends a header cannot
//     change the key.
//   - A route may share its namespace only with a route of the same key rule and window, and its path only
//     with a route of the same settings.
package rules
