// Package demo is 'oncebus demo': it sends sample traffic through oncebus and
// verifies the result.
//
// It owns the broker (an embedded one, or topics with a prefix on a given one),
// the traffic, the ledgers and the executor of the demo. It runs two processors,
// and with --http an ingress, in its own process.
//
// It may import cli, settings, processor, ingress and kfake; no other package of
// the program imports kfake.
//
// # Invariants
//
//   - A ledger never derives a dedup key. It identifies an event by the number that
//     its record carries in the header demo-record, so that it also detects a wrong
//     key.
//   - The ledgers read the topics to their end and count those records.
//   - The same seed gives the same records in the same order.
//   - On a given broker every topic and group has the prefix of this run, and the
//     demo removes them at its end, even if it was interrupted.
//   - Its routes are those of deployments/routes, without signatures (a test
//     compares them).
//
// # What looks wrong
//
//   - Event times are two hours in the past: retries come an hour later by event
//     time, and an event time after broker time would be invalid.
//   - The embedded broker never compacts: kfake's compaction can remove rows of open
//     transactions, which Kafka's does not.
//   - A record that goes to another partition may be the one that is emitted
//     instead of the first: order holds only within a partition.
package demo
