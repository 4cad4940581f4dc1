package processor

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
	"github.com/twmb/franz-go/pkg/kversion"

	"oncebus/processor/app"
	"oncebus/processor/assign"
	"oncebus/processor/kafka"
	"oncebus/processor/security"
	"oncebus/processor/wire"
)

// options returns the options of a worker's client, for a cluster with this version of the transaction
// protocol (transaction.version).
func (w *worker) options(transactionVersion int16) []kgo.Opt {
	cfg, rt := &w.cfg, w.rt
	batchMax := cfg.BatchBytesMax()
	if w.stage == app.StageDedup && rt.Topology.Repartition != "" {
		batchMax += app.EnvelopeBytesMax
	}
	options := append(append([]kgo.Opt{kafka.WithPrecompressed()}, w.baseOptions...), w.budget.ClientOptions(batchMax)...)
	fetchWait := kafka.FetchMaxWait
	if w.stage == app.StageRoute {
		fetchWait = routeFetchWait
		options = append(options, kgo.FetchMaxPartitionBytes(liveFetchMin)) // until pacer.boundFetches
	}
	return append(options,
		kgo.WithLogger(oversizeLogger{security.NewClientLogger(w.shared.log), w.txns.oversized.announce}),
		// The name begins with the client id of the process, so that brokers' logs and quotas show the
		// worker and its process.
		kgo.ClientID(w.name),
		kgo.ConsumerGroup(app.GroupName(cfg.AppID, w.stage)),
		kgo.InstanceID(w.name),
		kgo.TransactionalID(w.txnID),
		kgo.ConsumeTopics(w.member.subscribed()...),
		kgo.Balancers(w.balancers()...),
		kgo.BlockRebalanceOnPoll(),
		kgo.FetchIsolationLevel(kgo.ReadCommitted()),
		// A broker serves one fetch of a client at a time. So a partition that is resumed after a restore, or by
		// a pacer, waits until the fetch in progress ends. That takes fetchWait if all partitions of that fetch
		// are idle.
		kgo.FetchMaxWait(fetchWait),
		// No offset reset is silent (invariant 8). adjustOffsets chooses the start of a partition for which the
		// group has no committed offset. Any other offset that is out of range stops the partition.
		kgo.ConsumeStartOffset(kgo.NewOffset().AtStart()),
		kgo.ConsumeResetOffset(kgo.NoResetOffset()),
		kgo.SessionTimeout(cfg.SessionTimeout),
		kgo.HeartbeatInterval(min(cfg.SessionTimeout/4, 3*time.Second)),
		kgo.RebalanceTimeout(max(30*time.Second, 2*cfg.TransactionTimeout)),
		kgo.AdjustFetchOffsetsFn(w.adjustOffsets),
		kgo.OnPartitionsCallbackBlocked(func(context.Context, *kgo.Client) { w.lock.callbackBlocked() }),
		kgo.OnPartitionsRevoked(func(_ context.Context, _ *kgo.Client, gone map[string][]int32) { w.onGone(gone) }),
		kgo.OnPartitionsLost(func(_ context.Context, _ *kgo.Client, gone map[string][]int32) { w.onLost(gone) }),

		kafka.TransactionTimeout(cfg.TransactionTimeout),
		// There is no RecordDeliveryTimeout: franz-go counts it from the record's timestamp, which is the
		// timestamp of the original record and may be days old. A record that cannot be delivered waits for
		// the broker. Once the transaction has timed out, the broker refuses the record.
		kgo.RecordPartitioner(app.NewPartitioner(rt.InternalTopics())),
		kgo.ProducerBatchMaxBytesFn(rt.BatchBytes),
		kgo.MaxBufferedRecords(4*transactionRecordsMax),
		kgo.MaxBufferedBytes(256<<20),
		kgo.ProducerLinger(lingerFor(cfg.CommitInterval)),
		kgo.UnknownTopicRetries(-1),
		kgo.WithHooks(append(failpointHooks(), lossHook{w})...),
		w.counted[w.stage],
		w.endOption(transactionVersion),
	)
}

// endOption makes late requests of a transaction harmless (C2). With the newer transaction protocol every
// transaction has a producer epoch of its own, so the broker refuses a late request of an earlier transaction,
// and the client may retry its requests. But the cluster may have been downgraded since the client asked for its
// version, and brokers of the older version could accept a late request. Therefore this client sends no EndTxn
// of an older version: End fails instead, and the worker connects again.
//
// Without an epoch for each transaction the client sends each EndTxn and each TxnOffsetCommit only once. A
// request that got no response may reach the broker late. If the client sent the request again and began the
// next transaction, the first copy would end that transaction, or set its offsets back. So End fails instead,
// and the worker's next client registers the transactional id. The registration raises the epoch, which fences
// the late request.
func (w *worker) endOption(transactionVersion int16) kgo.Opt {
	if transactionVersion >= app.EpochPerTransaction {
		var oldest kversion.Versions
		oldest.SetMaxKeyVersion(kmsg.EndTxn.Int16(), endTxnWithEpoch)
		return kgo.MinVersions(&oldest)
	}
	return kgo.RetryTimeoutFn(func(key int16) time.Duration {
		switch kmsg.Key(key) {
		case kmsg.EndTxn, kmsg.TxnOffsetCommit:
			return time.Nanosecond // shorter than any backoff; 0 has no limit
		case kmsg.JoinGroup, kmsg.SyncGroup, kmsg.Heartbeat:
			return w.cfg.SessionTimeout // as franz-go's default
		}
		return requestRetryMax
	})
}

const (
	// endTxnWithEpoch is the first version of the EndTxn request after which the broker raises the
	// producer's epoch.
	endTxnWithEpoch = 5
	// requestRetryMax is how long the client retries a request: franz-go's default.
	requestRetryMax = 30 * time.Second
)

// lingerFor returns the producer linger, which is a fraction of the commit interval. The linger delays no event,
// because records wait for the commit anyway, and Flush ends the linger. A long linger collects few large
// batches, which cost broker and client less than many small ones. But changelog rows are packed, so beyond 5 ms
// a linger only keeps full batches from the broker. The linger is at least markerTime, unless the commit
// interval is shorter: while a broker still writes the control records of the last transaction, it delays the
// first batch of the next transaction by 20 ms (add.partitions.to.txn.retry.backoff.ms).
func lingerFor(commitInterval time.Duration) time.Duration {
	return min(max(commitInterval/4, markerTime), commitInterval, 5*time.Millisecond)
}

// markerTime is about how long a broker takes to write a transaction's control records. At a commit interval of
// 5 ms and 1,000 requests a second a linger of this length halves the time to a verdict: p50 is 16 ms with this
// linger, and 33 ms without a linger (benchmarks/ingress, 2026-11-21). The flush at the end of a transaction
// sends its records without a linger. So setDue makes the next transaction due no earlier than markerTime after
// the end of the last one. For that delay, p99 was 11 to 14 ms with 3 ms and 13 to 16 ms with 4 ms. With 2 ms it
// was 19 to 27 ms, because the broker then sometimes delays a batch (2026-11-25).
const markerTime = 3 * time.Millisecond

// synced takes the assignment of a SyncGroup response, and returns the part of it that the client may fetch. It
// also notices that the broker has removed this member from the group (A8): in that case the broker answered the
// JoinGroup request with an error, and the client joined again as a new member. franz-go calls no callback then,
// and keeps the same partitions. The error that synced returns makes franz-go give these partitions up.
func (w *worker) synced(partitions map[string][]int32) (map[string][]int32, error) {
	if got := w.member.gotAs(); got != "" {
		if id, _ := w.txns.client.GroupMetadata(); id != got {
			return nil, fmt.Errorf("the group took this worker back as another member: %w", kerr.UnknownMemberID)
		}
	}
	partitions = w.member.keepBack(partitions)
	w.member.assign(partitions)
	select {
	case <-w.ready:
		if w.txns.order != nil && len(partitions) == 0 {
			w.txns.order.joined()
		}
	default: // the group still rebalances, so the other workers wait a little longer for this one
	}
	return partitions, nil
}

// balancers returns the balancers that the worker offers to its group, the preferred one first. All of them
// are cooperative. The routing stage has no local state and offers only cooperative-sticky. The dedup stage
// prefers the balancer of package assign, and also offers cooperative-sticky because the previous build
// offers nothing else: the members of a group need one in common.
func (w *worker) balancers() []kgo.GroupBalancer {
	sticky := watchedBalancer{kgo.CooperativeStickyBalancer(), w.member.join, w.synced}
	if w.stage == app.StageRoute {
		return []kgo.GroupBalancer{sticky}
	}
	warm := assign.NewBalancer(func() assign.Warmth {
		return assign.Warmth{Process: w.cfg.InstanceID, Standby: w.cfg.Standby, Positions: w.stores.Positions(w.rt.Topology)}
	})
	return []kgo.GroupBalancer{watchedBalancer{warm, w.member.join, w.synced}, sticky}
}

// watchedBalancer is a balancer that reports when this member asks to join a generation of its group, and
// which partitions it gets in that generation. franz-go's callbacks get only the differences between two
// assignments, and its transaction session drops some of them (A8). The response to a sync has the whole
// assignment.
type watchedBalancer struct {
	kgo.GroupBalancer
	joins  func()
	synced func(map[string][]int32) (map[string][]int32, error)
}

// JoinGroupMetadata calls joins: franz-go asks for the metadata when it makes a request to join.
func (b watchedBalancer) JoinGroupMetadata(interests []string, current map[string][]int32, generation int32) []byte {
	b.joins()
	return b.GroupBalancer.JoinGroupMetadata(interests, current, generation)
}

// ParseSyncAssignment calls synced with the member's new assignment.
func (b watchedBalancer) ParseSyncAssignment(assignment []byte) (map[string][]int32, error) {
	partitions, err := b.GroupBalancer.ParseSyncAssignment(assignment)
	if err != nil {
		return nil, err
	}
	return b.synced(partitions)
}

// onLost runs when the broker has removed this member from the group, which loses the partitions gone.
func (w *worker) onLost(gone map[string][]int32) {
	w.member.end()
	w.onGone(gone)
}

// A lossHook tells a worker each time that its membership ends. franz-go's session calls onLost only once before
// a transaction ends. If the worker has been assigned partitions after that call and lost them again, only this
// hook reports the second loss (A8).
type lossHook struct{ *worker }

// OnGroupManageError implements kgo.HookGroupManageError. The client calls it after onLost, while it
// has the rebalance lock, and joins the group again afterwards.
func (h lossHook) OnGroupManageError(error) {
	if gone := byTopic(maps.Keys(h.member.assigned())); len(gone) > 0 {
		h.onLost(gone)
	}
}

// onGone runs when partitions are revoked or lost, before the group assigns them to other members. It
// closes their tasks, or forgets them as inputs.
func (w *worker) onGone(gone map[string][]int32) {
	w.member.setRebalanced()
	for topic, ps := range gone {
		for _, p := range ps {
			w.txns.oversized.dropAnnouncement(app.TaskID{Topic: topic, Partition: p})
		}
	}
	select {
	case <-w.ready:
	default:
		return // the client has no assignment before ready, so there are no tasks
	}
	w.txns.schemas.drop(gone)
	if w.txns.tasks != nil {
		w.txns.tasks.revoked(gone)
	} else {
		w.txns.dropInputs(gone)
	}
	w.wake()
}

// adjustOffsets runs with the group's offsets of newly assigned partitions, after the offset fetch with
// require_stable and before the first fetch of records. It pauses the partitions of tasks until their restores
// end (A9). If the group has no offset of a partition, adjustOffsets sets the start as a number (A10): the
// client's own reset "to the start" could resolve to another offset after an abort.
func (w *worker) adjustOffsets(ctx context.Context, offsets map[string]map[int32]kgo.Offset) (map[string]map[int32]kgo.Offset, error) {
	select {
	case <-w.ready:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	id, _ := w.txns.client.GroupMetadata()
	w.member.got(id)
	var uncommitted, waiting map[app.TaskID]bool
	var err error
	if w.txns.router != nil {
		former := kafka.Partitions(offsets) // partitions that were lost without a callback (A8), and are assigned again
		w.txns.schemas.drop(former)
		w.txns.pacer.drop(former)
		w.txns.order.drop(former)
		waiting, err = w.starts.resolve(ctx, offsets, w.txns.marks, w.txns.order)
	} else {
		uncommitted, err = w.resolveStarts(ctx, offsets)
	}
	if err == nil {
		err = w.holdAssigned(ctx, offsets)
	}
	if err != nil {
		if ctx.Err() != nil {
			return nil, ctx.Err() // the group rebalances, and the client will call adjustOffsets again
		}
		w.log.Warn("resolving the offsets of newly assigned partitions failed, retrying", "error", err)
		if errors.As(err, new(*wire.UnreadableError)) {
			err = errors.New(err.Error()) // without its type the error stops no process, which waits until an operator replaces the row
		}
		return nil, err
	}
	w.placeKnown(offsets, waiting)
	if w.txns.router != nil {
		w.txns.pacer.assigned(w.member.partitions())
		w.txns.order.joined()
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

// placeKnown notes the partitions whose offset is known, and pauses the others. It resumes a known
// partition, because an earlier assignment to this worker may have left it paused.
func (w *worker) placeKnown(offsets map[string]map[int32]kgo.Offset, waiting map[app.TaskID]bool) {
	for topic, partitions := range offsets {
		for partition := range partitions {
			id := app.TaskID{Topic: topic, Partition: partition}
			if waiting[id] {
				partitions[partition] = kgo.NewOffset().At(0) // never fetched: the partition is paused until takeDecided
				w.txns.client.PauseFetchPartitions(map[string][]int32{topic: {partition}})
				continue
			}
			w.member.place(id)
			if w.txns.pacer != nil {
				w.txns.client.ResumeFetchPartitions(map[string][]int32{topic: {partition}})
			}
		}
	}
	if w.txns.router != nil {
		w.starts.place(offsets, false)
	}
}

// resolveStarts sets the start of every partition for which the group has no offset, and returns these
// partitions. The start is the offset that is pinned in the manifest, even if the topic has lost the record at
// that offset: the restore compares the start with the input, and finds the loss. A partition that was added to
// a topic later starts at its beginning, so that events from before its discovery are processed too.
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
			start, pinned := w.rt.Manifest.Start(topic, w.rt.Topology.Topics[topic].ID, partition)
			if !pinned {
				start = o.Offset
			}
			partitions[partition] = kgo.NewOffset().At(start)
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
