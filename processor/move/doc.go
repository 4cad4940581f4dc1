// Package move moves the keys of a running app to another number of partitions. It can also move the keys of
// prepartitioned topics, which thereby become routed.
//
// # What it owns
//
//   - Mover leads a switch (package switchover): it gathers the facts and writes the phases.
//   - The copier copies the rows of all changelogs to the changelogs of the next generation of partitions, and writes the
//     first checkpoints of the new tasks.
//   - Finish deletes the topics of earlier generations.
//
// It may import processor/app, processor/kafka, processor/security, processor/switchover,
// processor/wire, dedup, dedup/routesets and dedup/rules. It joins no group and has no local state.
//
// # Invariants
//
//   - The copies of a key are written in the order of the key's rows, because each old changelog is read from its start
//     to its end, by one run of the command at a time.
//   - A run takes over in two steps: it registers the copier's transactional id, which fences the copier of the previous
//     run, and then names itself the leader. Only the leader may act. Therefore nothing is copied once the new tasks have
//     begun.
//   - The switch acts only when the closed checkpoints of all old tasks are committed and the copies have passed them.
//   - A topic becomes routed in the transaction of the act, which writes the topic's role and starts in the manifest, and
//     the route set that has it routed. The topic's starts are the closed checkpoints of its tasks.
//   - The progress and the copies are committed in the same transaction, so an operator can repeat a run that
//     was killed.
//
// # What looks wrong
//
//   - All rows are copied, including rows that no longer decide anything. To leave these rows out, the copier
//     would have to read each changelog twice, as an export does.
//   - Copies may be repeated after an abort or a kill. This is harmless, because rows are keyed and copied in order.
//   - All new tasks begin with the stream time of the most advanced old task. An event that is late for that task is then
//     late for all tasks; the command reports this.
package move
