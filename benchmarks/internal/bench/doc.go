// Package bench is what the benchmark commands share: a broker of their own,
// the input, the contenders that are Go code (the passthrough, which is the
// limit, and oncebus), processes and what they cost, figures, charts and the
// head of a report.
//
// A contender is a process of its own, so that its CPU time and memory are its
// own. Those that are Go code are the benchmark's program once more, told by
// its environment what to be: main calls [ChildMain] first, and [Task.Command]
// makes the command that starts one.
package bench
