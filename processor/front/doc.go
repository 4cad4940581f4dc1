// Package front is a client of an app's topics: it submits events and outcomes, waits
// for verdicts, and reads or erases the row of a key.
//
// # What it owns
//
//   - IngressClient produces the events of HTTP requests. SubmitAndWait derives the
//     key as the router would, writes the event to its task's partition of the
//     repartition topic, and waits for the verdict on <app>-verdicts. AskForOutcome asks
//     the task of an event for its outcome, by a query in the same partition.
//   - Replies follows the replies topics from a position on, for one client.
//   - Inspector reads rows, counts, the first event and the history of a key from
//     topics, for get and stats. For forget it requests erasures, and waits for them.
//
// It may import processor/app, processor/kafka, processor/wire, processor/security,
// dedup and dedup/rules. It has no local state and judges nothing.
//
// # Invariants
//
//   - A request without a verdict can be sent again, as long as its event has a key:
//     at most it is a duplicate. On a route that may forward events unchecked it may be
//     emitted twice.
//   - No path and no partition can use up what may wait for Kafka (buffer).
//   - Request ids are random, and a verdict on another key is ignored, because any
//     producer of a raw topic can forge a return address.
//
// # What looks wrong
//
//   - Records are produced without a transaction; tasks drop a repeated record as a
//     duplicate.
//   - A produce is never cancelled, although its request may have ended: after a
//     cancellation a later acknowledged record can be missing (franz-go #1217).
package front
