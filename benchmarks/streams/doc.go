// Package streams is a peer for benchmarks: a deduplicator on Kafka Streams.
//
// It owns Deduplicator.java, its jars and its settings. It may import packages
// bench, which has the settings of a task, and jvm, which builds it.
//
// Invariants:
//   - The Java program reads every setting that Command sets, and no other: a test
//     compares the two.
//
// What looks wrong:
//   - The JVM's temporary directory is inside the state directory. RocksDB
//     extracts its library there at every start, and it goes with the state.
package streams
