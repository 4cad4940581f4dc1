// Package wire is the bytes that oncebus writes into records besides the user's:
// headers, envelope, checkpoint and verdict.
//
// # What it owns
//
//   - The names of all headers. A comment of each says on which records it is and
//     what its value is; HEADERS.md is made of them.
//   - The envelope of the repartition topic: route, key, event time and original
//     timestamp, so that a task does not derive the key again.
//   - The checkpoint row of the changelog.
//   - The verdict record of <app>-verdicts, writer and reader.
//
// It may import dedup and dedup/rules, and franz-go for the record type.
//
// # Invariants
//
//   - Every encoding has a version, and a reader refuses a higher one.
//   - Input headers with the prefix oncebus- are never trusted and never emitted.
//   - Package oracle reads the same bytes with code of its own: change both.
package wire
