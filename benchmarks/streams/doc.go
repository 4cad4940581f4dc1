// Package streams is a peer for benchmarks: a deduplicator on Kafka Streams.
//
// It owns Deduplicator.java, and how to build and start it. It may import
// package bench, which has its settings.
//
// Invariants:
//   - The Java program reads every setting that Command sets, and no other: a test
//     compares the two.
//   - A directory with jars or classes exists only complete: a build that fails
//     leaves none behind.
//
// What looks wrong:
//   - The JVM's temporary directory is inside the state directory. RocksDB
//     extracts its library there at every start, and it goes with the state.
package streams
