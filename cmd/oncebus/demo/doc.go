// Package demo is 'oncebus demo': it sends sample traffic through oncebus and
// verifies the result.
//
// It owns the broker (an embedded broker, or topics with a prefix on a given cluster), the traffic, the ledgers
// and the executor of the demo. It runs two processors, and with --http an ingress, inside its own process.
//
// It may import cli, settings, processor, ingress and kfake; no other package of the program imports kfake.
//
// # Invariants
//
//   - A ledger never derives a dedup key. It identifies an event by the number in the header demo-record, so that it
//     also detects a wrong key.
//   - The ledgers count the records that they find in the topics, which they read to the end.
//   - The same seed gives the same records in the same order.
//   - On a given cluster, every topic and consumer group has the prefix of this run. The demo removes them at its end,
//     even if it was interrupted.
//   - The routes of the demo are the routes in deployments/routes, but without signatures (a test compares
//     them).
//
// # What looks wrong
//
//   - Event times are two hours in the past: the retries follow one hour later in event time, and an event time after
//     broker time would be invalid.
//   - The embedded broker never compacts: kfake's compaction can remove rows of open transactions, which Kafka's
//     compaction does not.
//   - If copies of an event are sent to different partitions, any of these copies may be emitted, and not always
//     the copy that was sent first, because Kafka keeps an order only within a partition.
package demo
