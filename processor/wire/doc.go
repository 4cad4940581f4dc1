// Package wire encodes the bytes that oncebus adds to the users' records, and the bytes of its internal
// records: headers, envelopes, checkpoints and verdicts.
//
// # What it owns
//
//   - The names of all headers. The comment of each header names its records and its value; a test
//     generates HEADERS.md from these comments.
//   - The envelope, which is the record key in the repartition topic: route, state digest, event time,
//     and the original timestamp and record key. A task therefore reads no payload. It computes the
//     dedup key again only when a header needs it.
//   - The checkpoint records of the changelog, whole and partial. A Fold combines them to the newest
//     checkpoint.
//   - The verdict record of <app>-verdicts.
//
// The package may import dedup and dedup/rules, and franz-go for the record type.
//
// # Invariants
//
//   - Every encoding has a version, and a reader refuses a version that it does not know.
//   - Input headers with the prefix oncebus- are removed from an event before it is emitted.
//   - Package oracle decodes the same bytes with separate code: whoever changes an encoding changes
//     both.
package wire
