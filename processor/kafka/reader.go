package kafka

import (
	"context"
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

const (
	// fetchBytes is the most bytes of one fetch, some 20,000 rows of a
	// changelog. All tasks of a process may restore at the same time.
	fetchBytes = 1 << 20
	// fetchMemory is the memory of such a fetch with its records. A fetch for which the
	// budget has less is as small as fetchBytesMin.
	fetchMemory, fetchBytesMin = 4 << 20, 64 << 10
	// readerBatchMax is the limit of a batch of a Reader: none, because oncebus wrote it.
	readerBatchMax = math.MaxInt32
	// fetchWait is how long the broker may delay an empty response. Below the
	// high watermark a response is empty while a transaction is open.
	fetchWait = 250 * time.Millisecond
	// ReadRetryPause separates attempts while a leader moves or is unavailable.
	ReadRetryPause = 100 * time.Millisecond
	// readIdlePause separates the requests of a read without progress.
	readIdlePause = 5 * time.Millisecond
)

// Reader reads one partition of an internal topic, read_committed, up to an end
// offset. It counts by position.
//
// It sends fetch requests itself, because a consumer returns records only. The
// last offsets of a changelog may be control records, aborted records or a batch
// that compaction emptied. A consumer that waits for a record at end-1 then waits
// for ever (KAFKA-10167 in Kafka Streams, #8698 in Redpanda).
type Reader struct {
	client    *kgo.Client
	admin     *kadm.Client
	Topic     string
	topicID   [16]byte
	Partition int32

	leader       int32 // -1: unknown, read the metadata again
	decompressor kgo.Decompressor
	budget       *Budget    // that of the client, nil for none
	pools        []kgo.Pool // its pool
}

// NewReader returns a reader of one partition. topicID is the topic's id at the
// start: for a topic recreated since then, Read returns ErrTruncated.
func NewReader(client *kgo.Client, topic string, topicID [16]byte, partition int32) *Reader {
	r := &Reader{
		client: client, admin: kadm.NewClient(client),
		Topic: topic, topicID: topicID, Partition: partition, leader: -1, decompressor: kgo.DefaultDecompressor(),
	}
	if d, ok := client.OptValue(kgo.WithDecompressor).(*decompressor); ok {
		r.budget, r.pools = d.budget, []kgo.Pool{pool{d.budget}}
		r.decompressor = &decompressor{budget: d.budget, batchMax: readerBatchMax}
	}
	return r
}

// Bounds returns the partition's first offset and its high watermark. It retries
// while no leader responds. The watermark is listed read_uncommitted, because
// committed rows can follow the last stable offset, behind an open transaction of
// another producer (invariant 4, hazard B1).
func (r *Reader) Bounds(ctx context.Context) (start, end int64, err error) {
	for {
		start, end, err = r.ListBounds(ctx)
		if err == nil || Classify(err) != Retry {
			return start, end, err
		}
		if err := Pause(ctx, ReadRetryPause); err != nil {
			return 0, 0, err
		}
	}
}

// ListBounds is Bounds without retries. The error wraps ErrTruncated if the topic was
// recreated: the offsets are then another topic's, as Kafka lists them by name.
func (r *Reader) ListBounds(ctx context.Context) (start, end int64, err error) {
	starts, err := r.admin.ListStartOffsets(ctx, r.Topic)
	if err != nil {
		return 0, 0, fmt.Errorf("list the start of %s: %w", r.Topic, err)
	}
	ends, err := r.admin.ListEndOffsets(ctx, r.Topic)
	if err != nil {
		return 0, 0, fmt.Errorf("list the end of %s: %w", r.Topic, err)
	}
	for _, listed := range []struct {
		offsets kadm.ListedOffsets
		to      *int64
	}{{starts, &start}, {ends, &end}} {
		o, ok := listed.offsets.Lookup(r.Topic, r.Partition)
		if !ok {
			return 0, 0, fmt.Errorf("%s/%d is not listed: %w", r.Topic, r.Partition, kerr.UnknownTopicOrPartition)
		}
		if o.Err != nil {
			return 0, 0, fmt.Errorf("list offsets of %s/%d: %w", r.Topic, r.Partition, o.Err)
		}
		*listed.to = o.Offset
	}
	return start, end, r.checkID(ctx)
}

// checkID compares the topic's id with that at the start. It does not use the metadata
// cache of the client, which may have the former topic.
func (r *Reader) checkID(ctx context.Context) error {
	req := kmsg.NewPtrMetadataRequest()
	topic := kmsg.NewMetadataRequestTopic()
	topic.Topic = &r.Topic
	req.Topics = append(req.Topics, topic)
	resp, err := req.RequestWith(ctx, r.client)
	if err != nil {
		return fmt.Errorf("read the id of topic %s: %w", r.Topic, err)
	}
	for i := range resp.Topics {
		if err := kerr.ErrorForCode(resp.Topics[i].ErrorCode); err != nil {
			return fmt.Errorf("read the id of topic %s: %w", r.Topic, err)
		}
		if resp.Topics[i].TopicID != r.topicID {
			return r.recreated()
		}
	}
	return nil
}

func (r *Reader) recreated() error {
	return fmt.Errorf("%w: topic %s was deleted and recreated since the start", ErrTruncated, r.Topic)
}

// Read calls each with the committed records from offset from, one fetch at a
// time, and with the position after them. It returns once the position reaches
// end. The records of one call stay valid after it.
func (r *Reader) Read(ctx context.Context, from, end int64, each func(records []*kgo.Record, position int64) error) error {
	for from < end {
		next, err, failed := r.readOnce(ctx, from, end, each)
		switch {
		case failed != nil:
			return failed
		case err == nil:
		case errors.Is(err, ErrBudgetExhausted):
			if err := Pause(ctx, readIdlePause); err != nil {
				return err
			}
			continue
		case Classify(err) == Retry:
			r.leader = -1
			if err := Pause(ctx, ReadRetryPause); err != nil {
				return err
			}
			continue
		default:
			return fmt.Errorf("fetch %s/%d at %d: %w", r.Topic, r.Partition, from, Denied(err, "Read", ResourceTopic, r.Topic))
		}
		if next == from {
			// A transaction is open here. The broker delays an empty response,
			// but not one that has only bytes of that transaction.
			if err := Pause(ctx, readIdlePause); err != nil {
				return err
			}
			continue
		}
		from = next
	}
	return nil
}

// readOnce reads one fetch. It returns from as the next offset if only records of an open
// transaction follow, and the error of each apart from that of the fetch.
func (r *Reader) readOnce(ctx context.Context, from, end int64, each func(records []*kgo.Record, position int64) error) (next int64, err, failed error) {
	bytes, release := r.fetchSize()
	defer release()
	records, next, err := r.fetch(ctx, from, end, bytes)
	if err != nil || next == from {
		return from, err, nil
	}
	return next, nil, each(records, next)
}

// fetchSize returns the bytes of the next fetch, and a function that returns their memory.
func (r *Reader) fetchSize() (bytes int32, release func()) {
	switch {
	case r.budget == nil:
		return fetchBytes, func() {}
	case r.budget.takeFree(fetchMemory):
		return fetchBytes, func() { r.budget.release(fetchMemory) }
	}
	return fetchBytesMin, func() {}
}

// fetch sends one request. It returns from as the next offset if only records of an
// open transaction follow.
func (r *Reader) fetch(ctx context.Context, from, end int64, bytes int32) ([]*kgo.Record, int64, error) {
	if r.leader < 0 {
		if err := r.findLeader(ctx); err != nil {
			return nil, from, err
		}
	}
	resp, err := r.request(from, bytes).RequestWith(ctx, r.client.Broker(int(r.leader)))
	if err != nil {
		if ctx.Err() == nil {
			r.leader = -1 // the connection failed: find the leader again
			err = fmt.Errorf("%w (%w)", kerr.LeaderNotAvailable, err)
		}
		return nil, from, err
	}
	if err := kerr.ErrorForCode(resp.ErrorCode); err != nil {
		return nil, from, err
	}
	if len(resp.Topics) != 1 || len(resp.Topics[0].Partitions) != 1 {
		return nil, from, fmt.Errorf("%w: fetch response has %d topics, want 1 with 1 partition", kerr.UnknownServerError, len(resp.Topics))
	}
	partition := &resp.Topics[0].Partitions[0]
	if err := kerr.ErrorForCode(partition.ErrorCode); err != nil {
		return nil, from, err
	}
	fetched, next := kgo.ProcessFetchPartition(kgo.ProcessFetchPartitionOpts{
		Offset:         from,
		IsolationLevel: kgo.ReadCommitted(),
		Topic:          r.Topic,
		Partition:      r.Partition,
		Pools:          r.pools,
	}, partition, r.decompressor, nil)
	if fetched.Err != nil {
		return nil, from, fetched.Err
	}
	if next == from && len(partition.RecordBatches) == 0 && partition.LastStableOffset >= end {
		next = end // compaction removed all records up to end
	}
	return fetched.Records, next, nil
}

func (r *Reader) request(from int64, bytes int32) *kmsg.FetchRequest {
	req := kmsg.NewPtrFetchRequest()
	req.MaxWaitMillis = int32(fetchWait.Milliseconds())
	req.MinBytes = 1
	req.MaxBytes = bytes
	req.IsolationLevel = 1 // read_committed
	req.SessionEpoch = -1  // no fetch session
	topic := kmsg.NewFetchRequestTopic()
	topic.Topic, topic.TopicID = r.Topic, r.topicID
	partition := kmsg.NewFetchRequestTopicPartition()
	partition.Partition = r.Partition
	partition.FetchOffset = from
	partition.PartitionMaxBytes = bytes
	topic.Partitions = append(topic.Partitions, partition)
	req.Topics = append(req.Topics, topic)
	return req
}

func (r *Reader) findLeader(ctx context.Context) error {
	meta, err := r.admin.Metadata(ctx, r.Topic)
	if err != nil {
		return fmt.Errorf("find the leader of %s/%d: %w", r.Topic, r.Partition, err)
	}
	topic, ok := meta.Topics[r.Topic]
	if !ok {
		return kerr.UnknownTopicOrPartition
	}
	if topic.Err != nil {
		return topic.Err
	}
	if topic.ID != r.topicID {
		return r.recreated()
	}
	p, ok := topic.Partitions[r.Partition]
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

// TimestampAppend is franz-go's number for a timestamp that the broker set. It is per
// record, because the topic's setting may have changed since.
const TimestampAppend = 1

// FetchMaxWait is how long a broker may delay a fetch response without records.
// It is the default of Kafka's own clients.
const FetchMaxWait = 500 * time.Millisecond
