// Package processor runs the two stages of one process: clients, groups,
// transactions and tasks. Package dedup decides, package state stores. This page
// is the architecture; read it before you change anything here.
//
// # The path of a record
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
//	                 store.Get    recent rows, runs                   (state)
//	                 Decide       unique, duplicate, after its window (dedup)
//	                 emit         output | duplicates | dead letter
//	                 put          row -> store, changelog, key counts
//	                      |
//	           transactions.end   checkpoint rows, flush, offsets, EndTxn
//	                      |
//	         committed    |    not committed, or outcome unknown
//	      store.Apply <---+---> store.Discard, restore from the changelog
//
// Eight files process a record from poll to commit, in both stages. worker.go polls,
// transaction.go begins and ends transactions, tasks.go finds the task.
// judge/router.go derives the key. judge/judge.go reaches the verdict, and
// judge/claim.go that of claim mode. judge/emit.go applies the policy of a verdict
// and builds the records, judge/state.go stores rows and checkpoints. Below them are
// the packages wire, dedup and state.
//
// Other files: membership.go has the assignment of a worker, client.go the callbacks
// that change it. routestart.go decides where routed partitions start, timeorder.go in
// which order backlogs go, bypass.go handles tasks without a store, oversize.go batches that are too large. Workers publish to the
// board (board.go), which Ready and State read. They share the values of shared.go and have
// no way back to the Processor.
//
// # Packages
//
//	kafka      the action that a broker error requires; reads a partition to its end
//	security   TLS, SASL, tokens, redaction: the options of every client
//	wire       the bytes in records: headers, envelope, checkpoint, verdict
//	app        topics, manifest, numbers and limits of an app
//	judge      judges and routes records; no client, no goroutine
//	assign     which worker gets which task: a former owner first
//	restore    a process's stores, and their restores from the changelog
//	move       moves the keys of an app to other partitions
//	switchover the phases of such a move, pure
//	front      submits events and waits; looks keys up, requests their erasure
//	deadletter lists dead letters, and sends them back to their inputs
//	ingress    the HTTP server
//
// # Claims
//
// In claim mode outcomes arrive on a raw topic of their own. The router reads the
// task's partition from the claim token and sends the outcome through the
// repartition topic. So the events and outcomes of a key have one order.
//
// An executor may ask before it runs: an outcome start or renew is a question, and its
// answer is a record of the transaction that stores the grant. A started claim has no lease.
//
// A lease runs in broker time from dispatch to the duplicate's append, without
// backlog. It restarts with the task: outcomes that arrived while no task judged
// may be behind a duplicate. The requests that wait for an outcome are part of
// the row. The transaction that stores the outcome responds to them.
//
// # Verdicts by HTTP
//
// front.IngressClient submits an event for a sender that waits. It derives the
// key as the router would and writes the event to its task, in an envelope with
// the address of the request. Emitter.conclude produces every verdict in the same
// transaction, to the client's partition of <app>-verdicts. A duplicate that waits
// for an outcome adds its address to the claim. With answer: outcome the first event does
// too. A sender that asks later is a query: a record behind the event, whose task answers it
// from the row and changes nothing. The client stores nothing and
// decides nothing. The sender may retry an event with a key that has no verdict: the retry
// is a duplicate, unless the route may forward events unchecked.
//
// # Ownership
//
// A worker owns one client, one static group member, one transactional id and
// one goroutine. A process runs ONCEBUS_WORKERS of them per stage. Only its
// worker's goroutine uses a task, so records need no locks. While a task restores,
// the restore owns its store.
//
// The client runs with BlockRebalanceOnPoll. From a poll that returned something
// until AllowRebalance, no rebalance callback runs: the worker holds the rebalance
// lock. The worker and the callbacks use tasks only under this lock. The one
// exception is taskSet.inbox, which has a lock of its own: the group's goroutine
// adds the offsets of new partitions at any time.
//
// The balancer of the dedup stage prefers the process that has a task's rows
// (package assign). With ONCEBUS_STANDBY ownerWatch computes from the description of the
// group which tasks this process follows (restore.Standbys): every process computes the
// same, and no restore relies on it.
//
// # States of a task
//
//	created --> restoring <--> running --> waiting
//	   \         ^    |           |           |
//	    \        |    v           |           |
//	     \      bypassing         |           |
//	      \__________|____________|___________|____> closed
//
// Start, rebalance, abort, unknown commit outcome and damage all lead through
// restoring. It reads the changelog from the store's position to the high
// watermark, which is few requests if nothing is missing. The restores of a process share
// these requests (kafka.Joint).
//
// A task bypasses while its store cannot be used and a route of its topic says
// on_state_failure: fail_open. It starts at the last checkpoint in the changelog,
// forwards the events of such routes unchecked and skips all others. Its checkpoints
// have next, unchanged, and the offset up to which the events of each namespace were
// forwarded. After a restore the task starts at next, stores what it
// forwarded, and decides the rest.
//
// A task is waiting at a record of a route that its process does not know, as in a
// rolling update that adds a route (task.go). It leaves this state by a restart or in
// another process.
//
// # Erasures
//
// The command forget writes a request to the manifest topic. manifestWatch reads it in every
// process. The task that owns the partition frees the rows in its next transaction
// (erasures.go), the last step before the checkpoint, also without input. After the commit
// its process removes the request. So a request survives any crash, and may be applied
// twice: it names the event and the attempt of each row, so a second time it finds none. A
// task without a store leaves it for later. Earlier builds ignore it.
//
// The tasks of a prepartitioned topic read an input that anybody may write, and the tasks of
// the repartition topic one that no prepartitioned route needs. The manifest topic serves
// both, and only operators and the app may write it.
//
// # Holds
//
// The command hold writes a row to the manifest topic. manifestWatch reads it in every
// process (hold.go). The routing stage, and the tasks of prepartitioned topics, then commit
// their transaction and pause in the group. With it commits a held row for each partition,
// with the offset: so its writer still owned the partition. A later owner reads the manifest
// topic before it fetches, and finds the hold. So a partition with a held row is read no
// further until the release, whichever process has it. The ingress refuses events.
//
// # Moves
//
// The command move (package move) puts another generation of partitions in force: a repartition
// topic with its changelog. Package switchover has the phases. While the input is held each old
// task writes a closed checkpoint and judges no more (closing.go). The act rewrites the
// manifest, and every process goes over to an edition with the new topics. The old
// repartition topic becomes an input of the routing stage, from the closed checkpoints on: the
// router forwards its records as they are (judge/forward.go). A process that has not read of
// the act routes nothing (app.Holds.For). The tasks of a prepartitioned topic that becomes
// routed close as well, and the router reads the topic from their closed checkpoints on. A
// prepartitioned topic that has got partitions is paused until then (worker.grownTopics).
//
// # Stream time
//
// The partitions of the inputs are read at different speeds. So a task of the repartition topic
// keeps for each source how far it has come (wire.Sources): the highest time of its events, and
// what all sources had come to at the broker time up to which it was read. The least of them is
// the stream time (judge/sources.go). The routing stage observes up to where it has read its
// inputs (progress/inputs.go), and writes it with the highest event times to all partitions of
// the repartition topic, in a transaction behind the records of which it speaks
// (Router.WriteProgress, app.Marks). It also says when it counted the partitions. A count holds for a
// minute of the task's log (wire.Sources.AreCounted), so stream time does not pass one that was added.
// Without events, time goes on between these records, by their broker time (wire.Sources.TakeSample).
// No clock of a process is in it: a dead, paused or slow router says nothing, and stream time waits.
//
// # Life of a changelog
//
// A whole checkpoint has the stream times, sources and key counts of all namespaces. Most
// transactions write a partial one: what it changed since the checkpoint before. Readers
// fold them (wire.Fold). Partial ones have keys of their own, numbered since the whole
// one, so compaction leaves the newest whole one and all after it. A new floor comes with
// a whole one, so trimming leaves it too. A task's first checkpoint is whole.
//
// Nothing is deleted from a changelog by age: a stop may be longer than any retention.
// The checkpoint has fences. A fence is a changelog offset with the latest first seen
// time of each namespace id below it. When all of these lie below their horizons no row
// below the offset decides an event, and the next checkpoint states it as the floor. After
// its commit the purger deletes the records below. So rows leave a changelog only below a
// floor that the changelog itself states, and a restore can tell a trimmed changelog from
// one that lost rows (restore.decide).
//
// Stream time stands in most namespaces without events, and their fences with it. When the
// changelog becomes long, its task sweeps: it writes all live rows again, a chunk in each
// transaction, and the offset at which it began becomes the floor. A task that relies on
// its local store because the changelog lost rows sweeps too.
//
// # Invariants
//
// Each has tests named after it; HAZARDS.md lists what threatens them.
//
//  1. A store holds every committed row below its changelog position and
//     nothing uncommitted. Put adds open rows; Apply follows the commit, Discard an abort.
//  2. Emitted records, changelog rows, checkpoints and offsets commit together
//     or not at all. produced stores the first produce error; end aborts on it.
//  3. Only End() == (true, nil) is a commit. (false, nil) discards and restores;
//     an error replaces the client, and with it every task.
//  4. A restore ends at the high watermark taken after the stable offset fetch,
//     reads read_committed, and counts by position.
//  5. No transaction without offsets: taskSet.setOffsets writes one for every task
//     that has a checkpoint in it, and guard refuses an empty request.
//  6. Input below the checkpoint was processed before: skipped, not a duplicate.
//  7. A verdict is a function of the record and the task's state, and of what the
//     topics accept.
//  8. No offset reset is silent: out of range stops the partition.
//  9. Hash, partition counts, key rules and encodings are pinned in
//     <app>-manifest; a start with other ones refuses.
//  10. A worker uses only tasks that it owns. restore.Stores leases a task's
//     directory to one owner at a time; taskSet.closeUnassigned closes other tasks.
//
// # Non-obvious
//
// These look wrong or superfluous, and each prevents a defect.
//
//   - The offset commit is rewritten from the checkpoints (taskSet.setOffsets). The
//     session would commit what was polled. The two differ when a task skips
//     records below its checkpoint.
//   - A transaction that only skipped records is committed. An abort would rewind
//     to the same records for ever.
//   - resetSession ends a session outside of any transaction. After a revocation
//     the session drops the next one until End is called. Without the reset a
//     worker can keep a task that another process runs.
//   - rebalanceLock.endContext cancels End after endBlockedMax. Else they deadlock:
//     End waits for onLost, onLost for the rebalance lock.
//   - Records polled before resetSession are dropped: its End rewinds the client
//     to the committed offsets, so the records are fetched again.
//   - After a refusal the records of that topic are produced one at a time, for as many
//     input records as the aborted transaction had. franz-go fails all records of the
//     partition with the error of a batch. Refused records stay known until the commit of
//     their events; a new client begins without them, and gets the same refusals.
//   - The store's position after a commit is the checkpoint row's offset plus
//     one. The checkpoint row is the last row of a task in a transaction, and a
//     partition keeps produce order.
//   - Arenas are reset after every transaction, not before the next one. franz-go
//     may read a record until its promise has been called. After Flush or an
//     abort all promises have been.
//   - A worker without transactions releases its arenas. The last one of a process
//     returns the process's free memory (idleMemory): Go would keep both.
//   - No RecordDeliveryTimeout is set: it would fail every record whose original
//     timestamp is older than it.
//   - The repartition topic has LogAppendTime; the original timestamp is in the
//     envelope. That broker time decides whether an event is from the future. It is
//     in the log, so a replay reads the same one.
//   - Stream time is by namespace, not by partition. Otherwise one route's
//     backlog would make every other route's events late.
//   - An event is late by the front of its own source, too, though its row may be there: so
//     that verdict is the same at any speed of the other sources.
//   - A progress record says up to which broker time a partition was read, and not that it
//     is at its end. Such a fact stays true, whichever worker writes it and however late.
//   - The client announces a batch that decompresses to too many bytes once, and
//     then fetches no further. An abort may or may not resume it. So the open
//     transaction skips the batch, or the worker replaces the client (oversize.go).
//   - The router and the tasks drop what their derivers have of the last record after
//     each transaction. Else a worker without events keeps a whole batch in memory, and
//     in the budget of decompressed batches.
//   - While the disk fills the dedup stage pauses and the routing stage does not.
//     The router writes no local state, and its records may go to the tasks of
//     other processes.
//   - Local state has no tombstones: rows expire by stream time, in the store and
//     in every fold of the changelog. So a store may have any age (T1) if its position
//     is still in the changelog.
//   - The floor needs no margin of broker time. The skew bounds how far one event moves
//     stream time, and a store evicts rows by the same stream time.
//   - A limit on live keys has no policy that waits: only new events advance stream
//     time, which frees keys.
//   - A row is kept for two windows and the grace period. An event may be judged
//     one window and the grace period behind stream time, and its first event may
//     be one window older.
package processor
