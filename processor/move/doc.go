// Package move moves the keys of an app to another number of partitions while it runs, also those of
// prepartitioned topics, which become routed.
//
// # What it owns
//
//   - Mover leads a switch (package switchover): it finds out the facts, and writes the phases.
//   - The copier copies the rows of all changelogs to those of the next generation, and writes
//     the first checkpoints of its tasks.
//   - Finish deletes the topics of earlier generations.
//
// It may import processor/app, processor/kafka, processor/security, processor/switchover,
// processor/wire, dedup, dedup/routesets and dedup/rules. It joins no group and has no local state.
//
// # Invariants
//
//   - The copies of a key are written in the order of its rows: each old changelog is read from
//     its start to its end, by one run at a time.
//   - A run takes over in two steps: it registers the copier's transactional id, which ends the
//     copies of the run before, and then names itself the leader. Only the leader may act. So
//     nothing is copied once the new tasks have begun.
//   - The switch acts only when the closed checkpoints of all old tasks are committed, and the
//     copies have passed them.
//   - A topic becomes routed in the transaction of the act: its role and starts in the manifest,
//     and the route set that says so. Its starts are the closed checkpoints of its tasks.
//   - Progress and copies commit together. So a run that was killed is repeated.
//
// # What looks wrong
//
//   - All rows are copied, also those that decide nothing any more. To leave them out would need
//     a second reading, as for an export.
//   - The rows are keyed and copied in order, so that a copy after an abort or a kill may repeat.
//   - Stream times become those of the most advanced task. An event that is late for one task is
//     then late for all, which the command reports.
package move
