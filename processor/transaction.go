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

// transactions runs the transactions of one client, one at a time. A router processes the
// records of the routing stage, tasks those of the dedup stage.
type transactions struct {
	*shared
	*edition

	log    *slog.Logger
	series stageSeries
	member *membership
	lock   *rebalanceLock
	poll   func(ctx context.Context, limit time.Duration, records int) kgo.Fetches
	bound  *transactionBound
	// targets are those of the worker's progress records.
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
	// progressed reports that the open transaction has progress records.
	progressed bool
	// announced reports that a committed transaction of this client had some.
	announced bool
	tasks     *taskSet // of the dedup stage, else nil
	schemas   *schemaWaits
	oversized *oversized // batches at which the client stopped
	corrupt   *corruptReads
	stopping  bool // the open transaction is the last one before a clean stop
	// producer is the producer id of the open transaction, or of the last one. offsets are those
	// that the transaction commits, denied the topics that nothing shows whether it is closed in.
	producer int64
	offsets  map[string][]int32
	denied   map[string]bool
	follow   func(kadm.TopicsSet, map[string][]int32) // follows the end of a transaction
	// attempted has the offsets of the commit request of the last End; none if End sent
	// no request. Only the router uses it.
	attempted map[app.TaskID]int64
	began     time.Time // when the open transaction began, or the last one
	// due is when the open transaction ends unless the client has more records.
	due time.Time
	// dueAwaited is the same of a transaction for which a request by HTTP waits.
	dueAwaited time.Time
	records    int           // input records of the open transaction
	polled     []kgo.Fetches // those with these records
	// limits are those with which the client began to make batches; isolation finds the
	// records that topics refuse, refusals is how many the emitter has.
	limits    map[string]app.TopicLimits
	isolation isolation
	refusals  int
	// refusedLine and abortedLine are lines that each record of a topic may cause that
	// refuses records.
	refusedLine, abortedLine app.SampledLine
}

// close leaves the group and closes the tasks.
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

// run runs one transaction over fetches and all further polls until it is due.
func (x *transactions) run(ctx context.Context, fetches kgo.Fetches) error {
	failpoint.Hit(failpoint.AfterPoll)
	x.began = time.Now()
	if err := x.session.Begin(); err != nil {
		// Only a new client fetches the polled records again: it starts at the
		// group's offset.
		return fmt.Errorf("begin a transaction: %w", kafka.AsCommitUnknown(err))
	}
	x.produced.begin(x.isolation.alone(), x.cfg.TransactionTimeout)
	err := x.during(func() error { return x.fill(ctx, fetches) })
	x.adjustBound(time.Since(x.began), err)
	return err
}

// adjustBound changes the bound of the next transaction after one that took a time and
// ended with an error, nil for a commit.
func (x *transactions) adjustBound(took time.Duration, err error) {
	if err == nil {
		x.bound.committed(took)
	} else if x.bound.failed(x.records, took) {
		x.series.timedOut.Inc()
		x.log.Warn("transaction timed out, the next one has fewer records: if it has 1 record already, raise ONCEBUS_TRANSACTION_TIMEOUT",
			"records", x.records, "next_records", x.bound.records, "took", took.Round(time.Millisecond).String(), "timeout", x.cfg.TransactionTimeout.String(), "reason", err)
	}
}

// runLast runs the last transaction of the routing stage before a clean stop. It has the
// records of fetches, and marks that make the group's offsets dispensable.
func (x *transactions) runLast(fetches kgo.Fetches) error {
	if fetches.NumRecords() == 0 && !x.marks.Behind() {
		return nil
	}
	x.stopping = true
	return x.runOne(fetches)
}

// runOne runs a transaction with the records of fetches alone.
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

// during runs fn and drops the records of the transaction. After errNotFlushed or a panic it does
// not: franz-go may still read the records, and a panic in the reset would replace the
// first panic.
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

// recycle gives the memory of all polled records back to the client. Nothing refers to a
// record after its transaction: what a task keeps of one, it has copied.
func (x *transactions) recycle() {
	for _, fetches := range x.polled {
		fetches.EachRecord((*kgo.Record).Recycle)
	}
}

// fill processes polls until the transaction is due or the bound is reached, and ends it.
//
// Transactions end a commit interval apart. So an event after a pause waits for nothing,
// and what the client fetched during a commit waits less for the next one. From then on a
// transaction goes on while the client has more records, until it is a commit interval old:
// with a backlog, transactions are as long as the interval even if their commits are too.
//
// A request by HTTP does not wait for the interval: its transaction ends when the client has
// no more records. With many records the interval rules, see awaitedShare.
func (x *transactions) fill(ctx context.Context, fetches kgo.Fetches) error {
	latest := time.Now().Add(x.cfg.CommitInterval)
	wait := time.Duration(-1) // of the poll that returned fetches
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
			return x.end() // a poll that waits for nothing would not wait for room
		}
		fetches = x.poll(ctx, wait, x.recordsMax()-x.records)
	}
}

// process processes one poll, partition by partition, and all of it: the session commits
// what was polled, not what was processed (A5).
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

// processPartition processes what one poll has of a partition.
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
		return nil // the checkpoint is before the record
	}
	return err
}

// end writes the checkpoints and commits the transaction.
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
	// The session would commit the records that were produced (A4).
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
		// The worker replaces the client and all tasks. Their restores read whether
		// the broker committed.
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

// flush waits until the brokers have the records of the open transaction. They get none of them
// before the last transaction is closed.
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

// writeProgress writes what was observed since the last progress record. If the
// transaction aborts, the next observation has it too.
func (x *transactions) writeProgress() {
	p := x.observer.Take()
	if x.progressed = p != nil; x.progressed {
		p.Inputs = x.marks.AddFronts(p.Inputs)
		x.produced.watch(func() { x.router.WriteProgress(x.emitter, p, x.targets.choose(time.Now())) })
	}
}

// progressFailed notes which partitions keep the transaction from its end.
func (x *transactions) progressFailed() {
	sent, unacked := x.produced.watchedPartitions()
	x.targets.failed(sent, unacked, time.Now())
}

// abort aborts the transaction and returns the reason.
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

// endAborting aborts the session's transaction, or resets a session that failed outside
// of one. It rewinds the client to the committed offsets.
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

func (x *transactions) afterAbort() {
	x.dropUnassigned()
	if x.tasks != nil {
		x.tasks.discardOpen(x.client)
	} else {
		x.marks.End(false, time.Time{})
		x.dropWaiting()
	}
}

// dropUnassigned closes the tasks and forgets the inputs that the group has given to others without
// a word (A8). Else a later commit, or a decision, would set the offset of such an input back.
func (x *transactions) dropUnassigned() {
	if x.tasks != nil {
		x.schemas.drop(x.tasks.closeUnassigned(x.member.assigned))
		return
	}
	gone := unassigned(append(x.marks.IDs(), x.starts.ids()...), x.member.assigned)
	x.schemas.drop(gone)
	x.dropInputs(gone)
}

// unassigned returns those of the partitions that a worker has which its group has given to others.
// It asks for the assignment after the list was made, as the group may add partitions at any time.
func unassigned(has []app.TaskID, assigned func() map[app.TaskID]bool) map[string][]int32 {
	assignment := assigned()
	return byTopic(slices.Values(slices.DeleteFunc(has, func(id app.TaskID) bool { return assignment[id] })))
}

// byTopic returns partitions as the client takes them.
func byTopic(ids iter.Seq[app.TaskID]) map[string][]int32 {
	all := map[string][]int32{}
	for id := range ids {
		all[id.Topic] = append(all[id.Topic], id.Partition)
	}
	return all
}

// dropInputs forgets inputs that a routing worker no longer has.
func (x *transactions) dropInputs(gone map[string][]int32) {
	x.starts.drop(gone)
	x.pacer.drop(gone)
	x.order.drop(gone)
	x.marks.Revoke(gone)
}

// errNotFlushed marks a client that did not deliver its records within the transaction
// timeout. The worker replaces it; it may still read its records. Without this limit a
// partition that accepts no records would block all others of the worker.
var errNotFlushed = errors.New("the brokers have not acknowledged all records of the transaction")

// setMetadata marks the offsets of a commit as those of the app.
func setMetadata(req *kmsg.TxnOffsetCommitRequest, instance string) {
	for _, topic := range req.Topics {
		for n := range topic.Partitions {
			p := &topic.Partitions[n]
			p.Metadata = kmsg.StringPtr(app.OffsetMetadata(instance, app.Commit{}, p.Offset))
		}
	}
}

// guard checks an offset commit before the client sends it. A classic group does not
// fence a commit without member or generation (B9).
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

// addRouterOffsets completes the offset commit of the routing stage. Offsets that a
// progress record adds have not moved, so they show nothing of the outcome of End.
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
