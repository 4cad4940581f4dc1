// Command handwritten is the deduplicator that teams write themselves: a consumer that claims the key of each event
// in Redis or PostgreSQL, produces the events whose key is new, and commits its offsets. It is a separate module, so
// that the product does not depend on the clients of the two databases. Package peers builds and starts it.
//
// It owns the loop and the two stores, and may import no package of the module
// oncebus.
//
// In each commit interval a worker does the following, in this order:
//
//  1. Poll, claim the keys of each poll in one round trip, produce new events.
//  2. Wait until the broker has acknowledged them.
//  3. Commit the transaction of PostgreSQL. Redis has none.
//  4. Commit the offsets of the input.
//
// Invariants:
//   - The offset of an event is committed only after the broker has all new events before it. A crash therefore skips
//     no event whose key is not stored yet.
//
// What a crash does:
//   - redis (SET NX), between steps 1 and 2: the key is set, but the event is lost. After the restart the process
//     reads the event again and drops it as a duplicate.
//   - redis-position stores the event's partition and offset as the value of its key. An event that finds its own
//     position is no duplicate and is produced again. No event is lost, but the events after the last commit of
//     offsets are doubled.
//   - postgres, before step 3: the keys are rolled back. No event is lost, but the events that were already produced
//     are doubled. A crash between steps 3 and 4 does no harm.
//   - With every kind of store, a process that was paused may continue after another process has got its
//     partitions. The events that the paused process then still produces are doubled.
package main
