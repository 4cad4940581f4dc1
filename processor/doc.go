// Package processor moves events through Kafka, each exactly once. It is the
// shell around two pure parts: package dedup decides, package state remembers.
// This page is the architecture; read it before changing anything here.
//
// # The way of a record
//
//	raw topics                                prepartitioned topics
//	    |  router.route                            |
//	    |  dedup key -> partition                  |
//	    v                                          |
//	<app>-repartition                              |
//	    |                                          |
//	    +-----------------+------------------------+
//	                      v
//	               task.process   one partition, strictly in offset order
//	                 Admit        late? from the future?           (dedup)
//	                 store.Get    overlay, recent rows, runs       (state)
//	                 Decide       unique, duplicate, expired       (dedup)
//	                 emit         output | duplicates | dead letter
//	                 record       row -> overlay and changelog
//	                      |
//	               worker.end     checkpoint rows, flush, offsets, EndTxn
//	                      |
//	         committed    |    not committed, or not known
//	      store.Apply <---+---> store.Discard, restore from the changelog
//
// Read it in this order: worker.go (a client's life, poll, gate),
// transaction.go (begin to commit), router.go, tasks.go, task.go, emit.go,
// claims.go, restore.go, changelog.go. Around it: topics.go and manifest.go settle what
// must never change, rebalance.go turns the group's callbacks into messages,
// errors.go says what follows from an error.
//
// # Claims
//
// In claim mode (claims.go; the rules are pure, dedup.DecideClaim and
// dedup.ApplyOutcome) outcomes come in on a raw topic of their own. The router reads
// the task's partition from the claim token and sends them through the
// repartition topic too, so that the events and outcomes of a key have one
// order. A lease runs by the broker's clock, from when the event was handed out
// to when the broker stamped the copy on that topic: a backlog does not use it
// up. It starts anew with a task that begins to judge, since outcomes that came
// in while nobody did may be routed behind a copy. Who waits for an outcome is
// part of the row, and is answered in the transaction that records the outcome.
//
// # Verdicts by HTTP
//
// A Front (front*.go) puts an event on the bus for a sender that waits: it
// derives the key as the router would and writes the event straight to its
// task, in an envelope with a return address. Every verdict comes through
// emitter.conclude, which tells it (verdicts.go) in the same transaction by the
// front's partition of <app>-verdicts. Where copies wait for an outcome their
// addresses are part of the claim, and the transaction that records the outcome
// tells it to each. The front keeps nothing and decides nothing. Everything it
// cannot answer may be sent again, as long as it has a key.
//
// # Who owns what
//
// A worker owns one client, one static group member, one transactional id and
// one goroutine. A process runs ONCEBUS_WORKERS of them per stage. There are
// no locks between records: a task belongs to its worker's goroutine, and to
// its restore while it is restoring.
//
// The client runs with BlockRebalanceOnPoll: from a poll that returned
// something until AllowRebalance, no rebalance callback runs. We call it the
// gate. Everything that touches tasks happens under the gate, in the worker,
// or in a callback while the gate is open, so the two never meet. The one
// exception is taskSet.inbox, which has a lock, because offsets of newly
// assigned partitions arrive from the group's goroutine at any time.
//
// # States of a task
//
//	created --> restoring <--> running
//	   \         ^    |           |
//	    \        |    v           |
//	     \       passing          |
//	      \__________|____________|____> closed
//
// Boot, rebalance, abort, doubt and damage all lead through restoring: read the
// changelog from the store's position to the high watermark. When nothing is
// missing that is two requests.
//
// A task is passing while its store cannot be used and a route of its topic
// says on_state_failure: fail_open. It knows its place from the last checkpoint in
// the changelog, emits the events of such routes unchecked and leaves the rest.
// Its checkpoints then say two things: next, which stays where it is, and up to
// where the events of each class went out. From passing there is only one way,
// another restore; after it the task goes on from next and records, instead of
// emitting, what went out. The group's offset is next all the while, and so is
// the purger's.
//
// # Invariants
//
// The numbers are design's; each has tests named after it.
//
//  1. A store holds every committed row below its changelog position and
//     nothing uncommitted. Put goes to an overlay; Apply follows the commit.
//  2. Emitted records, changelog rows, checkpoints and offsets commit together
//     or not at all. emitter collects the first produce error; end aborts on it.
//  3. Only End() == (true, nil) is a commit. (false, nil) discards and restores;
//     an error gives up the client, and with it every task.
//  4. A restore ends at the high watermark taken after the stable offset fetch,
//     reads read_committed, and counts by position.
//  5. No transaction without offsets: taskSet.offsets writes one for every task
//     that has a checkpoint in it, and guard refuses an empty request.
//  6. Input below the checkpoint was processed before: skipped, not a duplicate.
//  7. A verdict is a function of the record and the task's state.
//  8. No offset reset is silent: out of range stops the process.
//  9. Hash, partition counts, key rules and encodings are pinned in
//     <app>-manifest; a start that disagrees refuses.
//  10. What a worker does not own it does not touch: dirLeases hands a task's
//     directory to one owner at a time, taskSet.retain closes what is gone.
//
// # Non-obvious
//
// Things that look wrong or superfluous until they are taken away.
//
//   - The offset commit is rewritten from the checkpoints (taskSet.offsets). The
//     session would commit what was polled, which is the same thing until a
//     task skips records below its checkpoint.
//   - A transaction that only skipped records is still sealed and committed;
//     aborting it would rewind to the same records for ever.
//   - rearm ends a session outside of any transaction. After a revocation the
//     session swallows the next one until End is called; without it a worker
//     can keep a task that is running elsewhere.
//   - An End under way is cancelled if a rebalance callback has to wait for the
//     gate too long (endContext). A member the group has forgotten gets no
//     heartbeat, which End waits for, and its callback, which End also waits
//     for, waits for the gate: the simulation found both waiting for ever.
//   - Records polled before rearm are dropped: ending rewinds the client to
//     the committed offsets, so they come again.
//   - A restore fetches by hand (changelog.go). A consumer shows records only,
//     and the last thing in a changelog is a transaction marker.
//   - The store's position after a commit is the checkpoint row's offset plus
//     one, because the checkpoint row is the last row a task produces in a
//     transaction and a partition keeps produce order.
//   - arenas are reset after every transaction and not before the next one:
//     franz-go may read a record until its promise has been called, and after
//     Flush or an abort all of them have been.
//   - A worker without transactions gives up its arenas, and the last one of a
//     process the process's free memory (rest.go): Go would keep both.
//   - No RecordDeliveryTimeout is set: it would fail every record whose original
//     timestamp is older than it.
//   - The repartition topic is stamped by the broker (LogAppendTime) and the
//     original timestamp travels in the envelope. The stamp is the present
//     against which the far future is measured: it stands in the log, so a
//     replay sees the same one.
//   - Stream time is kept by namespace, not by partition. One route's backlog
//     would otherwise make every other route's events late.
//   - The client announces a batch that unpacks to too much once and stands
//     still; an abort may or may not make it go on. So such a batch is passed
//     in the transaction in progress, or the client is replaced (oversize.go).
//   - A front gives its records no context that can be cancelled, and returns
//     while they may still be on their way: see Front.send.
//   - A claim token is no secret and no proof: its namespace chose the route, so
//     it is compared with the row's as well. The rights to an outcomes topic are
//     rights to the claims of its namespaces, and to no others.
//   - Every row of a claim is measured before it is recorded (task.fits), by a
//     bound that a row which fits once never outgrows without gaining a text.
//   - Who may write to a raw topic may have a verdict told to any address. The
//     numbers of a front's questions are drawn so that nobody can guess them,
//     and a verdict on another key is no answer: see question.tell.
//   - What a front writes to the repartition topic has no transaction around
//     it and needs none: a record that is there twice is a copy.
//   - While the disk is filling the dedup stage pauses and the routing stage
//     does not: it writes no local state, and what it routes is for the tasks
//     of other processes too. Merges pause as well (state.Host.PauseMerges).
//   - Local state knows no tombstones: rows go by stream time, in the store and
//     in every fold of the changelog alike. So a store may be as old as it
//     likes (T1) as long as its position is still in the changelog.
//   - A limit on live keys has no policy that waits: only new events move
//     stream time, and with it make room.
//   - A row is kept for two windows and the grace, not one: an event may be
//     judged one window (and grace) behind stream time, and its first copy may
//     lie one window further back.
package processor
