// Package peers lists the other ways to deduplicate a topic, with which benchmarks
// compare oncebus: Kafka Streams, Flink, and a hand-written consumer with Redis or
// PostgreSQL.
//
// It owns the list, and how each is built and started. It may import packages bench,
// server, and those of the programs.
//
// Invariants:
//   - Every peer reads a [bench.Task]'s input, writes its output, and commits its
//     offsets in [bench.Task.Group].
//   - A peer whose server is not installed is left out, with a line that has the
//     Debian package. A build that fails is an error.
package peers
