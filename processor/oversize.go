package processor

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"oncebus/processor/app"
	"oncebus/processor/kafka"
)

// A batch that decompresses to more than ONCEBUS_MAX_DECOMPRESSED_BATCH_BYTES, by accident or as a decompression
// bomb, is never decompressed (G5), and a damaged batch cannot be decompressed. The client stops before such a
// batch and announces the batch once, as an error in a poll. The worker then skips exactly that batch: one
// transaction emits a dead letter that names the offsets of the batch, and commits the offset after the batch.
// The batch itself stays in its topic. A task that bypasses its store skips the batch at once. Its checkpoint
// records the skipped batch, for the time when the task reads the batch again after the bypass.
//
// The client does not repeat the announcement. It does not even do so after an abort, although an abort may
// rewind the client to before the batch. So either the open transaction skips an announced batch, or the worker
// replaces the client. A poll may miss the announcement: SetOffsets drops all fetches that were not polled yet
// (franz-go v1.22.3). But the client also logs each announcement. So the worker also replaces the client if the
// log has announced a batch that no poll has returned. Otherwise the partition of the batch would not be read
// any further.

const (
	// oversizeLog is the beginning of the log line by which the client announces a batch.
	oversizeLog = "batch decompresses larger than MaxDecompressBatchBytes"
	// announcedMax is how long after the log line a poll may return the batch.
	announcedMax = 3 * time.Second
)

// errOversize says that a client stopped before a batch that was not skipped yet.
var errOversize = errors.New("batch decompresses to more than ONCEBUS_MAX_DECOMPRESSED_BATCH_BYTES and was not skipped yet")

// oversizeLogger forwards a client's log, and calls announced for each oversize batch in it.
type oversizeLogger struct {
	kgo.Logger
	announced func(app.TaskID)
}

// Level returns at least the level of the announcements, so that the client logs them.
func (l oversizeLogger) Level() kgo.LogLevel { return max(l.Logger.Level(), kgo.LogLevelError) }

// Log forwards a line.
func (l oversizeLogger) Log(level kgo.LogLevel, msg string, keyvals ...any) {
	if level == kgo.LogLevelError && strings.HasPrefix(msg, oversizeLog) {
		var id app.TaskID
		for n := 0; n+1 < len(keyvals); n += 2 {
			switch v := keyvals[n+1].(type) {
			case string:
				if keyvals[n] == "topic" {
					id.Topic = v
				}
			case int32:
				if keyvals[n] == "partition" {
					id.Partition = v
				}
			}
		}
		l.announced(id)
	}
	if level <= l.Logger.Level() {
		l.Logger.Log(level, msg, keyvals...)
	}
}

// oversized holds the batches before which a client has stopped.
type oversized struct {
	mu sync.Mutex
	// announced holds the batches that the client has logged and no poll has returned, each with the time
	// of its log line.
	announced map[app.TaskID]time.Time

	// batches holds the polled batches that no committed transaction has skipped yet. Only the worker's
	// goroutine uses it.
	batches map[app.TaskID]*kgo.ErrDecompressTooLarge
	// corrupt holds those batches that have a wrong checksum.
	corrupt map[app.TaskID]*kafka.CorruptBatchError
}

func newOversized() *oversized {
	return &oversized{announced: map[app.TaskID]time.Time{}, batches: map[app.TaskID]*kgo.ErrDecompressTooLarge{}, corrupt: map[app.TaskID]*kafka.CorruptBatchError{}}
}

// announce stores that the client logged a batch. It runs in the client's goroutines.
func (o *oversized) announce(id app.TaskID) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.announced[id] = time.Now()
}

// dropAnnouncement drops the announcement of a partition.
func (o *oversized) dropAnnouncement(id app.TaskID) {
	o.mu.Lock()
	defer o.mu.Unlock()
	delete(o.announced, id)
}

// announcements returns how many announced batches no poll has returned, and whether one
// of them is older than announcedMax.
func (o *oversized) announcements() (n int, missed bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, at := range o.announced {
		missed = missed || time.Since(at) > announcedMax
	}
	return len(o.announced), missed
}

// add stores the batches before which the client stopped, according to a poll.
func (o *oversized) add(fetches kgo.Fetches) {
	fetches.EachError(func(topic string, partition int32, err error) {
		var tooLarge *kgo.ErrDecompressTooLarge
		if !errors.As(err, &tooLarge) {
			return
		}
		id := app.TaskID{Topic: topic, Partition: partition}
		o.batches[id] = tooLarge
		if corrupt, ok := errors.AsType[*kafka.CorruptBatchError](err); ok {
			o.corrupt[id] = corrupt
		}
		o.dropAnnouncement(id)
	})
}

// addOffsets adds the offsets after the skipped batches to an offset commit of the routing stage. In the dedup
// stage the tasks set these offsets from their checkpoints.
func (o *oversized) addOffsets(req *kmsg.TxnOffsetCommitRequest, topics map[string]app.Topic) {
	for id, batch := range o.batches {
		i := slices.IndexFunc(req.Topics, func(t kmsg.TxnOffsetCommitRequestTopic) bool { return t.Topic == id.Topic })
		if i < 0 {
			topic := kmsg.NewTxnOffsetCommitRequestTopic()
			topic.Topic, topic.TopicID = id.Topic, topics[id.Topic].ID
			req.Topics = append(req.Topics, topic)
			i = len(req.Topics) - 1
		}
		topic := &req.Topics[i]
		j := slices.IndexFunc(topic.Partitions, func(p kmsg.TxnOffsetCommitRequestTopicPartition) bool { return p.Partition == id.Partition })
		if j < 0 {
			partition := kmsg.NewTxnOffsetCommitRequestTopicPartition()
			partition.Partition = id.Partition
			topic.Partitions = append(topic.Partitions, partition)
			j = len(topic.Partitions) - 1
		}
		topic.Partitions[j].Offset, topic.Partitions[j].LeaderEpoch = batch.NextOffset, batch.Epoch
	}
}

// resume lets the client fetch after the batches that a committed transaction has skipped. It does nothing if
// the client has logged another batch that no poll has returned yet, because SetOffsets would drop that
// announcement. The worker then replaces the client, and the new client starts at the committed offsets.
func (o *oversized) resume(client *kgo.Client) {
	if n, _ := o.announcements(); n > 0 || len(o.batches) == 0 {
		return
	}
	offsets := map[string]map[int32]kgo.EpochOffset{}
	for id, batch := range o.batches {
		if offsets[id.Topic] == nil {
			offsets[id.Topic] = map[int32]kgo.EpochOffset{}
		}
		offsets[id.Topic][id.Partition] = kgo.EpochOffset{Epoch: batch.Epoch, Offset: batch.NextOffset}
	}
	client.SetOffsets(offsets)
	clear(o.batches)
	clear(o.corrupt)
}

// forget drops a batch before which its partition now waits for an operator: the client fetches the batch again
// once the partition is read on.
func (o *oversized) forget(id app.TaskID) {
	delete(o.batches, id)
	delete(o.corrupt, id)
}

// skipBatch emits one dead letter for a batch in the open transaction. If the batch may be skipped only after an
// operator's decision, skipBatch instead makes the partition wait for that decision.
func (x *transactions) skipBatch(batch *kgo.ErrDecompressTooLarge) error {
	id := app.TaskID{Topic: batch.Topic, Partition: batch.Partition}
	asks := unreadable(x.oversized.corrupt[id])
	if x.router != nil {
		if waits := x.router.SkipBatch(x.emitter, batch, x.cfg.BatchBytesMax(), asks); waits != nil {
			x.oversized.forget(id)
			return x.stopUnreadable(id, waits)
		}
		x.marks.Skipped(id, batch.NextOffset)
		return nil
	}
	t := x.tasks.tasks[id]
	if t == nil || t.state != running && t.state != bypassing {
		return fmt.Errorf("%w: a batch of %s/%d arrived for a task that is not running", kafka.ErrMustAbort, batch.Topic, batch.Partition)
	}
	err := t.SkipBatch(x.emitter, batch, x.cfg.BatchBytesMax(), asks)
	if _, waits := x.tasks.await(x.client, t, err); waits {
		x.oversized.forget(id)
		return nil
	}
	return err
}

// resumeAfterBatches logs and counts the skipped batches of the committed transaction, and
// lets the client fetch after them.
func (x *transactions) resumeAfterBatches() {
	corrupt := slices.Collect(maps.Keys(x.oversized.corrupt))
	for id, batch := range x.oversized.batches {
		x.metrics.oversize.WithLabelValues(id.Topic).Inc()
		x.log.Warn("batch is damaged, or decompresses to too many bytes: skipped",
			"topic", id.Topic, "partition", id.Partition, "first_offset", batch.Offset, "last_offset", batch.NextOffset-1, "limit_bytes", x.cfg.BatchBytesMax())
	}
	x.oversized.resume(x.client)
	for _, id := range corrupt {
		x.fetchAgain(id)
	}
}
