package processor

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"log/slog"
	"slices"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"oncebus/processor/app"
	"oncebus/processor/judge"
	"oncebus/processor/kafka"
	"oncebus/processor/progress"
	"oncebus/processor/wire"
	"oncebus/state/failpoint"
)

// transactions runs the transactions of one worker's client, one at a time. In the routing stage a
// judge.Router processes the records, in the dedup stage the tasks of the taskSet do. A transaction is
// begun by run or runOne, and ended by end (commit) or abort.
type transactions struct {
	*shared
	*edition

	log    *slog.Logger
	series stageSeries
	member *membership
	lock   *rebalanceLock
	poll   func(ctx context.Context, limit time.Duration, records int) kgo.Fetches
	bound  *transactionBound
	// targets are the partitions to which the worker's progress records go.
	targets *progressTargets

	session  *kgo.GroupTransactSession
	client   *kgo.Client
	emitter  *judge.Emitter
	produced *produced
	router   *judge.Router      // of the routing stage, else nil
	marks    *app.Marks         // of the routing stage, else nil
	starts   *routeStarts       // of the routing stage, else nil
	observer *progress.Observer // of the routing stage, else nil
	pacer    *pacer             // of the routing stage, else nil
	order    *timeOrder         // of the routing stage, else nil
	// progressed reports that the open transaction contains progress records.
	progressed bool
	// announced reports that this client has already committed a transaction with progress records.
	announced bool
	tasks     *taskSet // of the dedup stage, else nil
	schemas   *schemaWaits
	oversized *oversized // batches at which the client stopped
	corrupt   *corruptReads
	stopping  bool // the open transaction is the last one before a clean stop
	// producer is the producer id of the open transaction, or of the last one if none is open. offsets are the
	// partitions whose offsets the transaction commits. denied are the topics of which this user may not see
	// whether the transaction is closed in them.
	producer int64
	offsets  map[string][]int32
	denied   map[string]bool
	follow   func(kadm.TopicsSet, map[string][]int32) // watches until the ended transaction is closed in these partitions
	// attempted holds the offsets that the last End tried to commit; it is empty if End sent no commit request.
	// After an End with an uncertain outcome the router compares them with the group's offsets. Only the routing
	// stage uses attempted.
	attempted map[app.TaskID]int64
	began     time.Time // when the open transaction began, or the last one if none is open
	// due is the time at which the open transaction ends. It goes on longer while the client has more records.
	due time.Time
	// dueAwaited is used in place of due if a request by HTTP waits for the transaction.
	dueAwaited time.Time
	records    int           // input records of the open transaction
	polled     []kgo.Fetches // the polls that returned these records
	// limits is a copy of the topics' size limits from the time when this client was made. An operator may
	// change the limits later, and this client still makes batches of the old size. isolation is active while
	// the worker searches for the record that a broker refuses. refusals counts the refused records that the
	// emitter knows.
	limits    map[string]app.TopicLimits
	isolation isolation
	refusals  int
	// refusedLine and abortedLine bound how often two lines are logged: that a topic refused records, and that a
	// transaction was aborted. Without the bound each record that a topic refuses could cause both lines.
	refusedLine, abortedLine app.SampledLine
}

// close ends the client: it stops watching the last transaction, leaves the group within leaveMax, and
// closes the tasks or drops the queued input.
func (x *transactions) close(cancelClient context.CancelFunc) {
	x.produced.last.end()
	x.logOmitted(true)
	hurry := time.AfterFunc(leaveMax, cancelClient)
	x.session.CloseAllowingRebalance()
	hurry.Stop()
	cancelClient()
	x.schemas.close()
	x.corrupt.close(x.board)
	if x.tasks != nil {
		x.tasks.close()
	} else {
		x.order.close()
	}
}

// run runs one transaction: it processes fetches and all further polls until the transaction is due, and then
// ends the transaction.
func (x *transactions) run(ctx context.Context, fetches kgo.Fetches) error {
	failpoint.Hit(failpoint.AfterPoll)
	x.began = time.Now()
	if err := x.session.Begin(); err != nil {
		// The records are already polled, and this client does not fetch them again. A new client does, because
		// it starts at the group's offsets.
		return fmt.Errorf("begin a transaction: %w", kafka.AsCommitUnknown(err))
	}
	x.produced.begin(x.isolation.alone(), x.cfg.TransactionTimeout)
	err := x.during(func() error { return x.fill(ctx, fetches) })
	x.adjustBound(time.Since(x.began), err)
	return err
}

// adjustBound changes the bound on the records of the next transaction. took is how long this transaction took.
// err is nil if it was committed.
func (x *transactions) adjustBound(took time.Duration, err error) {
	if err == nil {
		x.bound.committed(took)
	} else if x.bound.failed(x.records, took) {
		x.series.timedOut.Inc()
		x.log.Warn("transaction timed out, the next one has fewer records: if it has 1 record already, raise ONCEBUS_TRANSACTION_TIMEOUT",
			"records", x.records, "next_records", x.bound.records, "took", took.Round(time.Millisecond).String(), "timeout", x.cfg.TransactionTimeout.String(), "reason", err)
	}
}

// runLast runs the last transaction of the routing stage before a clean stop. The transaction has the
// records of fetches, and a mark of every partition that needs one: the next start then finds its offsets
// in the marks even if the group's offsets are gone.
func (x *transactions) runLast(fetches kgo.Fetches) error {
	if fetches.NumRecords() == 0 && !x.marks.Behind() {
		return nil
	}
	x.stopping = true
	return x.runOne(fetches)
}

// runOne runs a transaction with the records of fetches, without polling further.
func (x *transactions) runOne(fetches kgo.Fetches) error {
	x.began = time.Now()
	if err := x.session.Begin(); err != nil {
		return fmt.Errorf("begin a transaction: %w", kafka.AsCommitUnknown(err))
	}
	x.records = fetches.NumRecords()
	x.produced.begin(x.isolation.alone(), x.cfg.TransactionTimeout)
	x.polled = append(x.polled, fetches)
	return x.during(func() error {
		if err := x.process(fetches); err != nil {
			return x.abort(err)
		}
		return x.end()
	})
}

// during runs fn, which fills and ends a transaction, and then drops the memory of the transaction's records.
// There are two exceptions. After errNotFlushed it keeps the memory, because franz-go may still read the
// records. After a panic it keeps the memory, too, because a second panic while it drops the memory would hide
// the first one.
func (x *transactions) during(fn func() error) error {
	defer x.budget.Use()()
	err := fn()
	if !errors.Is(err, errNotFlushed) {
		x.emitter.Reset()
		x.produced.reset()
		switch {
		case x.router != nil:
			x.router.Keys.Release()
		case x.tasks != nil:
			x.tasks.judging.Release()
		}
		x.recycle()
	}
	x.polled = nil
	return err
}

// recycle gives the memory of all polled records back to the client. Nothing refers to a record after its
// transaction: a task copies whatever it keeps of a record.
func (x *transactions) recycle() {
	for _, fetches := range x.polled {
		fetches.EachRecord((*kgo.Record).Recycle)
	}
}

// fill processes polls until the transaction is due or has recordsMax records, and then ends it.
//
// The next transaction is due one commit interval after the end of this one began (setDue). An event that comes
// after a pause therefore waits for no interval. Records that the client fetched during a commit wait less than
// a commit interval for the next one. A transaction that is due goes on while the client has more records, but
// only until it is a commit interval old. So with a backlog transactions are as long as the interval even if
// their commits take that long, too.
//
// A request by HTTP does not wait for the interval: its transaction ends as soon as the client has no more
// records. If there are many records, transactions are again an interval apart, see awaitedShare.
func (x *transactions) fill(ctx context.Context, fetches kgo.Fetches) error {
	latest := time.Now().Add(x.cfg.CommitInterval)
	wait := time.Duration(-1) // how long the poll that returned fetches could wait; -1 for the first poll
	for x.records = 0; ; {
		n := fetches.NumRecords()
		x.polled = append(x.polled, fetches)
		x.records += n
		if err := x.process(fetches); err != nil {
			return x.abort(err)
		}
		now := time.Now()
		if wait == 0 && n == 0 || !now.Before(latest) || x.records >= x.recordsMax() || ctx.Err() != nil {
			return x.end()
		}
		wait = x.waitForMore(now, latest)
		if wait == 0 && x.pacer != nil && x.pacer.full() {
			return x.end() // a poll without a wait would not let the pacer wait for room
		}
		fetches = x.poll(ctx, wait, x.recordsMax()-x.records)
	}
}

// process processes all records of one poll, partition by partition. It must not leave out any record, because
// the session commits the offsets of what was polled, and not of what was processed (A5).
func (x *transactions) process(fetches kgo.Fetches) error {
	if lost := lossIn(fetches); lost != nil {
		return x.partitionErr(lost)
	}
	var failed error
	fetches.EachPartition(func(p kgo.FetchTopicPartition) {
		if failed == nil {
			failed = x.processPartition(&p)
		}
	})
	return failed
}

// processPartition processes the records or the error that one poll returned for a partition.
func (x *transactions) processPartition(p *kgo.FetchTopicPartition) error {
	id := app.TaskID{Topic: p.Topic, Partition: p.Partition}
	switch {
	case p.Err != nil:
		if batch := x.oversized.batches[id]; batch != nil {
			return x.skipBatch(batch)
		}
		return x.partitionErr(p)
	case len(p.Records) == 0:
		return nil
	case x.refuses(id):
		return fmt.Errorf("%w: records of %s/%d arrived, which is held", kafka.ErrMustAbort, p.Topic, p.Partition)
	}
	var err error
	if x.router != nil {
		if !x.marks.Admits(id, p.Records[0].Offset) {
			return fmt.Errorf("%w: records of %v arrived that are not those after its offset", kafka.ErrMustAbort, id)
		}
		err = x.router.Process(x.emitter, p.Records)
		if unreadable, ok := errors.AsType[*wire.UnreadableError](err); ok {
			return x.stopUnreadable(id, unreadable)
		}
		x.pacer.polled(p)
		x.marks.Routed(id, p.Records[len(p.Records)-1], x.router.Fronts)
	} else {
		err = x.tasks.process(x.client, p)
	}
	pending, ok := errors.AsType[*judge.PendingSchemaError](err)
	if !ok {
		return err
	}
	x.schemas.await(x.client, id, pending)
	if x.tasks != nil {
		return nil // the task's checkpoint, and so the committed offset, stays before the record
	}
	return err
}

// end commits the open transaction. It writes the last records of the transaction (checkpoints of the tasks;
// marks and progress records of the router), flushes, and calls session.End. It changes the stores only if End
// returns (true, nil) (invariant 3).
func (x *transactions) end() error {
	began := time.Now()
	hold := x.holds.InForce()
	if x.tasks != nil {
		x.tasks.joinHold(x.produced.sendBatched, hold)
		x.tasks.joinClose()
		x.tasks.joinOwing(hold)
		if err := x.tasks.writeCheckpoints(x.emitter); err != nil {
			return x.abort(err)
		}
	} else {
		if hold != nil {
			x.marks.WriteHeld(x.produced.sendBatched, hold)
		}
		x.writeProgress()
		x.marks.Write(x.produced.sendBatched, began, x.stopping)
	}
	failpoint.Hit(failpoint.BeforeFlush)
	if err := x.flush(); err != nil {
		return err
	}
	failpoint.Hit(failpoint.AfterFlush)
	// Without this check the session would commit the transaction without the record that failed (A4).
	if err := x.produced.err(); err != nil {
		return x.abort(x.refused(err))
	}
	clear(x.attempted)
	ctx, done := x.lock.endContext()
	x.noteProducer(ctx)
	committed, err := x.session.End(kgo.PreTxnCommitFnContext(ctx, x.guard), kgo.TryCommit)
	done()
	defer x.dropRefusalsIf(x.member.takeRebalanced())
	x.series.commitSeconds.Observe(time.Since(began).Seconds())
	if err != nil {
		// The worker replaces the client and all tasks. Their restores read from the changelog whether the
		// broker committed.
		x.series.unknown.Inc()
		return fmt.Errorf("end the transaction: %w", kafka.DeniedOffsets(kafka.AsCommitUnknown(err)))
	}
	x.followEnd()
	if !committed {
		x.series.aborted.Inc()
		x.afterAbort()
		if x.router != nil && !x.offsetsUnmoved() {
			return fmt.Errorf("%w: the transaction may have committed", kafka.ErrCommitUnknown)
		}
		return fmt.Errorf("%w: the transaction did not commit", kafka.ErrMustAbort)
	}
	failpoint.Hit(failpoint.AfterEnd)
	x.series.committed.Inc()
	x.setDue(began, time.Now())
	x.judging.Publish(x.rt, x.emitter.Counts)
	x.judging.PublishDelays(x.rt, &x.emitter.Delays)
	if x.tracer != nil {
		x.tracer.Publish(x.rt, x.emitter.Traced, time.Now())
	}
	x.isolation.committed(x.records)
	x.respectedRefusals()
	if x.tasks != nil {
		x.tasks.applyCommitted(x.client)
	} else {
		x.marks.End(true, began)
		x.announced = x.announced || x.progressed
		acknowledged, _ := x.produced.watchedPartitions()
		x.targets.acknowledged(acknowledged)
	}
	x.resumeAfterBatches()
	return nil
}

// flush waits until the brokers have acknowledged all records of the open transaction. Before that it gives the
// client the records that were kept back until the last transaction is closed.
func (x *transactions) flush() error {
	limit := x.cfg.TransactionTimeout
	if x.stopping {
		limit = x.cfg.markMax()
	}
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	if err := x.produced.giveKept(ctx); err != nil {
		return x.abort(err)
	}
	if err := x.client.Flush(ctx); err != nil {
		x.progressFailed()
		x.series.unknown.Inc()
		return kafka.AsCommitUnknown(fmt.Errorf("%w within %v", errNotFlushed, x.cfg.TransactionTimeout))
	}
	return nil
}

// writeProgress writes what the observer has observed since the last progress record, if there is anything. If
// the transaction aborts, nothing is lost, because the next observation contains it again.
func (x *transactions) writeProgress() {
	p := x.observer.Take()
	if x.progressed = p != nil; x.progressed {
		p.Inputs = x.marks.AddFronts(p.Inputs)
		x.produced.watch(func() { x.router.WriteProgress(x.emitter, p, x.targets.choose(time.Now())) })
	}
}

// progressFailed notes the partitions that have not acknowledged their progress record, so that the transaction
// could not end.
func (x *transactions) progressFailed() {
	sent, unacked := x.produced.watchedPartitions()
	x.targets.failed(sent, unacked, time.Now())
}

// abort aborts the open transaction and returns reason, so that a caller can return the result of abort. If
// the abort itself fails, the error asks for a new client.
func (x *transactions) abort(reason error) error {
	err := x.endAborting()
	x.dropRefusalsIf(x.member.takeRebalanced())
	if err != nil {
		x.series.unknown.Inc()
		return fmt.Errorf("abort the transaction: %w (because of: %w)", kafka.AsCommitUnknown(err), reason)
	}
	x.series.aborted.Inc()
	x.afterAbort()
	return reason
}

// endAborting aborts the session's transaction. If the session failed outside of a transaction, endAborting
// resets the session. In both cases the session sets the client back to the committed offsets.
func (x *transactions) endAborting() error {
	ctx, cancel := context.WithTimeout(context.Background(), x.cfg.TransactionTimeout)
	defer cancel()
	x.noteProducer(ctx)
	_, err := x.session.End(ctx, kgo.TryAbort)
	switch {
	case err == nil:
		x.followEnd()
	case ctx.Err() != nil:
		return fmt.Errorf("%w: %w", errNotFlushed, err)
	}
	return err
}

// afterAbort drops the work of a transaction that was not committed: the tasks in the transaction restore, and
// the router goes back to its marks.
func (x *transactions) afterAbort() {
	x.dropUnassigned()
	if x.tasks != nil {
		x.tasks.discardOpen(x.client)
	} else {
		x.marks.End(false, time.Time{})
		x.dropWaiting()
	}
}

// dropUnassigned closes the tasks, or forgets the inputs, of partitions that the group has given to other
// members without a callback (A8). Otherwise this worker would still act for these partitions: a later commit or
// an operator's decision would set back the offset that the new owner has committed.
func (x *transactions) dropUnassigned() {
	if x.tasks != nil {
		x.schemas.drop(x.tasks.closeUnassigned(x.member.assigned))
		return
	}
	gone := unassigned(append(x.marks.IDs(), x.starts.ids()...), x.member.assigned)
	x.schemas.drop(gone)
	x.dropInputs(gone)
}

// unassigned returns the partitions of has that are not in the worker's assignment any more. It asks for the
// assignment only after the caller has made the list. The group may add a partition at any time, and an
// assignment from before would lack a partition that is in the list.
func unassigned(has []app.TaskID, assigned func() map[app.TaskID]bool) map[string][]int32 {
	assignment := assigned()
	return byTopic(slices.Values(slices.DeleteFunc(has, func(id app.TaskID) bool { return assignment[id] })))
}

// byTopic groups partitions by topic, as the client's methods take them.
func byTopic(ids iter.Seq[app.TaskID]) map[string][]int32 {
	all := map[string][]int32{}
	for id := range ids {
		all[id.Topic] = append(all[id.Topic], id.Partition)
	}
	return all
}

// dropInputs forgets inputs that a worker of the routing stage no longer owns.
func (x *transactions) dropInputs(gone map[string][]int32) {
	x.starts.drop(gone)
	x.pacer.drop(gone)
	x.order.drop(gone)
	x.marks.Revoke(gone)
}

// errNotFlushed says that a client did not deliver its records within the transaction timeout. The worker
// replaces the client, and keeps the records, which the old client may still read. Without this limit a
// partition that accepts no records would block all other partitions of the worker.
var errNotFlushed = errors.New("the brokers have not acknowledged all records of the transaction")

// setMetadata adds to each offset of a commit the metadata by which a later start sees that the app
// committed it.
func setMetadata(req *kmsg.TxnOffsetCommitRequest, instance string) {
	for _, topic := range req.Topics {
		for n := range topic.Partitions {
			p := &topic.Partitions[n]
			p.Metadata = kmsg.StringPtr(app.OffsetMetadata(instance, app.Commit{}, p.Offset))
		}
	}
}

// guard checks and completes an offset commit before the client sends it. It refuses three kinds of commits:
// without member id or generation, because a classic group does not fence such a commit (B9); with another
// member id than the one that got the partitions (A8); and without offsets, because the group fences a former
// owner only by its offset commit (invariant 5, A7).
func (x *transactions) guard(req *kmsg.TxnOffsetCommitRequest) error {
	if req.MemberID == "" || req.Generation < 0 || req.MemberID != x.member.gotAs() {
		return fmt.Errorf("%w: not the member of the group that got the partitions", kafka.ErrMustAbort)
	}
	x.oversized.addOffsets(req, x.rt.Topology.Topics)
	if x.tasks != nil {
		x.tasks.setOffsets(req)
	} else {
		x.addRouterOffsets(req)
	}
	if len(req.Topics) == 0 {
		return fmt.Errorf("%w: the transaction has no offsets", kafka.ErrMustAbort)
	}
	x.noteOffsets(req)
	failpoint.Hit(failpoint.BeforeOffsets)
	return nil
}

// addRouterOffsets completes the offset commit of the routing stage. It removes the offsets of records that the
// client has polled and the router has not routed, and adds the offsets of marks. attempted gets the offsets
// before those of progress records are added: the offsets of progress records repeat committed offsets, so they
// show nothing about the outcome of End.
func (x *transactions) addRouterOffsets(req *kmsg.TxnOffsetCommitRequest) {
	x.marks.LimitOffsets(req)
	x.marks.AddOffsets(req, false)
	for _, topic := range req.Topics {
		for _, p := range topic.Partitions {
			x.attempted[app.TaskID{Topic: topic.Topic, Partition: p.Partition}] = p.Offset
		}
	}
	if x.progressed {
		x.marks.AddOffsets(req, true)
	}
	setMetadata(req, x.cfg.InstanceID)
}
