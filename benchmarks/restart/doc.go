// Command restart measures what a process reads again after kill -9: the
// changelog rows since its last flush, however many keys it has.
//
//	go run ./benchmarks/restart -keys 1000000,10000000
//
// For each number of keys it fills a real Kafka and a process, continues with
// light traffic, kills the process, and starts another with its state.
//
// It owns the measurement and the promise that it checks. It may import packages
// bench, kafkatest and program, and package state for the defaults in the report.
//
// Invariants:
//   - The number of rows in memory at the kill bounds what the next process reads,
//     apart from checkpoints. The run fails otherwise.
//
// What looks wrong:
//   - The state directory stays from one number of keys to the next: the numbers
//     rise, and each fill adds to the one before.
package main
