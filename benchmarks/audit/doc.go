// Command audit measures 'oncebus audit' on a large topic: with all keys in memory, with
// most of them on disk, and as a sample, next to a passthrough that reads the same topic.
//
//	go run ./benchmarks/audit -events 20000000
//
// It owns the runs and the report. It may import packages bench and program, but no package
// of the product.
//
// Invariants:
//   - All runs read the same topic from the same broker, one after the other, in rounds.
//   - The keys and copies of an exact audit are those that the input has, and those of a
//     sample are within five standard errors. Else the run fails.
//
// What looks wrong:
//   - The rate of an audit includes its start, its end and the merge of what is on disk. That
//     of the passthrough begins with its first output, because it first joins a group.
package main
