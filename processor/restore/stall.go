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

// StallAfter is how long a restore may read nothing before it says what it
// waits for. A transaction that nobody ends is aborted by the broker within
// its timeout and a few seconds; what is open longer hangs, and only an
// operator can end it (KIP-664).
const StallAfter = time.Minute

// A stallWatch says why a restore gets no further. It changes nothing: to read
// on without the rows behind an open transaction would lose them.
type stallWatch struct {
	r        *Restore
	position atomic.Int64 // of the changelog, as far as it was read
	end      atomic.Int64 // of the restore; 0 until known
	cancel   context.CancelFunc
	done     chan struct{}
}

func newStallWatch(ctx context.Context, r *Restore) *stallWatch {
	ctx, cancel := context.WithCancel(ctx)
	w := &stallWatch{r: r, cancel: cancel, done: make(chan struct{})}
	go w.run(ctx)
	return w
}

// stop ends the watch, and what it said.
func (w *stallWatch) stop() {
	w.cancel()
	<-w.done
}

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
		if w.r.src.Stores.Disk.paused() != nil {
			continue // which says so itself
		}
		why := w.diagnose(ctx)
		if ctx.Err() != nil {
			return
		}
		w.r.src.Metrics.stalled.WithLabelValues(labels...).Set(1)
		w.r.src.Explain(w.r.id, why)
		w.r.log.Error("a restore stands still; it goes on by itself when the cause is gone, and loses nothing",
			"changelog", w.r.changelog, "partition", w.r.id.Partition, "position", last, "end", w.end.Load(),
			"stalled_for", time.Since(began).Round(time.Second).String(), "reason", why)
	}
}

// diagnose names what keeps the changelog from being read.
func (w *stallWatch) diagnose(ctx context.Context) string {
	if w.end.Load() == 0 {
		return "the store was not opened, or the changelog partition has no leader; the log has the attempts"
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
		return fmt.Sprintf("who writes to the changelog cannot be found out: %v", err)
	}
	var open []kadm.DescribedProducer
	var ids []int64
	for _, d := range described.SortedProducers() {
		if d.CurrentTxnStartOffset >= 0 {
			open, ids = append(open, d), append(ids, d.ProducerID)
		}
	}
	if len(open) == 0 {
		return "no transaction is open on the changelog partition: its leader does not answer, or is behind"
	}
	names := w.transactionalIDs(ctx, ids)
	var parts []string
	for _, d := range open {
		parts = append(parts, fmt.Sprintf("an open transaction of producer %d (epoch %d, %s) from offset %d on, last written to at %s",
			d.ProducerID, d.ProducerEpoch, names[d.ProducerID], d.CurrentTxnStartOffset, time.UnixMilli(d.LastTimestamp).UTC().Format(time.RFC3339)))
	}
	return strings.Join(parts, "; ") + "; if it outlives its timeout it hangs: find and abort it with kafka-transactions.sh find-hanging and abort"
}

// transactionalIDs returns what is known of producers by their ids.
func (w *stallWatch) transactionalIDs(ctx context.Context, producers []int64) map[int64]string {
	names := map[int64]string{}
	listed, err := w.r.src.Admin.ListTransactions(ctx, producers, nil)
	for _, id := range producers {
		names[id] = "transactional id not known"
		if err != nil {
			names[id] = fmt.Sprintf("transactional id not known: %v", err)
		}
	}
	for _, l := range listed {
		names[l.ProducerID] = fmt.Sprintf("transactional id %s, state %s", l.TxnID, l.State)
	}
	return names
}
