//go:build unix

// Command faults runs oncebus against a real Apache Kafka, breaks both, and
// proves that no event was lost or emitted twice.
//
//	go run ./benchmarks/faults -duration 30m -seed 7
//
// The program under test is cmd/oncebus, built with the tag failpoints, in child
// processes. A seeded generator fills the raw topics. An executor that is late,
// repeats itself or dies produces outcomes for the routes in claim mode.
// read_committed consumers that never stop note what a reader sees. Faults are
// drawn from the matrix (faults_*.go), up to three at once.
//
// A run is cut into epochs, each with an app of its own. At the end of an epoch
// everything is healed, drained and handed to package oracle, which folds the log
// to the expected output. After a violation the seed, the history and all logs
// are kept.
//
// Exit codes: 0 no violation; 1 a promise was broken, a fault never struck, or
// there were fewer faults than asked for; 2 wrong flags.
package main
