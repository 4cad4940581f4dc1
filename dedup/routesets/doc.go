// Package routesets compares two route sets: what changes for a running app, of which kind each change is, and
// which steps an operator takes instead if apply refuses a change.
//
// # What it owns
//
// The kinds of changes and the comparison.
//
// # May import
//
// dedup/rules. The package computes, and does no input or output.
//
// # Invariants
//
//   - Every field of a route has a kind; a test compares the table with the schema.
//   - A change after which a task would no longer find stored keys is never harmless.
//   - Compare of a set with itself is empty.
package routesets
