//go:build unix

// Command peers strikes oncebus and its peers with the same faults at the same moments
// of the same load: kill -9 of a process, a pause longer than the session timeout, and
// a kill of the broker. It counts events that are lost or doubled, and measures the
// time until events flow again.
//
//	go run ./benchmarks/peers -seed 1 -rate 5000
//
// It owns the plan, the load and the count. It may import packages bench, openloop,
// peers, server and kafkatest; oncebus runs as a role of package bench.
//
// Invariants:
//   - The plan depends on the seed alone, and the load on the flags. No contender
//     changes the moment of a fault or of an event.
//   - The counts come from reading the input and the output to their ends. An input
//     that does not have each event as planned fails the run.
//   - A system that a supervisor would start again is started again, one second after
//     its end, whatever ended it.
//
// What looks wrong:
//   - A lost or doubled event does not fail the run: it is the result.
package main
