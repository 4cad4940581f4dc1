// Command audit measures 'oncebus audit' on a large topic: with all keys in memory, with most keys on disk, and as a
// sample. For comparison it also measures a passthrough that reads the same topic.
//
//	go run ./benchmarks/audit -events 20000000
//
// The command owns the runs and the report. It may import packages bench and program, but no package of the
// product.
//
// Invariants:
//   - All runs read the same topic from the same broker, one after the other, in rounds.
//   - The keys and copies that an exact audit counts must be equal to the keys and copies of the input; the
//     counts of a sample must be within five standard errors. Otherwise the run fails.
//
// What looks wrong:
//   - The rate of an audit includes its start, its end and the merge of the keys on disk. The rate of the passthrough
//     begins with its first output, because it must first join a group.
package main
