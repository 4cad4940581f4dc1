// Command handwritten is the deduplicator that teams write themselves: a consumer
// that claims the key of each event in Redis or PostgreSQL, produces the events with
// a new key, and commits its offsets. It is a module of its own, so that the product
// does not depend on the two clients. Package peers builds and starts it.
//
// It owns the loop and the two stores, and may import no package of the module
// oncebus.
//
// Each commit interval has this order:
//
//  1. Poll, claim the keys of each poll in one round trip, produce new events.
//  2. Wait until the broker has acknowledged them.
//  3. Commit the transaction of PostgreSQL. Redis has none.
//  4. Commit the offsets of the input.
//
// Invariants:
//   - An offset is committed only after the broker has all new events before it, so a
//     crash skips no event that has no key yet.
//
// What a crash does:
//   - redis, SET NX between steps 1 and 2: the key is set and the event is lost. The
//     process reads it again after the restart, and drops it as a duplicate.
//   - redis-position has the event's partition and offset as the value of its key. An
//     event that finds its own position is no duplicate, and is produced again. So no
//     event is lost, and those after the last commit of offsets are doubled.
//   - postgres before step 3: the keys are rolled back. No event is lost, and those
//     already produced are doubled. A crash between steps 3 and 4 does no harm.
//   - No kind of store stops a process that was paused and goes on after another has
//     its partitions: what it still produces is doubled.
package main
