package processor

import (
	"cmp"
	"context"
	"fmt"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"oncebus/processor/app"
	"oncebus/processor/kafka"
	"oncebus/processor/security"
)

// options are those of a worker's client.
func (w *worker) options() []kgo.Opt {
	cfg, rt := &w.cfg, w.rt
	topics := rt.Topology.Routed
	if w.stage == stageDedup {
		topics = rt.Topology.TaskTopics()
	}
	return append(append([]kgo.Opt(nil), w.baseOptions...),
		kgo.WithLogger(oversizeLogger{security.NewClientLogger(w.shared.log), w.txns.oversized.announce}),
		// Begins with the process's own, so that brokers' logs and quotas
		// tell workers apart and still show what belongs together.
		kgo.ClientID(w.name),
		kgo.ConsumerGroup(app.GroupName(cfg.AppID, w.stage)),
		kgo.InstanceID(w.name),
		kgo.TransactionalID(w.name),
		kgo.ConsumeTopics(topics...),
		kgo.Balancers(watchedBalancer{kgo.CooperativeStickyBalancer(), w.member.assign}),
		kgo.BlockRebalanceOnPoll(),
		kgo.FetchIsolationLevel(kgo.ReadCommitted()),
		// A broker serves one fetch of a client at a time: partitions resumed after a
		// restore wait until the one in progress returns, which with nothing
		// but idle partitions in it takes this long.
		kgo.FetchMaxWait(kafka.FetchMaxWait),
		// No offset reset is silent (invariant 8): a start without a commit
		// is resolved in adjustOffsets, anything else out of range is loud.
		kgo.ConsumeStartOffset(kgo.NewOffset().AtStart()),
		kgo.ConsumeResetOffset(kgo.NoResetOffset()),
		kgo.MaxDecompressBatchBytes(cfg.maxDecompressedBatchBytes()),
		kgo.SessionTimeout(cfg.SessionTimeout),
		kgo.HeartbeatInterval(min(cfg.SessionTimeout/4, 3*time.Second)),
		kgo.RebalanceTimeout(max(30*time.Second, 2*cfg.TransactionTimeout)),
		kgo.AdjustFetchOffsetsFn(w.adjustOffsets),
		kgo.OnPartitionsCallbackBlocked(func(context.Context, *kgo.Client) { w.lock.callbackBlocked() }),
		kgo.OnPartitionsRevoked(func(_ context.Context, _ *kgo.Client, gone map[string][]int32) { w.onGone(gone) }),
		kgo.OnPartitionsLost(func(_ context.Context, _ *kgo.Client, gone map[string][]int32) { w.onLost(gone) }),

		kgo.TransactionTimeout(cfg.TransactionTimeout),
		// No RecordDeliveryTimeout: franz-go counts it from the record's
		// timestamp, and ours are the originals'. A record that cannot be
		// delivered waits until the broker is back and refuses it, because
		// the transaction has timed out by then.
		kgo.RecordPartitioner(app.NewPartitioner(rt.InternalTopics())),
		kgo.ProducerBatchMaxBytesFn(rt.BatchBytes),
		kgo.MaxBufferedRecords(4*transactionRecordsMax),
		kgo.MaxBufferedBytes(256<<20),
		kgo.ProducerLinger(lingerFor(cfg.CommitInterval)),
		kgo.UnknownTopicRetries(-1),
		kgo.WithHooks(failpointHooks()...),
	)
}

// lingerFor lets batches fill for a part of the commit interval: the records
// wait for the commit anyway, and Flush ends the wait. Few large batches cost
// broker and client less than many small ones: with 25 ms instead of 5 an event
// cost 4.7 us of both in place of 5.8, with 50 ms no less (benchmarks/throughput,
// keyed, one worker, 2026-11-21). They wait for markerTime at least: a broker that
// is still writing the markers of the transaction before holds back the first
// batch of the next one for 20 ms (add.partitions.to.txn.retry.backoff.ms).
func lingerFor(commitInterval time.Duration) time.Duration {
	return min(max(commitInterval/4, markerTime), commitInterval, 25*time.Millisecond)
}

// markerTime is what a broker takes, about, to write a transaction's markers. At
// a commit interval of 5 ms and 1,000 requests a second it halves the wait for a
// verdict: p50 16 ms in place of 33 (benchmarks/ingress, 2026-11-21).
const markerTime = 4 * time.Millisecond

// watchedBalancer is a balancer that tells what the group gave this member.
// franz-go's callbacks speak of differences, and its transaction session keeps
// some of them back (A8); the answer to a sync is the whole of it.
type watchedBalancer struct {
	kgo.GroupBalancer
	assigned func(map[string][]int32)
}

// ParseSyncAssignment passes the member's new assignment on.
func (b watchedBalancer) ParseSyncAssignment(assignment []byte) (map[string][]int32, error) {
	partitions, err := b.GroupBalancer.ParseSyncAssignment(assignment)
	if err == nil {
		b.assigned(partitions)
	}
	return partitions, err
}

// onLost runs when the broker removed this member.
func (w *worker) onLost(gone map[string][]int32) {
	w.member.end()
	w.onGone(gone)
}

// onGone runs before the group hands partitions on.
func (w *worker) onGone(gone map[string][]int32) {
	w.member.partitionsGone()
	for topic, ps := range gone {
		for _, p := range ps {
			w.txns.oversized.forget(app.TaskID{Topic: topic, Partition: p})
		}
	}
	select {
	case <-w.ready:
	default:
		return // before the first assignment there is nothing to give up
	}
	if w.txns.tasks != nil {
		w.txns.tasks.revoked(gone)
	}
	w.wake()
}

// adjustOffsets is called with the offsets of newly assigned partitions,
// after the group's stable offset fetch and before the first record is
// fetched. Tasks are paused here until they are restored (A9). An offset the
// group does not have is resolved to a number (A10): "the start" or "the end"
// must not mean something else after the first abort.
func (w *worker) adjustOffsets(ctx context.Context, offsets map[string]map[int32]kgo.Offset) (map[string]map[int32]kgo.Offset, error) {
	select {
	case <-w.ready:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	uncommitted, err := w.resolveStarts(ctx, offsets)
	if err != nil {
		w.log.Warn("offsets of newly assigned partitions cannot be resolved, trying again", "error", err)
		return nil, err
	}
	for topic, partitions := range offsets {
		for partition := range partitions {
			w.member.place(app.TaskID{Topic: topic, Partition: partition})
		}
	}
	if w.txns.tasks != nil {
		var inbox []assignment
		pause := map[string][]int32{}
		for topic, partitions := range offsets {
			for partition, offset := range partitions {
				id := app.TaskID{Topic: topic, Partition: partition}
				inbox = append(inbox, assignment{id, offset.EpochOffset().Offset, !uncommitted[id]})
				pause[topic] = append(pause[topic], partition)
			}
		}
		w.txns.client.PauseFetchPartitions(pause)
		w.txns.tasks.assigned(inbox)
	}
	w.log.Info("partitions assigned", "offsets", describeOffsets(offsets))
	w.wake()
	return offsets, nil
}

// resolveStarts finds the start of every partition the group has no offset
// for: the one the manifest pinned for a topic that came in with
// ONCEBUS_START=latest, else the partition's beginning. A partition added to a
// topic in use starts at its beginning in any case, or the events before its
// discovery would be lost. It returns which partitions these were.
func (w *worker) resolveStarts(ctx context.Context, offsets map[string]map[int32]kgo.Offset) (uncommitted map[app.TaskID]bool, err error) {
	uncommitted = map[app.TaskID]bool{}
	for topic, partitions := range offsets {
		var listed kadm.ListedOffsets
		for partition, offset := range partitions {
			if offset.EpochOffset().Offset >= 0 {
				continue
			}
			if listed == nil {
				if listed, err = w.admin.ListStartOffsets(ctx, topic); err != nil {
					return nil, fmt.Errorf("list the start of %s: %w", topic, err)
				}
			}
			o, ok := listed.Lookup(topic, partition)
			if !ok || o.Err != nil {
				return nil, fmt.Errorf("list the start of %s/%d: %w", topic, partition, cmp.Or(o.Err, error(kerr.UnknownTopicOrPartition)))
			}
			partitions[partition] = kgo.NewOffset().At(max(o.Offset, w.rt.Manifest.Start(topic, partition)))
			uncommitted[app.TaskID{Topic: topic, Partition: partition}] = true
		}
	}
	return uncommitted, nil
}

func describeOffsets(offsets map[string]map[int32]kgo.Offset) string {
	plain := map[string]map[int32]int64{}
	for topic, partitions := range offsets {
		plain[topic] = map[int32]int64{}
		for partition, o := range partitions {
			plain[topic][partition] = o.EpochOffset().Offset
		}
	}
	return fmt.Sprint(plain)
}
