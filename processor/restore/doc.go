// Package restore owns the local stores of a process, and brings a store up to its
// changelog.
//
// # What it owns
//
//   - Stores: a directory for each task, leased to one owner at a time.
//   - Restore reads the changelog from the store's position to the high watermark,
//     in a goroutine of its own. A damaged or foreign store goes to quarantine and is
//     rebuilt; Config bounds how often.
//   - Bypass reads a task's last checkpoint, so that the task can forward events of
//     fail-open routes without a store.
//   - The disk guard pauses tasks before the disk is full.
//   - The stall watch names the open transaction that a restore waits for.
//
// It may import processor/app, processor/kafka, processor/wire, state, dedup and
// its packages. It never writes to Kafka.
//
// # Invariants
//
//   - A restore ends at the high watermark taken after the stable offset fetch, reads
//     read_committed, and counts by position.
//   - A store whose position is not in the changelog is not trusted.
//   - The directory of a task has one owner; a store is closed before its lease ends.
package restore
