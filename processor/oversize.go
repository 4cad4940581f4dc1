package processor

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"oncebus/processor/app"
	"oncebus/processor/kafka"
)

// A batch that decompresses to more than ONCEBUS_MAX_DECOMPRESSED_BATCH_BYTES, by accident or as a
// bomb, is never decompressed (G5). The client stops at it and says so once. The
// worker then steps over exactly that batch: in one transaction it emits a
// dead letter that says where the batch stands and commits the offset behind
// it. The batch itself stays in its topic. A task that
// passes events unchecked does so at once; when it meets the batch again, its
// checkpoint says that the dead letter is out.
//
// The client does not repeat itself, not even after an abort, which may or may
// not rewind it. So a batch that was announced is stepped over in the
// transaction in progress, or the client is replaced. It may not even say it
// once: whatever sets an offset drops all fetches that wait to be polled, and
// with them the announcement (franz-go v1.22.2). But it also logs it, so a
// batch that is in the log and does not come in a poll replaces the client
// too; without that its partition would stall for ever.

const (
	// oversizeLog is how the client's line in the log begins.
	oversizeLog = "batch decompresses larger than MaxDecompressBatchBytes"
	// announcedMax is how long an announcement may be on its way to a poll.
	announcedMax = 3 * time.Second
)

// errOversize says that a client stands before a batch that was not stepped
// over.
var errOversize = errors.New("batch decompresses to more than ONCEBUS_MAX_DECOMPRESSED_BATCH_BYTES and was not skipped yet")

// oversizeLogger passes a client's log on and listens for oversize batches.
type oversizeLogger struct {
	kgo.Logger
	announced func(app.TaskID)
}

// Level is at least that of the line to listen for.
func (l oversizeLogger) Level() kgo.LogLevel { return max(l.Logger.Level(), kgo.LogLevelError) }

// Log passes a line on.
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

// onAnnounced runs in the client's goroutines.
func (w *worker) onAnnounced(id app.TaskID) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.announced[id] = time.Now()
}

// announcements returns how many batches were announced that came in no poll,
// and whether one of them will not come any more.
func (w *worker) announcements() (n int, lost bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, at := range w.announced {
		lost = lost || time.Since(at) > announcedMax
	}
	return len(w.announced), lost
}

// noteOversize remembers the batches that a poll stopped at.
func (w *worker) noteOversize(fetches kgo.Fetches) {
	fetches.EachError(func(topic string, partition int32, err error) {
		var tooLarge *kgo.ErrDecompressTooLarge
		if !errors.As(err, &tooLarge) {
			return
		}
		if w.oversize == nil {
			w.oversize = map[app.TaskID]*kgo.ErrDecompressTooLarge{}
		}
		w.oversize[app.TaskID{Topic: topic, Partition: partition}] = tooLarge
		w.mu.Lock()
		delete(w.announced, app.TaskID{Topic: topic, Partition: partition})
		w.mu.Unlock()
	})
}

// stepOver takes a batch into the open transaction as one dead letter.
func (w *worker) stepOver(batch *kgo.ErrDecompressTooLarge) error {
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

// oversizeOffsets makes an offset commit of the routing stage pass the
// batches that were stepped over. Tasks write theirs from their checkpoints.
func (w *worker) oversizeOffsets(req *kmsg.TxnOffsetCommitRequest) {
	for id, batch := range w.oversize {
		i := slices.IndexFunc(req.Topics, func(t kmsg.TxnOffsetCommitRequestTopic) bool { return t.Topic == id.Topic })
		if i < 0 {
			topic := kmsg.NewTxnOffsetCommitRequestTopic()
			topic.Topic, topic.TopicID = id.Topic, w.p.rt.Topology.Topics[id.Topic].ID
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

// passOversize lets the client go on behind the batches of the transaction
// that was committed. If another batch is on its way to a poll, setting an
// offset would lose it; then the client is replaced, which goes on from the
// committed offsets.
func (w *worker) passOversize() {
	offsets := map[string]map[int32]kgo.EpochOffset{}
	for id, batch := range w.oversize {
		if offsets[id.Topic] == nil {
			offsets[id.Topic] = map[int32]kgo.EpochOffset{}
		}
		offsets[id.Topic][id.Partition] = kgo.EpochOffset{Epoch: batch.Epoch, Offset: batch.NextOffset}
		w.p.metrics.oversize.WithLabelValues(id.Topic).Inc()
		w.log.Warn("batch decompresses to too many bytes, skipped with a dead letter",
			"topic", id.Topic, "partition", id.Partition, "first_offset", batch.Offset, "last_offset", batch.NextOffset-1, "limit_bytes", w.p.cfg.maxDecompressedBatchBytes())
	}
	if waiting, _ := w.announcements(); waiting == 0 {
		w.client.SetOffsets(offsets)
		w.oversize = nil
	}
}
