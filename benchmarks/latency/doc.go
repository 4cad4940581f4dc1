// Command latency measures how long an event takes from the moment it is due to be produced until a read_committed
// consumer has it. It compares oncebus with the least that a transactional stream processor can do, at fixed rates
// and commit intervals. In each round the contenders take turns.
//
//	go run ./benchmarks/latency -rates 1000 -commit-intervals 20ms -measure 5s -rounds 1
//
// By default there are 135 measurements of half a minute each.
//
// It owns the trial, the ledger of sent and received events, the goals and the report. It may import packages bench,
// openloop, streams, kafkatest and program, but no package of the product.
//
// Invariants:
//   - The schedule of a rate is fixed before the generator sends the first event, and latency counts from the
//     schedule: if an event has to wait because an earlier event was slow, its wait counts (no coordinated omission).
//   - Generator and consumer run in this process and use the same clock; the contender and the broker are other
//     processes.
//   - A run fails if an event is missing in the output, or if a contender that deduplicates emits an event twice.
//
// What looks wrong:
//   - Duplicates count in no percentile, even if the contender does not deduplicate and emits them, so that all
//     contenders are measured on the same events.
//   - The producer is idempotent although retries are rare: a repeated record would be a duplicate that is not in the
//     schedule.
package main
