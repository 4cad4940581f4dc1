// Command state compares a large state store of oncebus with a plain Badger database that has a row for every key. It
// measures both in the same run and through the same loop.
//
//	go run ./benchmarks/state -keys 10000000
//
// It prints a table and writes JSON and Markdown to -out.
//
// It owns the two engines and their loop. It may import packages state and dedup, which it measures, bench, and
// program for the process's memory. It needs no Kafka.
//
// Invariants:
//   - Every phase is a separate process, so that its CPU time and memory belong to one engine.
//   - Both engines get the same rows in the same order.
//
// What looks wrong:
//   - CPU time comes from getrusage, because /proc has a resolution of only 10 ms.
package main
