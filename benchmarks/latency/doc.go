// Command latency measures how long an event takes from the moment it is due
// to be produced until a read_committed consumer has it. It compares oncebus with
// the least that a transactional stream processor can do, at fixed rates and
// commit intervals, in rounds, each contender in turn.
//
//	go run ./benchmarks/latency -rates 1000 -commit-intervals 20ms -measure 5s -rounds 1
//
// By default there are 135 measurements of half a minute each.
//
// It owns the trial, the ledger of sent and received events, the goals and the
// report. It may import packages bench, openloop, streams, kafkatest and program,
// but no package of the product.
//
// Invariants:
//   - The schedule of a rate is fixed before the generator sends the first event,
//     and latency counts from it: an event that waits because an earlier one was
//     slow counts with its wait (no coordinated omission).
//   - Generator and consumer are this process, with one clock; contender and
//     broker are others.
//   - A run fails if an event is missing in the output, or emitted twice by a
//     contender that deduplicates.
//
// What looks wrong:
//   - Duplicates count in no percentile, also those that a contender without
//     deduplication emits: all contenders are measured on the same events.
//   - The producer is idempotent although retries are rare: a repeated record
//     would be a duplicate outside the schedule.
package main
