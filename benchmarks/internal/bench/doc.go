// Package bench has the parts that the benchmark commands share: a broker, the input, the contenders that are written
// in Go (oncebus, and the passthrough, which is the limit), figures, charts and the head of a report.
//
// It may import packages processor, dedup/rules and state, because the role oncebus runs the product in a process of
// the benchmark; it may also import kafkatest and program. Only package main of a benchmark imports it.
//
// Invariants:
//   - Each contender is a separate process, so that its CPU time and memory can be measured. For a contender in Go
//     this process is the benchmark's own program: main calls [ChildMain] first, the environment says which contender
//     to run, and [Task.Command] returns the command that starts it.
//   - All contenders, including those in Java, get the same [Task].
//   - The input is a function of its parameters ([Input.Record]), so that a check can compute every record again.
//
// What looks wrong:
//   - The passthrough copies the client settings of oncebus by hand. Because the settings are equal, the
//     difference between the two contenders is the cost of everything else.
package bench
