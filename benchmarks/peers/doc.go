//go:build unix

// Command peers strikes oncebus and its peers with the same faults at the same moments of the same load: kill -9 of a
// process, a pause longer than the session timeout, and a kill of the broker. It counts the events that are lost or
// doubled, and measures the time until events flow again.
//
//	go run ./benchmarks/peers -seed 1 -rate 5000
//
// With -history it causes no faults. Instead it starts oncebus, and those peers whose windows are in event time, for
// the first time on topics with history and unequal partitions. It counts the ids that came out twice or never.
//
//	go run ./benchmarks/peers -history
//
// It owns the plan, the load, the histories and the count. It may import packages bench, openloop, peers, server and
// kafkatest; oncebus runs as a role of package bench.
//
// Invariants:
//   - The plan depends on the seed alone, and the load on the flags. No contender can influence when a fault or
//     an event occurs.
//   - The command counts by reading the input and the output to their ends. A run fails if the input does not contain
//     each event as planned.
//   - One second after a process ends, whatever the reason, it is started again, if a supervisor would do so.
//   - A history depends on the seed and the flags, except for its end, which is the time of the start. All systems
//     read the same topic.
//
// What looks wrong:
//   - No setting slows down the readers of small partitions of a history, although they reach the end early.
//     The command compares how the systems cope with that.
//   - A lost or doubled event does not fail the run, because such events are the result.
package main
