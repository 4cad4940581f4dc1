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

// An ending is the last transaction of a worker, from its end until each of its partitions is
// known to be closed. The worker judges events meanwhile, and keeps back what they write: if
// the coordinator dropped a marker, the first marker of the next transaction would decide about
// the records of both (C4).
type ending struct {
	done   chan struct{} // closed once err is set
	err    error         // why it is not known to be closed
	cancel context.CancelFunc
}

// isOver reports whether the transaction is closed, or cannot be.
func (e *ending) isOver() bool {
	select {
	case <-e.done:
		return true
	default:
		return false
	}
}

// await returns nil once the transaction is closed. Any error needs a new client, which closes it
// before it begins another one.
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

// end stops to look.
func (e *ending) end() {
	if e != nil {
		e.cancel()
		<-e.done
	}
}

// closer returns what closes the transactions of a worker.
func (w *worker) closer() *hanging.Closer {
	return &hanging.Closer{Client: w.source.Client, Admin: w.admin, Options: w.baseOptions, Log: w.log, Waits: w.waits}
}

// waits publishes what the worker waits for before it may begin a transaction.
func (w *worker) waits(reason string) {
	w.member.setWaits(reason)
	if reason != "" {
		w.log.Warn("no transaction begins before the last one is known to be closed", "reason", reason)
	}
}

// closeLast closes what the last transaction under the worker's transactional id left open, also that
// of a process before. The registration of the id makes the coordinator forget how it ended. It
// returns false with the error that an operator has to resolve, or once ctx is done.
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

// noteForeign notes offsets that stay pending of other producers. Only their partitions wait, see hangWatch.
func (w *worker) noteForeign(offsets map[string][]int32) {
	w.foreign = offsets
	if len(offsets) > 0 {
		w.log.Warn("offsets of the group stay pending of another producer, going on with all other partitions", "offsets", fmt.Sprint(offsets))
	}
}

// register registers the transactional id, which aborts an open transaction of the process before.
// Else readers would wait for its timeout. The marker of that abort may be dropped, too.
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

// anyLast returns all that a transaction of the worker may have written to.
func (w *worker) anyLast(ctx context.Context) (*hanging.Last, error) {
	t := w.rt.Topology
	partitions, err := app.PartitionsOf(ctx, w.admin, t.Written()...)
	if err != nil {
		return nil, err
	}
	return w.last(partitions, t.Numbers(w.member.subscribed())), nil
}

// last returns a transaction of the worker that wrote to partitions and committed offsets.
func (w *worker) last(partitions kadm.TopicsSet, offsets map[string][]int32) *hanging.Last {
	return &hanging.Last{ID: w.txnID, Partitions: partitions, TakesOver: true, Group: app.GroupName(w.cfg.AppID, w.stage), Offsets: offsets}
}

// follow looks until the last transaction is closed. The records of the next one wait for that.
func (w *worker) follow(last *hanging.Last) {
	ctx, cancel := context.WithCancel(context.Background())
	e := &ending{done: make(chan struct{}), cancel: cancel}
	closer, producer, denied := w.closer(), w.txns.producer, w.txns.denied
	go func() {
		e.err = closer.AwaitClosed(ctx, last, producer, denied)
		close(e.done)
		if e.err != nil && ctx.Err() == nil {
			w.wake() // mustReplaceClient finds it
		}
	}()
	w.txns.produced.last = e
}

// endStop ends a clean stop: with the marks of the routing stage, and when the last transaction is
// closed, so that no reader waits for the next start. A partition without a leader keeps it for
// no longer than markMax.
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

// followEnd follows the end of a transaction that has written something.
func (x *transactions) followEnd() {
	written, offsets := x.produced.written.take(), x.offsets
	x.offsets = nil
	if len(written) > 0 || len(offsets) > 0 {
		x.follow(written, offsets)
	}
}

// noteProducer notes the producer id of the open transaction. Another one may follow after its
// end, when its epochs are used up.
func (x *transactions) noteProducer(ctx context.Context) {
	if id, _, err := x.client.ProducerID(ctx); err == nil {
		x.producer = id
	}
}

// noteOffsets notes which offsets a transaction commits.
func (x *transactions) noteOffsets(req *kmsg.TxnOffsetCommitRequest) {
	x.offsets = map[string][]int32{}
	for i := range req.Topics {
		for n := range req.Topics[i].Partitions {
			x.offsets[req.Topics[i].Topic] = append(x.offsets[req.Topics[i].Topic], req.Topics[i].Partitions[n].Partition)
		}
	}
}

// written are the partitions to which the records of a transaction went, by topic.
type written map[string][]bool

// add notes a partition.
func (w written) add(topic string, partition int32) {
	noted := w[topic]
	if int(partition) < len(noted) {
		noted[partition] = true // most are noted
		return
	}
	grown := make([]bool, partition+1)
	copy(grown, noted)
	grown[partition] = true
	w[topic] = grown
}

// take returns the partitions and forgets them.
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
