// Package restore opens the local store of each task and brings it up to date: it reads the task's
// changelog up to the high watermark.
//
// # What it owns
//
//   - Stores has the state directory: its lock, one directory for each task, and one owner at a time
//     for each directory (leases). It limits how many stores open their files at the same time
//     (Config.Openings). A task without a directory gets one at its first flush.
//   - Restore opens a store and applies the changelog to it, in a goroutine of its own. Bypass reads
//     only the last checkpoint, for a task that continues without its store.
//   - Standbys follow the changelogs of tasks of other processes, and of the new tasks that a move
//     prepares.
//   - DiskGuard pauses tasks before the disk is full. stallWatch reports why a restore makes no
//     progress. rebuildGuard limits how often a store is rebuilt.
//
// The package may import processor/app, processor/kafka, processor/wire, state, dedup and franz-go.
//
// # Invariants
//
//   - A restore ends at the high watermark, which it reads after the group's stable offset fetch. It
//     reads with read_committed. It compares positions, and does not wait for a last record, because the
//     last offsets may be control records (invariant 4).
//   - The changelog is the truth, a store is a cache of it. A damaged, foreign or stale store is
//     renamed, never repaired, and rebuilt from the changelog.
//   - A task's directory has one owner at a time (invariant 10). The owner's goroutine owns the store:
//     first the restore until it has finished, then the worker. A standby closes the store when a task
//     needs it.
//
// # What looks wrong
//
//   - A restore applies rows a second time after a failure. That is safe, because rows are absolute
//     values, as long as the store's position is never behind rows that it lacks.
//   - A rebuild after a host crash is not counted, because it is normal. All other rebuilds are
//     counted: without a limit, rebuilds would hide a failing disk.
//   - A standby ends at every changelog that a restore would not simply read. If it followed a
//     changelog that lost rows, its store would lack these rows, but look complete to a restore.
//   - A stalled restore is only reported. If the restore ended without the rows of an open transaction
//     that holds it up, the task would emit duplicates once that transaction commits.
//   - The disk guard pauses tasks and merges, but not the routing stage, which writes no local state.
package restore
