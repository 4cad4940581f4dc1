// Package transfer takes keys out of an app and into another one.
//
// # What it owns
//
//   - Export writes the live rows of an app to a file of package portable.
//   - Check and Compare say whether a file is whole, and which of its rows an app has.
//   - Seed writes keys that another system knew to the repartition topic, as envelopes of their
//     own. The tasks store them.
//   - The progress of a seed, a row of the manifest topic.
//   - ExportLeaving, Arrive and Seed move an app to another cluster: its rows, stream times and
//     partitioning secret, and the place of its held offsets in mirrored topics.
//
// It may import processor/app, processor/kafka, processor/portable, processor/wire,
// processor/security, dedup and dedup/rules. It joins no group and has no local state.
//
// # Invariants
//
//   - An export has the newest row of each key as of the newest transaction of its task, or
//     fails. Rows that decide no event are left out.
//   - A seed reaches the app through the log of its task only. So seeds and events have one
//     order, and a repeated seed is harmless.
//   - Each seed is counted once: tasks write the counts in the transaction that judges the
//     seeds, and a command that goes on writes none again.
//   - An app arrives held, and is released once its tasks have all rows and stream times. It
//     starts at the copies of its held offsets, or before.
//   - No seed of a file is written before the whole file was read without a mistake.
//
// # What looks wrong
//
//   - Seeds are not produced in a transaction. A killed command would leave it open, and no
//     task could read on until it times out. The next command reads from the repartition
//     topic what was written after the last progress.
//   - The progress is written in transactions all the same: their one transactional id
//     excludes a second command.
//   - A changelog is read twice for an export. To keep the rows in place of where they are
//     would take three times the memory.
//   - The place of a held offset is found by the content of the records before it, not by the
//     offsets that MirrorMaker 2 stores: any mirror will do, and each command needs one cluster.
//   - The tasks may decide on fewer than windowSeeds seeds at a time. Events that arrive
//     behind seeds wait for them.
package transfer
