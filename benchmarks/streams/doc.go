// Package streams is a peer for benchmarks: a deduplicator on Kafka Streams.
//
// It owns Deduplicator.java, its jars and its settings. It may import packages bench, which has the settings of a
// task, and jvm, which builds the program.
//
// Invariants:
//   - The Java program reads exactly the settings that Command sets: a test compares them.
//
// What looks wrong:
//   - The JVM's temporary directory is inside the state directory. RocksDB extracts its native library there at every
//     start, and the library is removed together with the state.
package streams
