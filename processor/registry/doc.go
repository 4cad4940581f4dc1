// Package registry reads the schemas of record values: those of files, and those of a schema
// registry with Confluent's REST interface.
//
// # What it owns
//
//   - Config: where the registry is, and the credentials.
//   - Registry: the schemas that were read. Schemas returns them without I/O, for package rules;
//     Read reads one that is not known.
//
// It may import processor/security, dedup/formats and dedup/rules. It knows no broker.
//
// # Invariants
//
//   - A registry that cannot be asked, or answers anything but a schema, is no reason to give up
//     a record: Read returns an error, and is called again.
//   - Only two answers make a record invalid: that the registry has had no schema of that id for
//     UnknownAfter, because a registry's replica may lag behind its producers, and that the
//     schema is of another format than the route's.
//   - A schema never changes. It is read once and kept; an id is 4 bytes, and only ids that the
//     registry knows are kept for good, so a hostile sender cannot fill the memory.
package registry
