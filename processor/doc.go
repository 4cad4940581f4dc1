// Package processor runs the two stages of one oncebus process: their Kafka clients, consumer groups,
// transactions and tasks. Package dedup decides what becomes of an event, package state stores the rows
// by which it decides. This page is the architecture. Read it before you change anything here.
//
// # One record, from its poll to the commit of its verdict
//
// Say that route "orders" reads the topic orders.raw, that the field order_id is its dedup key, and that
// its window is an hour. A producer writes order A-17 to orders.raw/3 at offset 41. It misses the
// acknowledgement, writes the order again, and this copy gets into orders.raw/0. The output topic shall
// have the first record once, and the copy not at all.
//
//	orders.raw/3, offset 41                                a prepartitioned topic
//	    |  ROUTING STAGE                                       |
//	    |  worker.poll, transactions.run                       |
//	    |  judge.Router: dedup key -> partition                |
//	    |  transactions.end: flush, offset 42, EndTxn          |
//	    v                                                      |
//	<app>-repartition/5, offset 900                            |
//	    |                                                      |
//	    +--------------------------+---------------------------+
//	                               |  DEDUP STAGE
//	                               |  worker.poll, transactions.run, taskSet.process
//	                               v
//	               judge.Judge    one partition, strictly in offset order
//	                 Admit        late? from the future?              (dedup)
//	                 store.Get    recent rows, runs                   (state)
//	                 Decide       unique, duplicate, after its window (dedup)
//	                 emit         output | duplicates | dead letter
//	                 put          row -> store, changelog, key counts
//	                               |
//	           transactions.end   checkpoint rows, flush, offset 901, EndTxn
//	                               |
//	         committed             |    not committed, or outcome unknown
//	      store.Apply <------------+---> store.Discard, restore from the changelog
//
// Poll (worker.go, routepoll.go). A worker of the routing stage polls its client. With a backlog, pacer.go
// delays the poll while the tasks are far behind, and timeorder.go makes a record wait until older records
// of other partitions were handed out. corrupt.go takes out batches with a wrong checksum, and oversize.go
// skips batches that are too large. From a poll that returned something until the end of the transaction,
// the worker holds the client's rebalance lock, so the group cannot revoke a partition meanwhile.
//
// Transaction (transaction.go). transactions.run begins a transaction. It processes this poll and
// further ones, each of them whole, until the commit interval is over (due.go) or the transaction has
// enough records (bound.go).
//
// Route (judge/keys.go, judge/router.go). Keys derives the dedup key of the order. Router produces the
// record to the repartition topic. A hash of the dedup key, keyed with a secret of the app, chooses the
// partition, so both copies get to <app>-repartition/5. Value and headers stay as they are, but foreign
// oncebus headers are dropped. The record key becomes an envelope (wire/envelope.go) with the dedup key,
// the event time, the original record key and timestamp, and the source position orders.raw/3/41. A record
// without a dedup key is not sent to the repartition topic: the router applies its route's policy, which
// forwards, drops or dead-letters the record.
//
// Produce (produced.go, endings.go). produced gives the record to the client, and collects the first
// produce error. It keeps records back until the last transaction of this worker is known to be closed in
// each of that transaction's partitions, which means that its control record is there.
//
// Commit of the routing stage (transaction.go, app/marks.go). transactions.end adds progress records
// (see Stream time) and marks, which say in the manifest topic how far each input was routed. It waits
// until the brokers have acknowledged all records. session.End then sends the offset 42 of orders.raw/3,
// which guard has checked, and ends the transaction. Only now does the dedup stage see offset 900,
// because its client reads with read_committed.
//
// Find the task (tasks.go, task.go). A worker of the dedup stage, perhaps of another process, polls
// offset 900 in the same way. Each partition of the repartition topic, and of a prepartitioned topic, is
// a task. taskSet.process gives the record to its task, which must be running or bypassing.
//
// Judge (judge/judge.go; judge/claim.go in claim mode). Judge reads the envelope. Admit compares the
// event time with stream time and with broker time, Get finds no row of the key, and Decide returns
// unique. judge/emit.go builds the output record with the key, value and timestamp that the producer
// wrote. It applies the policies for all other verdicts, too. judge/state.go puts the row of A-17 into
// the store, where it is open until the commit, and produces it to <app>-repartition-changelog/5, alone
// or packed with other rows (judge/pack.go). When the copy comes, Get finds this row, Decide returns
// duplicate, and the route's policy drops the copy or sends it to a topic of duplicates.
//
// Commit of the verdict (transaction.go, tasks.go, judge/checkpoint.go). transactions.end lets each task
// in the transaction write its checkpoint, its last row of the transaction: the next offset 901, the
// stream times, the key counts. It flushes and calls session.End. guard replaces the offsets of the
// session by those of the checkpoints (taskSet.setOffsets). EndTxn commits output, row, checkpoint and
// offset in one step. taskSet.applyCommitted then lets State.Commit apply the rows and the changelog
// position to the store, also in one step. The worker releases the rebalance lock and polls again.
//
// If anything fails before EndTxn, the transaction is aborted: the store discards the open rows, and the
// task restores from its changelog. If the outcome of EndTxn is unknown, the worker replaces its client
// and with it all its tasks, and their restores read from the changelog whether the transaction was
// committed.
//
// # Invariants
//
// Comments and tests cite these numbers. HAZARDS.md lists what threatens them, and the test for each
// hazard.
//
//  1. A store holds every committed row below its changelog position and nothing uncommitted. Put adds
//     open rows; Apply follows the commit, Discard an abort. Example: the transaction with A-17 aborts.
//     If its row were in the store, A-17 would be a duplicate of an event that nobody got.
//  2. Emitted records, changelog rows, checkpoints and offsets commit together or not at all. produced
//     stores the first produce error; end aborts on it. Example: the output topic accepts A-17, and the
//     changelog refuses its row. The session alone would commit the output, and the next owner of the
//     task would emit the copy.
//  3. Only End() == (true, nil) is a commit. After (false, nil) the tasks discard and restore, and the
//     router reads the group's offsets; an error replaces the client, and with it every task. Example:
//     the broker commits, and the connection breaks before its response. The restore finds the row of
//     A-17 in the changelog, and the copy is a duplicate.
//  4. A restore ends at the high watermark taken after the stable offset fetch, reads read_committed,
//     and counts by position. Example: the former owner has written the changelog offsets 100 to 102,
//     and its transaction is still open. A restore that ended at the last stable offset, 100, would
//     miss these rows when the transaction commits. The commit marker then has offset 103: no record
//     arrives there, so a restore that waited for a record at the end would never finish.
//  5. No transaction is without offsets: taskSet.setOffsets writes an offset for every task that has a
//     checkpoint in the transaction, and guard refuses an empty request. Example: a worker that has lost
//     its task writes only a chunk of a sweep. The group can fence this worker only by an offset commit.
//     Without one the transaction would commit, and the chunk would be in the changelog behind rows of the
//     new owner.
//  6. Input below the offset of the checkpoint was processed before: the task skips it, and does not count
//     it as a duplicate. Example: somebody resets the group's offset from 901 to 850. Judged again, A-17
//     at offset 900 would be a duplicate of itself.
//  7. A verdict is a function of the record and the task's state, and of what the topics accept.
//     Example: an event time is too far in the future by the broker time in the repartition topic. A
//     restart that judges the record an hour later reads the same broker time, and reaches the same
//     verdict.
//  8. No offset reset is silent: an offset out of range stops the partition. Example: retention has
//     deleted the records of orders.raw/3 below offset 60, and the group's offset is 42. The partition
//     waits until an operator accepts the loss of 18 offsets; the client does not continue at 60 by
//     itself.
//  9. Hash, partition counts, key rules and encodings are pinned in <app>-manifest; a process with other
//     ones refuses to start. Example: somebody adds partitions to the repartition topic. The copy of A-17
//     could get to another partition than the row of A-17.
//  10. A worker uses only tasks that it owns. restore.Stores leases a task's directory to one owner at a
//     time; taskSet.closeUnassigned closes other tasks. Example: task 5 moves to another worker of the
//     process. That worker's restore waits until the former owner has closed the store.
//
// # Other files
//
// membership.go has the assignment of a worker, client.go the callbacks of the client that change it.
// routestart.go decides at which offsets routed partitions start. unknown.go finds out whether a routing
// transaction was committed. bypass.go handles tasks whose store cannot be used. Workers publish their
// state on the board (board.go), which Processor.Ready and Processor.State read. All workers of a
// process share the values in shared.go, and have no reference to the Processor.
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
//	progress   observes how far inputs, outcomes and executors are
//	hanging    finds transactions that hang, and ends them
//	registry   the schemas of record values
//	move       moves the keys of an app to other partitions
//	switchover the phases of such a move, pure
//	front      submits events and waits; looks keys up, requests their erasure
//	deadletter lists dead letters, and sends them back to their inputs
//	ingress    the HTTP server
//
// CONTRIBUTING.md lists further packages of the module.
//
// # Claims
//
// In claim mode an executor reports the outcome of each event on a raw topic of outcomes. The router
// reads the partition of the event's task from the claim token, and sends the outcome there through the
// repartition topic. So the events and the outcomes of a key have one order.
//
// An executor may ask before it runs: an outcome "start" or "renew" is a question, and its answer is a
// record of the transaction that stores the grant. A started claim has no lease.
//
// A lease runs in broker time from the dispatch of the event to the append of the duplicate. So it does
// not include the time that records wait in a backlog. When a task restarts, its leases begin again,
// because the log may have outcomes that arrived while no task judged, and that the task reads only after
// a duplicate. The row of a key also holds the requests that wait for its outcome. The transaction that
// stores the outcome responds to them.
//
// # Verdicts by HTTP
//
// front.IngressClient submits an event for a sender that waits. It derives the key as the router would
// and writes the event to its task, in an envelope with the address of the request. Emitter.conclude
// produces the verdict of every such event to the client's partition of <app>-verdicts, in the transaction
// that decides the event. A duplicate that waits for an outcome adds its address to the claim. With the
// setting "answer: outcome" the first event does so, too. A sender that asks later sends a query: a record
// behind the event, which the task answers from the row and without changing it. The client stores nothing
// and decides nothing. If an event with a key got no verdict, the sender may send the event again: the
// task judges the second copy as a duplicate of the first, unless the route may forward events unchecked.
//
// # Ownership
//
// A worker owns one client, one static group member, one transactional id and one goroutine. A process
// runs ONCEBUS_WORKERS of them per stage. Only the goroutine of its worker uses a task, so records need
// no locks. While a task restores, the restore owns its store.
//
// The client runs with BlockRebalanceOnPoll. From a poll that returned something until AllowRebalance,
// no rebalance callback runs: the worker holds the rebalance lock. The worker and the callbacks use
// tasks only under this lock. The one exception is taskSet.inbox, which has a lock of its own: the
// group's goroutine adds the offsets of new partitions at any time.
//
// The balancer of the dedup stage prefers the process that has a task's rows (package assign). With
// ONCEBUS_STANDBY followedTasks (standbys.go) computes from the description of the group which tasks of
// other processes this process follows (restore.Standbys). Every process computes the same result, and
// no restore relies on it.
//
// # States of a task
//
//	created   -> restoring
//	restoring -> running, or bypassing
//	running   -> restoring, or waiting
//	bypassing -> restoring
//	waiting   -> restoring
//	any state -> closed
//
// A start, a rebalance, an abort, an unknown commit outcome and a damaged store all lead through
// restoring. A restore reads the changelog from the store's position to the high watermark, which takes
// few requests if nothing is missing. The restores of a process share these requests (kafka.Joint).
//
// A task bypasses while its store cannot be used and a route of its topic says "on_state_failure:
// fail_open". It starts at the last checkpoint in the changelog, forwards the events of such routes
// unchecked and skips all others. Its checkpoints leave the next offset where it was, and say for each
// namespace up to which offset its events were forwarded. After a restore the task starts at the next
// offset, stores the events that it forwarded, and judges the rest.
//
// A task waits, for example, before a record of a route that its process does not know, as in a rolling
// update that adds a route, or before a record whose schema was not read (taskwaits.go). It also waits
// with a checkpoint of a newer route set (setfollower.go), and once it is closed for a move
// (closing.go). When the reason is gone, the task restores and continues, here or in another process.
//
// # Erasures
//
// The command forget writes a request to the manifest topic. manifestWatch reads it in every process.
// The task that owns the partition frees the rows in its next transaction (erasures.go), even without
// input. It does so after all judging and before the sweep and the checkpoint. After the commit its
// process removes the request. A request therefore survives any crash, but may be applied twice. The
// second time does nothing: the request names the event and the attempt of each row, and finds no such
// row. A task without a store leaves the request pending. Earlier builds ignore the request.
//
// Requests are in the manifest topic because all tasks can be reached through it, and only operators and
// the app may write it. The inputs of tasks are no such place: anybody may write to a prepartitioned
// topic, and an app with only prepartitioned routes has no repartition topic.
//
// # Holds
//
// The command hold writes a row to the manifest topic. manifestWatch reads it in every process
// (hold.go). The routing stage, and the tasks of prepartitioned topics, then commit their transaction
// and pause, without leaving the group. In a last transaction they commit for each partition a held row
// together with its offset, which proves that the writer of the row still owned the partition. A later
// owner reads the manifest topic before it fetches, and finds the hold. So no process reads a partition
// with a held row further until the release. The ingress refuses events meanwhile.
//
// # Moves
//
// The command move (package move) puts another generation of partitions in force: a repartition topic
// with its changelog. Package switchover has the phases. While the input is held each old task writes a
// closed checkpoint and judges no more (closing.go). The act of the move then rewrites the manifest, and
// every process takes an edition with the new topics (edition.go). The old repartition topic becomes an
// input of the routing stage, from the offsets of the closed checkpoints on: the router forwards its
// records unchanged (judge/forward.go). A process that has not read of the act yet routes nothing
// (app.Holds.For). If a prepartitioned topic becomes routed, its tasks close as well, and the router reads
// the topic from their closed checkpoints on. A prepartitioned topic to which somebody added partitions is
// paused until such a move (worker.grownTopics).
//
// # Stream time
//
// The partitions of the inputs are read at different speeds. So a task of the repartition topic keeps two
// times for each source (wire.Sources): the highest time of the source's events, and the highest event
// time of all sources at the broker time up to which this source was read. The later of the two is the
// source's time, and the least of the sources' times is the stream time (judge/sources.go). For example,
// orders.raw/0 was read to 12:00 and orders.raw/3 to 11:30: stream time is 11:30, and no event of
// orders.raw/3 is late because of the other partition.
//
// The routing stage observes up to where it has read its inputs (progress/inputs.go). It writes this,
// with the highest event times, in a progress record to all partitions of the repartition topic. The
// transaction of that record comes after the input records about which it says something
// (Router.WriteProgress, app.Marks). A progress record also says when the routing stage counted the
// partitions. A count holds for a minute of the task's log (wire.Sources.AreCounted). So stream time does
// not pass a partition that was added and not counted yet.
// Without events, time advances between these records, by their broker time (wire.Sources.TakeSample). No
// clock of a process takes part in this: a dead, paused or slow router writes no progress record, and
// stream time waits.
//
// # Life of a changelog
//
// A full checkpoint has the stream times, sources and key counts of all namespaces. Most transactions
// write a partial checkpoint: what the transaction changed since the checkpoint before. Readers fold a
// full checkpoint and its partial ones (wire.Fold). The record key of a partial checkpoint has its number
// since the full one. Compaction therefore keeps the newest full checkpoint and every partial one after
// it. A new floor is stated by a full checkpoint, which lies above the floor: so the trimming below the
// floor keeps that checkpoint, too. The first checkpoint that a task writes is full. The code calls a full
// checkpoint "whole".
//
// Nothing is deleted from a changelog by age: a stop may be longer than any retention. Instead the
// checkpoint has fences. A fence is a changelog offset with the latest first seen time of each namespace
// id below the offset. When all of these times lie below their namespaces' horizons, no row below the
// offset can decide an event any more, and the next checkpoint states the offset as the floor. After the
// commit of that checkpoint the purger deletes the records below the floor. So rows leave a changelog only
// below a floor that the changelog itself states. A restore can therefore tell a trimmed changelog from
// one that lost rows (restore.decide).
//
// In most namespaces stream time does not advance without events, so their fences stay, and the floor
// cannot rise. When the changelog then becomes long, its task sweeps: it writes all live rows again, a
// chunk in each transaction, and the offset at which the sweep began becomes the floor. A task also sweeps
// if its changelog lost rows and it relies on its local store.
//
// # Non-obvious
//
// These look wrong or superfluous, and each prevents a defect.
//
//   - The offset commit is rewritten from the checkpoints (taskSet.setOffsets). The session would commit
//     what was polled. The two differ when a task skips records below its checkpoint.
//   - A transaction that only skipped records is committed. An abort would set the client back to the same
//     records for ever.
//   - resetSession ends a session outside of any transaction. After a revocation the session reports no
//     further one until End is called. Without the reset a worker can keep a task that another process
//     runs.
//   - rebalanceLock.endContext cancels End after endBlockedMax. Otherwise End and a callback deadlock:
//     End waits for onLost, and onLost for the rebalance lock.
//   - Records polled before resetSession are dropped: its End rewinds the client to the committed
//     offsets, so the client fetches them again.
//   - After a broker refused a record, the records of that topic are produced one at a time, for as many
//     input records as the aborted transaction had. franz-go fails all records of the partition with the
//     error of a batch, so only a record sent alone shows whether the broker refuses it. The worker
//     remembers refused records until their events are committed. A new client begins without them, and
//     gets the same refusals again.
//   - The store's position after a commit is the checkpoint row's offset plus two: the row itself and
//     the commit marker behind it. The checkpoint row is the last row of a task in a transaction, and a
//     partition keeps produce order.
//   - Arenas are reset after every transaction, not before the next one. franz-go may read a record
//     until its promise has been called. After Flush or an abort all promises have been.
//   - A worker without transactions releases its arenas. The last worker of a process to do so returns the
//     process's free memory to the system (idleMemory): the Go runtime would keep both.
//   - No RecordDeliveryTimeout is set: it would fail every record whose original timestamp is older than
//     the timeout.
//   - The repartition topic has LogAppendTime; the original timestamp is in the envelope. The broker time
//     decides whether an event is from the future. It is in the log, so a replay reads the same time.
//   - Stream time is by namespace, not by partition. Otherwise one route's backlog would make every
//     other route's events late.
//   - An event may be late by the stream time of its own source alone, although its row may still be in
//     the store because other sources are behind. So the verdict is the same at any speed of the other
//     sources.
//   - A progress record says up to which broker time a partition was read, and not that the partition is
//     read to its end. The first fact stays true, whichever worker writes it and however late; the second
//     one does not, because records are added.
//   - The client announces a batch that decompresses to too many bytes only once, and then fetches no
//     further. After an abort it may or may not fetch the batch again. So either the open transaction
//     skips the batch, or the worker replaces the client (oversize.go).
//   - After each transaction the router and the tasks drop what their key derivers hold of the last
//     record. Otherwise a worker without events would keep a whole batch in memory, and in the budget of
//     decompressed batches.
//   - While the disk fills the dedup stage pauses and the routing stage does not. The router writes no
//     local state, and its records may go to the tasks of other processes.
//   - Local state has no tombstones: rows expire by stream time, in the store and in every fold of the
//     changelog. So a restore may use a store of any age (T1), if the store's position is still in the
//     changelog.
//   - The floor needs no margin of broker time. The skew bounds how far one event can advance stream time,
//     and a store evicts rows by the same stream time as the floor.
//   - A limit on live keys has no policy that makes events wait: only new events advance stream time,
//     which frees keys, so a task that waits would wait for ever.
//   - A row is kept for two windows and the grace period. An event may be judged one window and the
//     grace period behind stream time, and its first event may be one window older. With a window of an
//     hour and a grace of ten minutes, that is 2 h 10 min.
package processor
