package processor

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"oncebus/processor/app"
	"oncebus/processor/kafka"
	"oncebus/state/failpoint"
)

// transact runs one transaction over the fetches and all that comes until
// the commit interval is over.
func (w *worker) transact(ctx context.Context, fetches kgo.Fetches) error {
	failpoint.Hit(failpoint.AfterPoll)
	w.memory.use()
	if err := w.session.Begin(); err != nil {
		// The polled records are fetched again only by a new client, which starts
		// at the group's offset.
		return fmt.Errorf("begin a transaction: %w", kafka.AsCommitUnknown(err))
	}
	return w.during(func() error { return w.fill(ctx, fetches) })
}

// during runs fn and resets the emitter. After errNotFlushed or a panic it does
// not: franz-go may still read the records, and a panic in the reset would
// replace the one that says why.
func (w *worker) during(fn func() error) error {
	err := fn()
	if !errors.Is(err, errNotFlushed) {
		w.emitter.Reset()
		w.produced.reset()
	}
	return err
}

// fill works off fetches until the commit interval is over, and ends the
// transaction.
func (w *worker) fill(ctx context.Context, fetches kgo.Fetches) error {
	deadline := time.Now().Add(w.p.cfg.CommitInterval)
	for records := 0; ; {
		if err := w.process(fetches); err != nil {
			return w.abort(err)
		}
		records += fetches.NumRecords()
		left := time.Until(deadline)
		if left <= 0 || records >= transactionRecordsMax || ctx.Err() != nil {
			return w.end()
		}
		fetches = w.poll(ctx, left)
	}
}

// process works off one poll, partition by partition. All of it: the session
// commits what was polled, not what was processed (A5).
func (w *worker) process(fetches kgo.Fetches) error {
	var failed error
	fetches.EachPartition(func(p kgo.FetchTopicPartition) {
		switch {
		case failed != nil:
		case p.Err != nil:
			if batch := w.oversized.batches[app.TaskID{Topic: p.Topic, Partition: p.Partition}]; batch != nil {
				failed = w.skipBatch(batch)
			} else {
				failed = partitionErr(&p)
			}
		case len(p.Records) == 0:
		case w.router != nil:
			w.router.Process(w.emitter, p.Records)
		default:
			failed = w.tasks.process(&p)
		}
	})
	return failed
}

// skipBatch takes a batch into the open transaction as one dead letter.
func (w *worker) skipBatch(batch *kgo.ErrDecompressTooLarge) error {
	if batch.Topic == w.p.rt.Topology.Repartition {
		return kafka.OperatorErrorf("%s/%d has a batch at offsets %d to %d that decompresses to more than %d bytes, and only oncebus may write this topic: raise ONCEBUS_MAX_DECOMPRESSED_BATCH_BYTES if it was lowered, and find out who else writes there",
			batch.Topic, batch.Partition, batch.Offset, batch.NextOffset-1, w.p.cfg.maxDecompressedBatchBytes())
	}
	if w.router != nil {
		w.emitter.DeadLetterBatch(batch, w.p.rt.Clock.Now(), w.p.cfg.maxDecompressedBatchBytes())
		return nil
	}
	t := w.tasks.tasks[app.TaskID{Topic: batch.Topic, Partition: batch.Partition}]
	if t == nil || t.state != running && t.state != bypassing {
		return fmt.Errorf("%w: a batch of %s/%d arrived for a task that is not running", kafka.ErrMustAbort, batch.Topic, batch.Partition)
	}
	t.SkipBatch(w.emitter, batch, w.p.cfg.maxDecompressedBatchBytes())
	return nil
}

// resumeAfterBatches reports the skipped batches of the committed transaction and
// lets the client fetch after them.
func (w *worker) resumeAfterBatches() {
	for id, batch := range w.oversized.batches {
		w.p.metrics.oversize.WithLabelValues(id.Topic).Inc()
		w.log.Warn("batch decompresses to too many bytes, skipped with a dead letter",
			"topic", id.Topic, "partition", id.Partition, "first_offset", batch.Offset, "last_offset", batch.NextOffset-1, "limit_bytes", w.p.cfg.maxDecompressedBatchBytes())
	}
	w.oversized.resume(w.client)
}

// fetchErr returns the first error of a poll without records.
func fetchErr(fetches kgo.Fetches) error {
	var failed error
	fetches.EachPartition(func(p kgo.FetchTopicPartition) {
		if failed == nil && p.Err != nil {
			failed = partitionErr(&p)
		}
	})
	return failed
}

// fencedErr returns the error that says that another process has joined the
// group under our name. The client would join again at once and fence the
// other in turn, so it has to be looked for before anything else.
func fencedErr(fetches kgo.Fetches) error {
	var fenced error
	fetches.EachError(func(_ string, _ int32, err error) {
		if errors.Is(err, kerr.FencedInstanceID) {
			fenced = err
		}
	})
	return fenced
}

// partitionErr judges an error that a poll returned. The end of the poll's
// own context is not an error. A position the log no longer has is never repaired by
// jumping (invariant 8): unread records were deleted.
func partitionErr(p *kgo.FetchTopicPartition) error {
	switch {
	case errors.Is(p.Err, context.Canceled), errors.Is(p.Err, context.DeadlineExceeded):
		return nil
	case errors.Is(p.Err, kerr.UnknownTopicID):
		return fmt.Errorf("%w: %s was deleted and recreated while it was read: %w", kafka.ErrTruncated, p.Topic, p.Err)
	case errors.Is(p.Err, kerr.OffsetOutOfRange):
		return fmt.Errorf("%w: the next record of %s/%d was deleted before it was read (retention too short, DeleteRecords, or the topic was recreated): "+
			"records are lost; to accept that, stop oncebus and reset the group's offset: %w", kafka.ErrTruncated, p.Topic, p.Partition, p.Err)
	}
	return fmt.Errorf("fetch %s/%d: %w", p.Topic, p.Partition, kafka.Denied(p.Err, "Read", kafka.ResourceTopic, p.Topic))
}

// end seals and commits the transaction.
func (w *worker) end() error {
	began := time.Now()
	if w.tasks != nil {
		w.tasks.seal(w.emitter)
	}
	failpoint.Hit(failpoint.BeforeFlush)
	flushCtx, flushed := context.WithTimeout(context.Background(), w.p.cfg.TransactionTimeout)
	defer flushed()
	if err := w.client.Flush(flushCtx); err != nil {
		w.unknown.Inc()
		return kafka.AsCommitUnknown(fmt.Errorf("%w within %v", errNotFlushed, w.p.cfg.TransactionTimeout))
	}
	failpoint.Hit(failpoint.AfterFlush)
	// The session would commit what could be produced (A4).
	if err := w.produced.err(); err != nil {
		w.p.limitsChanged(err)
		return w.abort(err)
	}
	ctx, done := w.endContext()
	committed, err := w.session.End(kgo.PreTxnCommitFnContext(ctx, w.guard), kgo.TryCommit)
	done()
	w.clearRebalanced()
	w.commitSeconds.Observe(time.Since(began).Seconds())
	if err != nil {
		// The client is replaced, and with it all tasks: a restore reads what
		// the broker did.
		w.unknown.Inc()
		return fmt.Errorf("end the transaction: %w", kafka.DeniedOffsets(kafka.AsCommitUnknown(err)))
	}
	if !committed {
		w.aborted.Inc()
		w.afterAbort()
		if w.router != nil {
			// The broker may have committed all the same: the client answers
			// like this to an UNKNOWN_SERVER_ERROR too (A6). A task finds out
			// from its changelog. The router has only the group's offsets, and
			// those that this client would go on from may be the old ones.
			return fmt.Errorf("%w: the transaction did not commit, as far as the client knows", kafka.ErrCommitUnknown)
		}
		return fmt.Errorf("%w: the transaction did not commit", kafka.ErrMustAbort)
	}
	failpoint.Hit(failpoint.AfterEnd)
	w.committed.Inc()
	w.p.judging.Publish(w.emitter.Counts)
	if w.tasks != nil {
		w.tasks.committed(w.client)
	}
	w.resumeAfterBatches()
	return nil
}

// endContext returns the context of an End that tries to commit. End waits for
// a heartbeat, or for the callback that says the partitions are lost; after
// the broker removed this member there is no heartbeat, and the callback waits for
// the gate, which we hold. So if a callback is still waiting endBlockedMax
// into End, the context is cancelled: the client then has to be replaced,
// which a lost member has to be in any case.
func (w *worker) endContext() (context.Context, func()) {
	ctx, cancel := context.WithCancel(context.Background())
	w.mu.Lock()
	defer w.mu.Unlock()
	w.endStuck = func() { time.AfterFunc(endBlockedMax, cancel) }
	if w.callbackBlocked {
		w.endStuck()
	}
	return ctx, func() {
		w.mu.Lock()
		w.endStuck = nil
		w.mu.Unlock()
		cancel()
	}
}

// onCallbackBlocked is called when a rebalance callback begins to wait for
// the gate.
func (w *worker) onCallbackBlocked() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.callbackBlocked = true
	if w.endStuck != nil {
		w.endStuck()
	}
}

// openGate lets rebalance callbacks run until the next poll returns.
func (w *worker) openGate() {
	w.mu.Lock()
	w.callbackBlocked = false
	w.mu.Unlock()
	w.session.AllowRebalance()
}

// abort ends the transaction for a reason of our own, which it returns.
func (w *worker) abort(reason error) error {
	err := w.endAborting()
	w.clearRebalanced()
	if err != nil {
		w.unknown.Inc()
		return fmt.Errorf("abort the transaction: %w (because of: %w)", kafka.AsCommitUnknown(err), reason)
	}
	w.aborted.Inc()
	w.afterAbort()
	return reason
}

// endAborting ends the session's transaction, or its failed state, without a
// commit. It rewinds to the committed offsets.
func (w *worker) endAborting() error {
	ctx, cancel := context.WithTimeout(context.Background(), w.p.cfg.TransactionTimeout)
	defer cancel()
	_, err := w.session.End(ctx, kgo.TryAbort)
	if err != nil && ctx.Err() != nil {
		return fmt.Errorf("%w: %w", errNotFlushed, err)
	}
	return err
}

func (w *worker) afterAbort() {
	if w.tasks != nil {
		w.tasks.retain(w.assigned())
		w.tasks.discarded(w.client)
	}
}

func (w *worker) clearRebalanced() {
	w.mu.Lock()
	w.rebalanced = false
	w.mu.Unlock()
}

// errNotFlushed marks a client that could not deliver what it was given before
// the broker aborts the transaction on its own. The client is replaced; it may
// still read its records. Without this limit a partition that takes nothing
// would hold up all others of the worker.
var errNotFlushed = errors.New("the brokers have not taken all records of the transaction")

// guard is the last look at an offset commit. A commit without member or
// generation is one that a classic group does not fence (B9).
func (w *worker) guard(req *kmsg.TxnOffsetCommitRequest) error {
	if req.MemberID == "" || req.Generation < 0 {
		return fmt.Errorf("%w: not a member of the group", kafka.ErrMustAbort)
	}
	w.oversized.offsets(req, w.p.rt.Topology.Topics)
	if w.tasks != nil {
		w.tasks.offsets(req)
	}
	if len(req.Topics) == 0 {
		return fmt.Errorf("%w: a transaction without offsets", kafka.ErrMustAbort)
	}
	failpoint.Hit(failpoint.BeforeOffsets)
	return nil
}
