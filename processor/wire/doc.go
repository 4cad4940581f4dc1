// Package wire encodes the bytes that oncebus adds to the user's records, and those
// of its internal records: headers, envelope, checkpoint and verdict.
//
// # What it owns
//
//   - The names of all headers. The comment of each names its records and its value;
//     a test generates HEADERS.md from the comments.
//   - The envelope, which is the record key in the repartition topic: route, state digest,
//     event time, and the original timestamp and record key. A task reads no payload. It
//     computes the dedup key again only for a header.
//   - The checkpoint rows of the changelog, whole and partial. A Fold is the newest one.
//   - The verdict record of <app>-verdicts.
//
// It may import dedup and dedup/rules, and franz-go for the record type.
//
// # Invariants
//
//   - Every encoding has a version, and a reader refuses a higher one.
//   - Input headers with the prefix oncebus- are removed from an event before it is
//     emitted.
//   - Package oracle decodes the same bytes with separate code: change both.
package wire
