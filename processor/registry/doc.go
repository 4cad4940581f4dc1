// Package registry reads the schemas of record values: from schema files, and from a schema registry with
// Confluent's REST interface.
//
// # What it owns
//
//   - Config says where the registry is, and has its credentials.
//   - Registry has the schemas that were read. Schemas returns a schema without I/O, for package rules; Read
//     reads a schema that is not known yet.
//
// It may import processor/security, dedup/formats and dedup/rules. It knows no broker.
//
// # Invariants
//
//   - If a registry cannot be reached, or answers anything but a schema, the record does not become invalid:
//     Read returns an error, and the caller of Read calls it again.
//   - Only two answers make a record invalid: that the registry has had no schema of its id for UnknownAfter (a
//     replica of the registry may lag behind the producers), and that the schema is of another format than the
//     route's.
//   - A schema never changes, so it is read once and kept. An id is 4 bytes, which a hostile sender may choose:
//     only ids that the registry knows are kept for good, so that invented ids cannot fill the memory.
package registry
