// Package selfaudit reads the topics of an app and says whether the promise held: each key once
// per window in the output, and one fate for each input record.
//
// # What it owns
//
//   - Auditor connects, and audits a range: from a position on, or from the start, to a cut.
//   - Position is where a range ended: offsets, and what the next range needs of this one.
//   - The reading of topics in step, and what each record says by the rules of its route.
//
// The judgement is that of oracle.Ledger. It may import processor/app, processor/kafka,
// processor/wire, processor/security, processor/oracle, dedup, dedup/rules and dedup/routesets. It
// writes to no topic, joins no group and has no transactional id.
//
// # Invariants
//
//   - A cut is consistent whatever commits meanwhile. Its ends are listed one after the other:
//     what was judged below the first ones has its rows and outputs below the later ones.
//   - A record beyond an end is no finding: its counterpart waits in the Position.
//   - Memory is bounded by Options. Beyond the bound a sample of the keys is followed, and the
//     result says which part.
//   - What was deleted before it was audited is an error, and not a clean result.
//
// # What looks wrong
//
//   - A range in which routes changed is not checked, but for their windows and for added ones: the
//     policies by which an event was judged stand in no topic. The next range begins.
//   - The repartition topic is hardly read, although it has the order in which events were
//     judged: the app deletes its records a minute after them. The rows of the changelog name
//     the first events, and stay for two windows.
//   - The keys of outputs are derived again. Plain events have no oncebus header.
package selfaudit
