// Command growth measures what the cost of an event depends on that the event has nothing to do
// with: other namespaces, routes, partitions, the backlog of another route, requests that wait.
//
//	go run ./benchmarks/growth -only changelog,routes
//	go run ./benchmarks/growth -only partitions -partitions 1000
//
// Each part starts processes of its own, on one real Kafka. parts.go has the parts with their
// goals and charts, cases.go measures them, app.go starts a process and produces events,
// report.go writes the tables.
//
// It may import packages bench, kafkatest and program.
//
// Invariants:
//   - Every case of a part has topics and state of its own, deleted after it.
//   - A case ends when the process has judged all events that were sent.
//
// What looks wrong:
//   - Memory is level if the last third of the time needs at most a tenth more than the middle
//     third. The first third has the start, and fills what is bounded.
//   - A part is measured once. The figures show growth by multiples, not by percent; CPU time and
//     bytes are the ones to compare on a shared machine.
package main
