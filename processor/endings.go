package processor

import (
	"context"
	"fmt"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kmsg"

	"oncebus/processor/app"
	"oncebus/processor/hanging"
	"oncebus/processor/kafka"
)

// An ending watches the last transaction of a worker from its end until its control record is known to be in
// each of its partitions: the transaction is then closed. Meanwhile the worker already judges the events of the
// next transaction, but keeps the records of that transaction back. The reason is that the coordinator may have
// dropped a control record of the last transaction. In that partition the first control record of the next
// transaction would then decide about the records of both transactions (C4).
type ending struct {
	done   chan struct{} // closed once err is set
	err    error         // why the transaction is not known to be closed; nil if it is
	cancel context.CancelFunc
}

// isOver reports whether the watch has ended: the transaction is closed, or this client cannot close it.
func (e *ending) isOver() bool {
	select {
	case <-e.done:
		return true
	default:
		return false
	}
}

// await returns nil once the transaction is closed. Any error requires a new client, which closes the
// transaction before it begins another one.
func (e *ending) await(ctx context.Context) error {
	select {
	case <-e.done:
		if e.err == nil {
			return nil
		}
		return kafka.AsCommitUnknown(e.err)
	case <-ctx.Done():
		return kafka.AsCommitUnknown(fmt.Errorf("the last transaction is not known to be closed: %w", ctx.Err()))
	}
}

// end stops the watch, and returns when the goroutine of the watch has ended.
func (e *ending) end() {
	if e != nil {
		e.cancel()
		<-e.done
	}
}

// closer returns a Closer for the transactions of this worker.
func (w *worker) closer() *hanging.Closer {
	return &hanging.Closer{Client: w.source.Client, Admin: w.admin, Options: w.baseOptions, Log: w.log, Waits: w.waits}
}

// waits publishes what the worker waits for before it may begin a transaction; "" for nothing.
func (w *worker) waits(reason string) {
	w.member.setWaits(reason)
	if reason != "" {
		w.log.Warn("no transaction begins before the last one is known to be closed", "reason", reason)
	}
}

// closeLast closes the partitions in which the last transaction under the worker's transactional id is still
// open, even if a former process ran that transaction. This must be done before the id is registered, because
// the registration makes the coordinator forget how that transaction ended. closeLast returns false with the
// error that an operator has to resolve, or false without an error once ctx is done.
func (w *worker) closeLast(ctx context.Context) (bool, error) {
	for ctx.Err() == nil {
		last, err := w.anyLast(ctx)
		if err == nil {
			err = w.closer().Close(ctx, last)
		}
		if err == nil {
			w.noteForeign(last.Foreign)
		}
		if err == nil || kafka.Classify(err) == kafka.Stop {
			return err == nil, err
		}
		if ctx.Err() == nil {
			w.log.Warn("closing the last transaction failed, retrying", "error", err)
			_ = kafka.Pause(ctx, backoffMin) // the loop checks ctx
		}
	}
	return false, nil
}

// noteForeign notes the partitions whose group offsets are pending in transactions of other producers. Only
// these partitions wait until the offsets are stable, see hangWatch.
func (w *worker) noteForeign(offsets map[string][]int32) {
	w.foreign = offsets
	if len(offsets) > 0 {
		w.log.Warn("offsets of the group stay pending of another producer, going on with all other partitions", "offsets", fmt.Sprint(offsets))
	}
}

// register registers the transactional id. The coordinator then aborts an open transaction of a former process;
// without the registration readers would wait until the timeout of that transaction. The coordinator may also
// drop a control record of that abort, so register watches the abort as an ending.
func (w *worker) register(ctx context.Context) error {
	id, _, err := w.txns.client.ProducerID(ctx)
	if err != nil {
		return fmt.Errorf("register transactional id %s: %w", w.txnID, err)
	}
	w.txns.producer = id
	last, err := w.anyLast(ctx)
	if err == nil {
		last.Offsets = kafka.Without(last.Offsets, w.foreign)
		w.follow(last)
	}
	return err
}

// anyLast returns the last transaction of the worker for the case that it is not known where the transaction
// wrote. It therefore names all partitions to which a transaction of this worker may have written.
func (w *worker) anyLast(ctx context.Context) (*hanging.Last, error) {
	t := w.rt.Topology
	partitions, err := app.PartitionsOf(ctx, w.admin, t.Written()...)
	if err != nil {
		return nil, err
	}
	return w.last(partitions, t.Numbers(w.member.subscribed())), nil
}

// last returns the last transaction of the worker, which wrote to partitions and committed offsets.
func (w *worker) last(partitions kadm.TopicsSet, offsets map[string][]int32) *hanging.Last {
	return &hanging.Last{ID: w.txnID, Partitions: partitions, TakesOver: true, Group: app.GroupName(w.cfg.AppID, w.stage), Offsets: offsets}
}

// follow watches the last transaction until it is closed. Until then the records of the next transaction are
// kept back.
func (w *worker) follow(last *hanging.Last) {
	ctx, cancel := context.WithCancel(context.Background())
	e := &ending{done: make(chan struct{}), cancel: cancel}
	closer, producer, denied := w.closer(), w.txns.producer, w.txns.denied
	go func() {
		e.err = closer.AwaitClosed(ctx, last, producer, denied)
		close(e.done)
		if e.err != nil && ctx.Err() == nil {
			w.wake() // mustReplaceClient finds the error
		}
	}()
	w.txns.produced.last = e
}

// endStop does the last steps of a clean stop. It writes the marks of the routing stage, and waits until the
// last transaction is closed, so that readers need not wait until the next start closes it. endStop waits for
// markMax at most: a partition without a leader, for example, cannot be closed.
func (w *worker) endStop(ctx context.Context) {
	if w.txns.router != nil {
		w.markStop(ctx)
	}
	last := w.txns.produced.last
	if last == nil {
		return
	}
	limited, cancel := context.WithTimeout(context.Background(), w.cfg.markMax())
	defer cancel()
	if err := last.await(limited); err != nil {
		w.log.Warn("stopped before the last transaction was known to be closed, the next start closes it", "error", err)
	}
}

// followEnd watches a transaction that has ended, if the transaction has written something.
func (x *transactions) followEnd() {
	written, offsets := x.produced.written.take(), x.offsets
	x.offsets = nil
	if len(written) > 0 || len(offsets) > 0 {
		x.follow(written, offsets)
	}
}

// noteProducer notes the producer id of the open transaction. It does so before the end of the transaction,
// because the client gets another producer id afterwards if the epochs of this one are used up.
func (x *transactions) noteProducer(ctx context.Context) {
	if id, _, err := x.client.ProducerID(ctx); err == nil {
		x.producer = id
	}
}

// noteOffsets notes the partitions whose offsets a transaction commits.
func (x *transactions) noteOffsets(req *kmsg.TxnOffsetCommitRequest) {
	x.offsets = map[string][]int32{}
	for i := range req.Topics {
		for n := range req.Topics[i].Partitions {
			x.offsets[req.Topics[i].Topic] = append(x.offsets[req.Topics[i].Topic], req.Topics[i].Partitions[n].Partition)
		}
	}
}

// written holds the partitions to which the records of a transaction went: by topic, a bool for each
// partition.
type written map[string][]bool

// add notes a partition.
func (w written) add(topic string, partition int32) {
	noted := w[topic]
	if int(partition) < len(noted) {
		noted[partition] = true // the partition was noted before, which is the common case
		return
	}
	grown := make([]bool, partition+1)
	copy(grown, noted)
	grown[partition] = true
	w[topic] = grown
}

// take returns the partitions, and forgets them.
func (w written) take() kadm.TopicsSet {
	all := kadm.TopicsSet{}
	for topic, noted := range w {
		for p, is := range noted {
			if is {
				all.Add(topic, int32(p))
			}
		}
		clear(noted)
	}
	return all
}
