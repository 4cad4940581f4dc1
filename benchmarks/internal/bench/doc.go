// Package bench has the parts that the benchmark commands share: a broker,
// the input, the contenders that are Go code (the passthrough, which is the
// limit, and oncebus), figures, charts and the head of a report.
//
// It may import packages processor, dedup/rules and state, because the role
// oncebus is the product in a process of the benchmark; and kafkatest and
// program. Only package main of a benchmark imports it.
//
// Invariants:
//   - A contender is a separate process, so that its CPU time and memory are
//     its own. Those that are Go code are the benchmark's program again; its
//     environment says which: main calls [ChildMain] first, and [Task.Command]
//     makes the command that starts one.
//   - All contenders, also those in Java, get the same [Task].
//   - The input is a function of its parameters ([Input.Record]), so that a
//     check can compute every record again.
//
// What looks wrong:
//   - The passthrough copies the client settings of oncebus by hand: the difference
//     between the two is the cost of everything else.
package bench
