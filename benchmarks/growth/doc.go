// Command growth measures how the cost of an event grows with things that have nothing to do with the event: other
// namespaces, routes, partitions, the backlog of another route, requests that wait.
//
//	go run ./benchmarks/growth -only changelog,routes
//	go run ./benchmarks/growth -only partitions -partitions 1000
//
// Each part starts its own processes, on one real Kafka. parts.go has the parts with their goals and charts, cases.go
// measures them, app.go starts a process and produces events, report.go writes the tables.
//
// It may import packages bench, kafkatest and program.
//
// Invariants:
//   - Every case of a part has its own topics and state, which are deleted after the case.
//   - A case ends when the process has judged all events that were sent.
//
// What looks wrong:
//   - Memory counts as steady if its highest value in the last third of the time is at most a tenth above that
//     in the middle third. The first third does not count, because the process starts and fills its bounded
//     buffers in it.
//   - Each part is measured once. The figures are meant to show growth by multiples, not by percent. On a shared
//     machine, compare CPU time and bytes rather than times.
package main
