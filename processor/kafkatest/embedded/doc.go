// Package embedded runs a Kafka broker inside the test process: franz-go's kfake, which speaks the protocol and keeps its data in
// memory. It is fast, and tests can change single responses; package kafkatest, one level up, runs a real Apache Kafka.
//
// It owns the settings all such tests share, topics, functions that intercept requests, clients that close with their test, and
// the workarounds for what kfake does otherwise than Kafka. It also owns what such tests need of code that runs in their process:
// its log ([Log]), its metrics ([Metrics]), and waiting for it ([Wait]).
//
// It may import kfake, which besides it only cmd does (for the demo), and of this module package kafkatest. Only tests import it.
//
// Invariants:
//   - A cluster closes after every client that [Cluster.Client] made: cleanups run in reverse order.
//   - A helper that fails ends the test; no helper returns an error.
//
// What looks wrong:
//   - The cluster never compacts or deletes by itself, because kfake compacts beyond the last stable offset and so can drop rows of
//     an open transaction. A test that needs it calls Compact and ApplyRetention while no transaction is open.
//   - No fetch has a limit for the whole response: kfake omits the list of aborted transactions of the partition at which it ends.
//   - [Cluster.CreateTopic] hides the method of the embedded kfake cluster on purpose: only the signature differs.
package embedded
