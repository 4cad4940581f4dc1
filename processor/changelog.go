package processor

import (
	"context"
	"fmt"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

const (
	// fetchBytes bounds one fetch of a changelog partition, some 20,000
	// rows. All tasks of a process may restore at the same time.
	fetchBytes = 1 << 20
	// fetchWait is how long the broker may hold back an empty answer. An
	// answer is empty below the high watermark while somebody's transaction
	// is open.
	fetchWait = 250 * time.Millisecond
	// readRetryPause separates attempts while a leader moves or is away.
	readRetryPause = 100 * time.Millisecond
	// readIdlePause keeps a read without progress from spinning.
	readIdlePause = 5 * time.Millisecond
)

// logReader reads one partition of an internal topic, read_committed, up to an
// end that is given as an offset and reached by position.
//
// It fetches by hand and not through a consumer: a consumer shows records
// only, and the end of a changelog may be transaction markers, aborted
// records or a batch that compaction emptied, none of which a consumer shows.
// Waiting for "a record at end-1" would then wait for ever (Kafka Streams
// met this as KAFKA-10167, Redpanda as #8698).
type logReader struct {
	client    *kgo.Client
	admin     *kadm.Client
	topic     string
	topicID   [16]byte
	partition int32

	leader int32 // -1: ask again
}

func newLogReader(client *kgo.Client, topic string, topicID [16]byte, partition int32) *logReader {
	return &logReader{
		client: client, admin: kadm.NewClient(client),
		topic: topic, topicID: topicID, partition: partition, leader: -1,
	}
}

// bounds returns the partition's first offset and its high watermark. The
// watermark is listed read_uncommitted on purpose: the last stable offset
// would end a restore before committed rows that stand behind somebody's open
// transaction (invariant 4, hazard B1).
func (r *logReader) bounds(ctx context.Context) (start, end int64, err error) {
	for {
		start, end, err = r.listBounds(ctx)
		if err == nil || classify(err) != actRetry {
			return start, end, err
		}
		if err := pause(ctx, readRetryPause); err != nil {
			return 0, 0, err
		}
	}
}

func (r *logReader) listBounds(ctx context.Context) (start, end int64, err error) {
	starts, err := r.admin.ListStartOffsets(ctx, r.topic)
	if err != nil {
		return 0, 0, fmt.Errorf("list the start of %s: %w", r.topic, err)
	}
	ends, err := r.admin.ListEndOffsets(ctx, r.topic)
	if err != nil {
		return 0, 0, fmt.Errorf("list the end of %s: %w", r.topic, err)
	}
	for _, listed := range []struct {
		offsets kadm.ListedOffsets
		to      *int64
	}{{starts, &start}, {ends, &end}} {
		o, ok := listed.offsets.Lookup(r.topic, r.partition)
		if !ok {
			return 0, 0, fmt.Errorf("%s/%d is not listed: %w", r.topic, r.partition, kerr.UnknownTopicOrPartition)
		}
		if o.Err != nil {
			return 0, 0, fmt.Errorf("list offsets of %s/%d: %w", r.topic, r.partition, o.Err)
		}
		*listed.to = o.Offset
	}
	return start, end, nil
}

// read calls each with the committed records from offset from on, a fetch at
// a time, with the position behind them, until the position reaches end. The
// records of one call stay valid after it.
func (r *logReader) read(ctx context.Context, from, end int64, each func(records []*kgo.Record, position int64) error) error {
	for from < end {
		records, next, err := r.fetch(ctx, from, end)
		switch {
		case err == nil:
		case classify(err) == actRetry:
			r.leader = -1
			if err := pause(ctx, readRetryPause); err != nil {
				return err
			}
			continue
		default:
			return fmt.Errorf("fetch %s/%d at %d: %w", r.topic, r.partition, from, denied(err, "Read", resourceTopic, r.topic))
		}
		if next == from {
			// Held back by an open transaction. The broker waited for us, but
			// for an answer that has bytes and brings nothing.
			if err := pause(ctx, readIdlePause); err != nil {
				return err
			}
			continue
		}
		from = next
		if err := each(records, from); err != nil {
			return err
		}
	}
	return nil
}

// fetch asks once. It returns from as the next offset if there is nothing
// stable to read there yet.
func (r *logReader) fetch(ctx context.Context, from, end int64) ([]*kgo.Record, int64, error) {
	if r.leader < 0 {
		if err := r.findLeader(ctx); err != nil {
			return nil, from, err
		}
	}
	resp, err := r.request(from).RequestWith(ctx, r.client.Broker(int(r.leader)))
	if err != nil {
		if ctx.Err() == nil {
			r.leader = -1 // the connection failed: ask who leads now
			err = fmt.Errorf("%w (%w)", kerr.LeaderNotAvailable, err)
		}
		return nil, from, err
	}
	if err := kerr.ErrorForCode(resp.ErrorCode); err != nil {
		return nil, from, err
	}
	if len(resp.Topics) != 1 || len(resp.Topics[0].Partitions) != 1 {
		return nil, from, fmt.Errorf("%w: fetch answered %d topics", kerr.UnknownServerError, len(resp.Topics))
	}
	answer := &resp.Topics[0].Partitions[0]
	if err := kerr.ErrorForCode(answer.ErrorCode); err != nil {
		return nil, from, err
	}
	fetched, next := kgo.ProcessFetchPartition(kgo.ProcessFetchPartitionOpts{
		Offset:         from,
		IsolationLevel: kgo.ReadCommitted(),
		Topic:          r.topic,
		Partition:      r.partition,
	}, answer, kgo.DefaultDecompressor(), nil)
	if fetched.Err != nil {
		return nil, from, fetched.Err
	}
	if next == from && len(answer.RecordBatches) == 0 && answer.LastStableOffset >= end {
		next = end // everything up to the end is stable, and compaction left nothing of it
	}
	return fetched.Records, next, nil
}

func (r *logReader) request(from int64) *kmsg.FetchRequest {
	req := kmsg.NewPtrFetchRequest()
	req.MaxWaitMillis = int32(fetchWait.Milliseconds())
	req.MinBytes = 1
	req.MaxBytes = fetchBytes
	req.IsolationLevel = 1 // read_committed
	req.SessionEpoch = -1  // no fetch session
	topic := kmsg.NewFetchRequestTopic()
	topic.Topic, topic.TopicID = r.topic, r.topicID
	partition := kmsg.NewFetchRequestTopicPartition()
	partition.Partition = r.partition
	partition.FetchOffset = from
	partition.PartitionMaxBytes = fetchBytes
	topic.Partitions = append(topic.Partitions, partition)
	req.Topics = append(req.Topics, topic)
	return req
}

func (r *logReader) findLeader(ctx context.Context) error {
	meta, err := r.admin.Metadata(ctx, r.topic)
	if err != nil {
		return fmt.Errorf("find the leader of %s/%d: %w", r.topic, r.partition, err)
	}
	topic, ok := meta.Topics[r.topic]
	if !ok {
		return kerr.UnknownTopicOrPartition
	}
	if topic.Err != nil {
		return topic.Err
	}
	if topic.ID != r.topicID {
		return fmt.Errorf("%w: %s has another topic id than at the start", errTruncated, r.topic)
	}
	p, ok := topic.Partitions[r.partition]
	if !ok {
		return kerr.UnknownTopicOrPartition
	}
	if p.Err != nil {
		return p.Err
	}
	if p.Leader < 0 {
		return kerr.LeaderNotAvailable
	}
	r.leader = p.Leader
	return nil
}

// pause waits for d or until ctx is done, whose error it then returns.
func pause(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
