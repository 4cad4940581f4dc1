// Package processor runs the two stages of one process: clients, groups,
// transactions, and the lives of tasks. It is the shell around two pure parts:
// package dedup decides, package state remembers. This page is the architecture;
// read it before you change anything here.
//
// # The way of a record
//
//	raw topics                                prepartitioned topics
//	    |  judge.Router                            |
//	    |  dedup key -> partition                  |
//	    v                                          |
//	<app>-repartition                              |
//	    |                                          |
//	    +-----------------+------------------------+
//	                      v
//	               judge.Judge    one partition, strictly in offset order
//	                 Admit        late? from the future?              (dedup)
//	                 store.Get    overlay, recent rows, runs          (state)
//	                 Decide       unique, duplicate, after its window (dedup)
//	                 emit         output | duplicates | dead letter
//	                 put          row -> overlay and changelog
//	                      |
//	               worker.end     checkpoint rows, flush, offsets, EndTxn
//	                      |
//	         committed    |    not committed, or outcome unknown
//	      store.Apply <---+---> store.Discard, restore from the changelog
//
// A record passes eight files from poll to commit: worker.go polls,
// transaction.go begins and ends, tasks.go finds the task. judge/router.go or
// judge/judge.go reaches the verdict, judge/claim.go where the route claims.
// judge/emit.go builds the records, transaction.go sends them.
//
// Around it: client.go turns the callbacks of the group into messages, bypass.go
// handles tasks without a store, oversize.go handles batches that are too large.
//
// # Packages
//
//	kafka      what an error of the broker asks for; one partition read to its end
//	security   TLS, SASL, tokens, redaction: what every client starts from
//	wire       the bytes in records: headers, envelope, checkpoint, verdict
//	app        what an app stands on: topics, manifest, numbers, limits
//	judge      records in, records out; no client, no goroutine
//	restore    a process's stores, and how one gets up to its changelog
//	front      from outside: submit and wait, look up and erase
//	ingress    the HTTP server
//
// # Claims
//
// In claim mode outcomes arrive on a raw topic of their own. The router reads the
// task's partition from the claim token and sends the outcome through the
// repartition topic. So the events and outcomes of a key have one order.
//
// A lease runs in broker time from dispatch to the duplicate's append, without
// backlog. It restarts with the task: outcomes that arrived while no task judged
// may stand behind a duplicate. The requests that wait for an outcome are part of
// the row. The transaction that records the outcome responds to them.
//
// # Verdicts by HTTP
//
// front.IngressClient submits an event for a sender that waits. It derives the
// key as the router would and writes the event to its task, in an envelope with
// the address of the request. Emitter.conclude produces every verdict in the same
// transaction, to the client's partition of <app>-verdicts. A duplicate that waits
// for an outcome leaves its address in the claim. The client stores nothing and
// decides nothing. The sender may retry what has no verdict and has a key.
//
// # Who owns what
//
// A worker owns one client, one static group member, one transactional id and
// one goroutine. A process runs ONCEBUS_WORKERS of them per stage. There are
// no locks between records: a task belongs to its worker's goroutine, and to
// its restore while it restores.
//
// The client runs with BlockRebalanceOnPoll. From a poll that returned something
// until AllowRebalance, no rebalance callback runs: the worker holds the rebalance
// lock. Everything that touches tasks runs under it, in the worker or in a
// callback, so the two never meet. The one exception is taskSet.inbox, which has a
// lock: offsets of new partitions arrive from the group's goroutine at any time.
//
// # States of a task
//
//	created --> restoring <--> running
//	   \         ^    |           |
//	    \        |    v           |
//	     \      bypassing         |
//	      \__________|____________|____> closed
//
// Start, rebalance, abort, unknown commit outcome and damage all lead through
// restoring. It reads the changelog from the store's position to the high
// watermark, which is two requests if nothing is missing.
//
// A task bypasses while its store cannot be used and a route of its topic says
// on_state_failure: fail_open. It starts at the last checkpoint in the changelog,
// forwards the events of such routes unchecked and leaves all others. Its
// checkpoints say next, which stays, and up to where the events of each namespace
// were forwarded. After a restore the task starts at next, stores what it
// forwarded, and decides the rest.
//
// # Invariants
//
// Each has tests named after it; HAZARDS.md lists what threatens them.
//
//  1. A store holds every committed row below its changelog position and
//     nothing uncommitted. Put goes to an overlay; Apply follows the commit.
//  2. Emitted records, changelog rows, checkpoints and offsets commit together
//     or not at all. produced collects the first produce error; end aborts on it.
//  3. Only End() == (true, nil) is a commit. (false, nil) discards and restores;
//     an error replaces the client, and with it every task.
//  4. A restore ends at the high watermark taken after the stable offset fetch,
//     reads read_committed, and counts by position.
//  5. No transaction without offsets: taskSet.offsets writes one for every task
//     that has a checkpoint in it, and guard refuses an empty request.
//  6. Input below the checkpoint was processed before: skipped, not a duplicate.
//  7. A verdict is a function of the record and the task's state.
//  8. No offset reset is silent: out of range stops the process.
//  9. Hash, partition counts, key rules and encodings are pinned in
//     <app>-manifest; a start that disagrees refuses.
//  10. What a worker does not own it does not touch: restore.Stores gives a
//     task's directory to one owner at a time, taskSet.retain closes the others.
//
// # Non-obvious
//
// Things that look wrong or superfluous until they are removed.
//
//   - The offset commit is rewritten from the checkpoints (taskSet.offsets). The
//     session would commit what was polled. The two differ when a task skips
//     records below its checkpoint.
//   - A transaction that only skipped records is committed. An abort would rewind
//     to the same records for ever.
//   - resetSession ends a session outside of any transaction. After a revocation
//     the session swallows the next one until End is called. Without the reset a
//     worker can keep a task that runs elsewhere.
//   - endContext cancels End after endBlockedMax. Else they deadlock: End waits
//     for onLost, onLost for the rebalance lock.
//   - Records polled before resetSession are dropped: its End rewinds the client
//     to the committed offsets, so the records are fetched again.
//   - The store's position after a commit is the checkpoint row's offset plus
//     one. The checkpoint row is the last row of a task in a transaction, and a
//     partition keeps produce order.
//   - Arenas are reset after every transaction, not before the next one. franz-go
//     may read a record until its promise has been called. After Flush or an
//     abort all promises have been.
//   - A worker without transactions releases its arenas. The last one of a process
//     returns the process's free memory (idle.go): Go would keep both.
//   - No RecordDeliveryTimeout is set: it would fail every record whose original
//     timestamp is older than it.
//   - The repartition topic has LogAppendTime; the original timestamp is in the
//     envelope. An event is from the future by that broker time. It stands in the
//     log, so a replay sees the same one.
//   - Stream time is kept by namespace, not by partition. Otherwise one route's
//     backlog would make every other route's events late.
//   - The client announces a batch that decompresses to too much once, and then
//     fetches no further. An abort may or may not resume it. So the transaction in
//     progress skips the batch, or the client is replaced (oversize.go).
//   - While the disk fills the dedup stage pauses and the routing stage does not.
//     The router writes no local state, and its records may go to the tasks of
//     other processes.
//   - Local state has no tombstones: rows expire by stream time, in the store and
//     in every fold of the changelog. So a store may be as old as it likes (T1) as
//     long as its position is still in the changelog.
//   - A limit on live keys has no policy that waits: only new events move
//     stream time, and so make room.
//   - A row is kept for two windows and the grace period. An event may be judged
//     one window and the grace period behind stream time, and its first event may
//     be one window older.
package processor
