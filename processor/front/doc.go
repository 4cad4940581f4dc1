// Package front is a client of an app's topics: it submits events and outcomes, waits for verdicts, and reads
// or erases the row of a key.
//
// # What it owns
//
//   - IngressClient produces the events of HTTP requests. SubmitAndWait derives the key as the router would,
//     writes the event to its task's partition of the repartition topic, and waits for the verdict on
//     <app>-verdicts. AskForOutcome asks the task of an event for its outcome, by a query in the same
//     partition.
//   - Replies follows the replies topics from a position on, for one client.
//   - Inspector reads rows, counts, the first event and the history of a key from topics, for the commands get
//     and stats. For the command forget it requests erasures, and waits for them.
//
// It may import processor/app, processor/kafka, processor/wire, processor/security, dedup and dedup/rules. It has
// no local state except events that it keeps while Kafka is unavailable, and it judges nothing.
//
// # Invariants
//
//   - A sender can repeat a request that got no verdict, as long as its event has a key: if Kafka has the first
//     event, the second one is a duplicate. Only on a route that may forward events unchecked may both be
//     emitted.
//   - No path and no partition can use up all that may wait for Kafka (buffer).
//   - Any producer of a raw topic can forge a return address. Request ids are therefore random, and a request
//     ignores a verdict on another key.
//
// # What looks wrong
//
//   - Records are produced without a transaction: if a record is repeated, its task drops the second one as a
//     duplicate.
//   - A produce is never cancelled, although its request may have ended: after a cancellation, a record that
//     was acknowledged later can be missing (franz-go #1217).
package front
