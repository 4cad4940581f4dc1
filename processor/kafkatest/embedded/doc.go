// Package embedded runs a Kafka broker inside the test process: franz-go's kfake, which speaks Kafka's protocol and
// keeps its data in memory. It is fast, and tests can change single responses. Package kafkatest, one level up, runs
// a real Apache Kafka.
//
// It owns what tests on kfake share: the broker's settings, topics, functions that intercept requests, clients that
// close when their test ends, and workarounds for the points in which kfake differs from Kafka. It also owns what
// such tests need from the code that runs in their process: its log ([Log]), its metrics ([Metrics]), and a way to
// wait for it ([Wait]).
//
// It may import kfake, which apart from it only cmd imports (for the demo), and from this module package kafkatest.
// Only tests import it.
//
// Invariants:
//   - A cluster closes after every client that [Cluster.Client] made, because cleanups run in reverse order.
//   - A helper that fails ends the test; no helper returns an error.
//
// What looks wrong:
//   - The cluster never compacts or deletes records by itself: kfake compacts beyond the last stable offset and can
//     thereby drop rows of an open transaction. A test that needs compaction or retention calls Compact and
//     ApplyRetention while no transaction is open.
//   - Fetch responses have no limit on their total size: if kfake ends a response at that limit, it omits the list of
//     aborted transactions of the partition at which the response ends.
//   - [Cluster.CreateTopic] hides the method of the embedded kfake cluster on purpose: only the signature differs.
package embedded
