// Package routesets compares two route sets: what changes for a running app, of which kind
// each change is, and what does it if apply does not.
//
// # What it owns
//
// The kinds of changes and the comparison.
//
// # May import
//
// dedup/rules. It computes, and does no input or output.
//
// # Invariants
//
//   - Every field of a route has a kind; a test compares the table with the schema.
//   - A change after which stored keys would no longer be found is never harmless.
//   - Compare of a set with itself is empty.
package routesets
