// Package tools prepares programs in Java, Python and JavaScript for tests. It fetches their packages once, into a
// directory of the user's cache.
//
// It may import package kafkatest, whose Lack skips a test and says why.
//
// Invariants:
//   - The name of a directory contains a hash of the files that it was made from, so changed files get a new
//     directory.
//   - A directory that was not made to its end is made again from the start.
//   - If a tool is missing or a package cannot be fetched, the test is skipped with the reason. With CI=true the test
//     fails.
package tools
