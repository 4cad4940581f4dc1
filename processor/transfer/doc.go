// Package transfer exports the keys of an app, and imports keys into an app.
//
// # What it owns
//
//   - Export writes the live rows of an app to a file of package portable.
//   - Check and Compare tell whether a file is complete, and which of its rows an app has.
//   - Seed writes keys that another system has seen to the repartition topic, in a special kind of envelope,
//     and the tasks store them as rows.
//   - The progress of a seed, which is a row of the manifest topic.
//   - ExportLeaving, Arrive and Seed move an app to another cluster: its rows, its stream times, its partitioning
//     secret, and the positions of its held offsets in the mirrored topics.
//
// It may import processor/app, processor/kafka, processor/portable, processor/wire,
// processor/security, dedup and dedup/rules. It joins no group and has no local state.
//
// # Invariants
//
//   - An export has the newest row of each key as of the newest transaction of the key's task, or it fails. Rows that
//     decide on no event are left out.
//   - A seed reaches the app only through the log of its task. Therefore seeds and events are judged in one
//     common order, and a repeated seed has no effect.
//   - Each seed is counted once: a task writes the counts in the transaction that judges the seeds, and a command that
//     continues an earlier one writes no seed again.
//   - An app that is moved to this cluster is created in a hold, and an operator can release it once its tasks
//     have all rows and stream times. It begins to read at the copies of its held offsets, or before them.
//   - No seed of a file is written before the whole file was read without a mistake.
//
// # What looks wrong
//
//   - Seeds are not produced in a transaction. If a command were killed, its transaction would stay open, and
//     no task could read further until the transaction times out. Instead, the next command reads the
//     repartition topic to find the seeds that were written after the last progress.
//   - The progress is nevertheless written in transactions, because their common transactional id fences a second
//     command.
//   - An export reads each changelog twice. The first reading only finds the position of the newest row of each
//     key. If the export kept the rows themselves in memory, it would need three times the memory.
//   - The position of a held offset is found by the content of the records before it, and not by the offsets
//     that MirrorMaker 2 stores. Therefore any mirroring program can be used, and each command connects to only
//     one cluster.
//   - At most windowSeeds seeds wait for the tasks at a time, because events that arrive behind seeds have to wait for
//     them.
package transfer
