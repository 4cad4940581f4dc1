// Package judge reaches the verdict on each event of a partition, and routes input
// records to the partition of their dedup key.
//
// # What it owns
//
//   - State has the store, the checkpoint and the key counts of one partition. put
//     alone stores a row and counts it.
//   - Judge judges the records of a State in offset order. It produces output, rows,
//     replies and dead letters.
//   - Router derives the dedup key of an input record and produces the record to the
//     repartition topic.
//   - Keys derives the dedup keys of a poll, many of them ahead of the decisions.
//   - Emitter builds the records of one transaction.
//
// It has no client, and no goroutine after a call has returned: its caller polls,
// produces and ends transactions. It may import processor/app, processor/kafka, processor/wire, state,
// dedup and franz-go.
//
// # Invariants
//
//   - Commit applies rows and position to the store in one step, after the broker
//     has committed the transaction. Discard returns to the last commit.
//   - A record below the checkpoint is skipped: an earlier transaction judged it.
//   - Stream time and broker time come from records. The clock of the machine
//     decides no verdict.
package judge
