//go:build unix

// Package streams is a peer for benchmarks: a deduplicator on Kafka Streams.
// Deduplicator.java is the program; this package builds and starts it.
package streams
