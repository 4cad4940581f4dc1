package restore

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"

	"oncebus/processor/kafka"
)

// StallAfter is how long a restore may read nothing before it logs the reason. The broker aborts an
// abandoned transaction a few seconds after its timeout. A transaction that stays open for longer
// hangs, and only an operator can end it (KIP-664).
const StallAfter = time.Minute

// stallWatch reports why a restore makes no progress, and does nothing else. If the restore ended without the
// rows of an open transaction that holds it up, the task would lack these rows once the transaction commits.
type stallWatch struct {
	r        *Restore
	position atomic.Int64 // changelog offset to read next
	end      atomic.Int64 // changelog offset at which the restore ends; 0 until known
	deciding atomic.Bool  // the restore waits for an operator, and reports that itself
	cancel   context.CancelFunc
	done     chan struct{}
}

func newStallWatch(ctx context.Context, r *Restore) *stallWatch {
	ctx, cancel := context.WithCancel(ctx)
	w := &stallWatch{r: r, cancel: cancel, done: make(chan struct{})}
	go w.run(ctx)
	return w
}

// stop ends the watch and removes its report.
func (w *stallWatch) stop() {
	w.cancel()
	<-w.done
}

// run looks every StallAfter whether the restore has read something. If not, it reports why: in the log, in
// /readyz and in a metric.
func (w *stallWatch) run(ctx context.Context) {
	defer close(w.done)
	labels := []string{w.r.id.Topic, strconv.Itoa(int(w.r.id.Partition))}
	defer w.r.src.Metrics.stalled.DeleteLabelValues(labels...)
	defer w.r.src.Explain(w.r.id, "")
	began := time.Now()
	for last := w.position.Load(); ; {
		if kafka.Pause(ctx, w.r.src.StallAfter) != nil {
			return
		}
		if position := w.position.Load(); position != last {
			last, began = position, time.Now()
			w.r.src.Metrics.stalled.DeleteLabelValues(labels...)
			w.r.src.Explain(w.r.id, "")
			continue
		}
		if w.r.src.Stores.Disk.paused() != nil || w.deciding.Load() {
			continue // DiskGuard and awaitDecision report these
		}
		why := w.diagnose(ctx)
		if ctx.Err() != nil {
			return
		}
		w.r.src.Metrics.stalled.WithLabelValues(labels...).Set(1)
		w.r.src.Explain(w.r.id, why)
		w.r.log.Error("restore stalled",
			"changelog", w.r.changelog, "partition", w.r.id.Partition, "position", last, "end", w.end.Load(),
			"stalled_for", time.Since(began).Round(time.Second).String(), "reason", why)
	}
}

// diagnose returns why the restore reads nothing.
func (w *stallWatch) diagnose(ctx context.Context) string {
	if w.end.Load() == 0 {
		return "the store does not open, or the changelog partition has no leader; see the log for the attempts"
	}
	ctx, cancel := context.WithTimeout(ctx, w.r.src.StallAfter)
	defer cancel()
	topics := kadm.TopicsSet{}
	topics.Add(w.r.changelog, w.r.id.Partition)
	described, err := w.r.src.Admin.DescribeProducers(ctx, topics)
	if err == nil {
		described.EachPartition(func(d kadm.DescribedProducersPartition) { err = errors.Join(err, d.Err) })
	}
	if err != nil {
		return fmt.Sprintf("describe the producers of changelog %s: %v", w.r.changelog, err)
	}
	var open []kadm.DescribedProducer
	var ids []int64
	for _, d := range described.SortedProducers() {
		if d.CurrentTxnStartOffset >= 0 {
			open, ids = append(open, d), append(ids, d.ProducerID)
		}
	}
	if len(open) == 0 {
		return "no transaction is open on the changelog partition: its leader does not respond, or lags behind"
	}
	names := w.transactionalIDs(ctx, ids)
	var parts []string
	for _, d := range open {
		parts = append(parts, fmt.Sprintf("an open transaction of producer %d (epoch %d, %s) from offset %d, last written at %s",
			d.ProducerID, d.ProducerEpoch, names[d.ProducerID], d.CurrentTxnStartOffset, time.UnixMilli(d.LastTimestamp).UTC().Format(time.RFC3339)))
	}
	return strings.Join(parts, "; ") + "; if it outlives its timeout it hangs: find and abort it with kafka-transactions.sh find-hanging and abort"
}

// transactionalIDs returns, by producer id, a text with the producer's transactional id and its state.
func (w *stallWatch) transactionalIDs(ctx context.Context, producers []int64) map[int64]string {
	names := map[int64]string{}
	listed, err := w.r.src.Admin.ListTransactions(ctx, producers, nil)
	for _, id := range producers {
		names[id] = "transactional id unknown"
		if err != nil {
			names[id] = fmt.Sprintf("transactional id unknown: %v", err)
		}
	}
	for _, l := range listed {
		names[l.ProducerID] = fmt.Sprintf("transactional id %s, state %s", l.TxnID, l.State)
	}
	return names
}
