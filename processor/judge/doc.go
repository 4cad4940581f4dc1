// Package judge decides whether each event of a partition is unique, a duplicate or something else (its
// verdict), and routes input records to the partition of their dedup key.
//
// # What it owns
//
//   - State has the store, the checkpoint and the key counts of one partition. Only its method put
//     stores a row, because put also counts the row.
//   - Judge judges the records of a State in offset order. It produces output records, changelog rows,
//     replies and dead letters.
//   - Router derives the dedup key of an input record and produces the record to the repartition topic.
//   - Keys derives the dedup keys of a poll. If there are many, a goroutine derives keys ahead of the decisions.
//   - Emitter builds the records of one transaction.
//
// The package has no Kafka client, and no goroutine outlives the call that started it: the caller (the
// worker in package processor) polls, produces and ends transactions. The package may import
// processor/app, processor/kafka, processor/wire, state, dedup and franz-go.
//
// # Invariants
//
//   - Commit applies rows and position to the store in one step, after the broker has committed the
//     transaction. Discard returns to the last commit.
//   - A record below the checkpoint is skipped: an earlier transaction judged it.
//   - Stream time and broker time come from records. The clock of the machine decides no verdict.
package judge
