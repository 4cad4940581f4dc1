// Package selfaudit reads the topics of an app and tells whether the app has kept its promise: each key once
// per window in the output, and one fate for each input record.
//
// # What it owns
//
//   - Auditor connects to Kafka and audits a range of records. The range begins at a position, or at the app's
//     start, and ends at a cut, which is a consistent set of offsets.
//   - Position is where a range ended: the offsets, and what the audit of the next range needs to know about this range.
//   - Auditor reads all topics at about the same pace, and derives the meaning of each record by the rules of
//     its route.
//
// oracle.Ledger judges what selfaudit reads. selfaudit may import processor/app, processor/kafka,
// processor/wire, processor/security, processor/oracle, dedup, dedup/rules and dedup/routesets. It writes to no
// topic, joins no consumer group and has no transactional id.
//
// # Invariants
//
//   - A cut is consistent whatever is committed in the meantime, because the ends of the topics are listed one after the
//     other: events that were judged below the ends listed first have their rows and outputs below the ends listed later.
//   - A record whose counterpart lies beyond an end is no violation: it waits for the counterpart in the Position.
//   - Options bound the memory. If the keys do not fit, the audit follows only a sample of the keys, and the
//     result says how large the sample is.
//   - If records were deleted before they were audited, the audit returns an error and not a clean result.
//
// # What looks wrong
//
//   - A range in which routes changed is not checked, because no topic records the policies by which an event
//     was judged. Only changes of windows, and routes that were added, are allowed. The next range begins after
//     the change.
//   - The repartition topic is hardly read, although it has the order in which events were judged: the app deletes its
//     records a minute after it has judged them. The rows of the changelog name the first events instead, and they stay
//     for two windows.
//   - The audit derives the keys of output records again, because the outputs of plain routes have no oncebus header.
package selfaudit
