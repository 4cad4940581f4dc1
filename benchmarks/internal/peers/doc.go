// Package peers lists the other ways to deduplicate a topic with which benchmarks compare oncebus: Kafka Streams,
// Flink, and a hand-written consumer with Redis or PostgreSQL.
//
// It owns the list, and the way in which each peer is built and started. It may import packages bench and server, and
// the packages of the peers' programs.
//
// Invariants:
//   - Every peer reads the input of a [bench.Task], writes its output, and commits its offsets in [bench.Task.Group].
//   - A peer whose server is not installed is left out, with a line that names the Debian package. A build that fails
//     is an error.
package peers
