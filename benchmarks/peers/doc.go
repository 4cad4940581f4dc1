//go:build unix

// Command peers strikes oncebus and its peers with the same faults at the same moments
// of the same load: kill -9 of a process, a pause longer than the session timeout, and
// a kill of the broker. It counts events that are lost or doubled, and measures the
// time until events flow again.
//
//	go run ./benchmarks/peers -seed 1 -rate 5000
//
// With -history it strikes none. It starts oncebus and the peers with windows in event
// time for the first time on topics with history, whose partitions are unequal, and
// counts the ids that came out twice or never.
//
//	go run ./benchmarks/peers -history
//
// It owns the plan, the load, the histories and the count. It may import packages bench, openloop,
// peers, server and kafkatest; oncebus runs as a role of package bench.
//
// Invariants:
//   - The plan depends on the seed alone, and the load on the flags. No contender
//     changes the moment of a fault or of an event.
//   - The counts come from reading the input and the output to their ends. An input
//     that does not have each event as planned fails the run.
//   - A system that a supervisor would start again is started again, one second after
//     its end, whatever ended it.
//   - A history depends on the seed and the flags, except for when it ends: at the
//     start. All systems read the same topic.
//
// What looks wrong:
//   - A history is read as it is: no setting slows the reader of a small partition down.
//     That is what the systems are compared by.
//   - A lost or doubled event does not fail the run: it is the result.
package main
