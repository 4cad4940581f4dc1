// Package tools prepares programs in Java, Python and JavaScript for tests: their packages are fetched once, into a directory of the
// user's cache.
//
// It may import package kafkatest, for the reason why a test is skipped.
//
// Invariants:
//   - A directory is named after the content of the files that it was made from, so a change makes another one.
//   - A directory that was not made to its end is made from the start.
//   - Without a tool, or without a package that cannot be fetched, a test is skipped with the reason. With CI=true it fails.
package tools
