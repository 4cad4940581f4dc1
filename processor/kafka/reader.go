package kafka

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

const (
	// fetchBytes is the largest size of one fetch, some 20,000 rows of a changelog. It is not larger
	// because all tasks of a process may restore at the same time.
	fetchBytes = 1 << 20
	// fetchMemory is the memory of such a fetch with its records. If the budget has less, the fetch is
	// only fetchBytesMin.
	fetchMemory, fetchBytesMin = 4 << 20, 64 << 10
	// readerBatchMax is the limit of a batch of a Reader: none, because oncebus wrote the batch.
	readerBatchMax = math.MaxInt32
	// fetchWait is how long the broker may delay an empty response. Below the high watermark a response
	// is empty while a transaction is open.
	fetchWait = 250 * time.Millisecond
	// ReadRetryPause is the pause between attempts while a leader moves or is unavailable.
	ReadRetryPause = 100 * time.Millisecond
	// readIdlePause is the pause between the requests of a read that makes no progress.
	readIdlePause = 5 * time.Millisecond
)

// Reader reads one partition of an internal topic, read_committed, up to an end offset. It counts by
// position, not by records.
//
// It sends fetch requests itself, because a consumer returns records only. The last offsets of a
// changelog may be control records, aborted records, or a batch that compaction emptied. A consumer
// that waits for a record at end-1 would then wait for ever (KAFKA-10167 in Kafka Streams, #8698 in
// Redpanda).
type Reader struct {
	client    *kgo.Client
	leaders   *Leaders
	Topic     string
	topicID   [16]byte
	Partition int32

	leader       int32 // -1 if unknown: look it up in newer metadata
	metadata     int   // number of the metadata read that last named a leader; 0 for none
	decompressor kgo.Decompressor
	budget       *Budget    // budget of the client; nil for none
	fetchMax     int32      // largest size of a fetch; 0 for fetchBytes
	pools        []kgo.Pool // pool of the budget, if there is one
	skip         func(*kgo.Record) bool
}

// NewReader returns a reader of one partition. topicID is the topic's id at the start of the process:
// if the topic has been recreated since, Read returns ErrTruncated.
func NewReader(client *kgo.Client, topic string, topicID [16]byte, partition int32) *Reader {
	return NewLeaders(client).NewReader(topic, topicID, partition)
}

// NewReader is like the function NewReader, for one of many readers with the same client.
func (l *Leaders) NewReader(topic string, topicID [16]byte, partition int32) *Reader {
	client := l.client
	r := &Reader{
		client: client, leaders: l,
		Topic: topic, topicID: topicID, Partition: partition, leader: -1, decompressor: kgo.DefaultDecompressor(),
	}
	if d, ok := client.OptValue(kgo.WithDecompressor).(*decompressor); ok {
		r.budget, r.pools = d.budget, []kgo.Pool{pool{d.budget}}
		r.decompressor = &decompressor{budget: d.budget, batchMax: readerBatchMax}
	}
	return r
}

// BoundBatches bounds the bytes to which a batch may decompress, and the memory of its records. A
// reader of a topic that others write to needs it. Read then returns *kgo.ErrDecompressTooLarge for a
// larger batch.
func (r *Reader) BoundBatches(batchMax int) {
	r.decompressor = &decompressor{budget: r.budget, batchMax: batchMax}
}

// BoundFetches bounds the bytes of a fetch, for a caller that reads very many partitions at the same
// time.
func (r *Reader) BoundFetches(bytes int32) { r.fetchMax = bytes }

// Skip makes Read leave out the records for which skip returns true.
func (r *Reader) Skip(skip func(*kgo.Record) bool) { r.skip = skip }

// Bounds returns the partition's first offset and its high watermark. It retries while no leader responds. It
// lists the end with read_uncommitted. The last stable offset would be too low: behind it, after an open
// transaction of another producer, there may be committed records (invariant 4, hazard B1).
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

// ListBounds is Bounds without retries. Kafka lists offsets by the name of the topic, so ListBounds
// also checks the topic's id: the error wraps ErrTruncated if the topic was recreated. Readers of many
// partitions share their requests (see Joint).
func (r *Reader) ListBounds(ctx context.Context) (start, end int64, err error) {
	if err := r.findLeader(ctx); err != nil {
		return 0, 0, err
	}
	if start, err = r.listOffset(ctx, listStart, isolationUncommitted); err == nil {
		end, err = r.listOffset(ctx, listHighWatermark, isolationUncommitted)
	}
	if err != nil {
		return 0, 0, err
	}
	return start, end, r.checkID(ctx, end)
}

// The timestamps by which a ListOffsets request asks for the first offset and for the end. With
// read_uncommitted, the default, the end is the high watermark.
const listStart, listHighWatermark = -2, -1

// The isolation levels of an end: with the first it is the high watermark, with the second the last
// stable offset.
const isolationUncommitted, isolationCommitted int8 = 0, 1

// StableEnd returns the last stable offset, below which every transaction has ended. Committed rows may follow
// that offset, so a restore must not end there. StableEnd does not retry.
func (r *Reader) StableEnd(ctx context.Context) (int64, error) {
	if err := r.findLeader(ctx); err != nil {
		return 0, err
	}
	return r.listOffset(ctx, listHighWatermark, isolationCommitted)
}

// FirstAt returns the first offset whose record has the timestamp, in ms, or a later one; -1 if no
// record has. Every record before it has an earlier timestamp. FirstAt does not retry.
func (r *Reader) FirstAt(ctx context.Context, timestamp int64) (int64, error) {
	if err := r.findLeader(ctx); err != nil {
		return 0, err
	}
	return r.listOffset(ctx, max(0, timestamp), isolationUncommitted)
}

// listOffset asks the leader for an offset of the partition. It shares its request with other readers
// of the topic.
func (r *Reader) listOffset(ctx context.Context, timestamp int64, isolation int8) (int64, error) {
	offset, err := r.leaders.listOffset(ctx, listTarget{r.leader, r.Topic, timestamp, isolation}, r.Partition)
	var unanswered *noResponseError
	switch {
	case ctx.Err() != nil && err != nil:
		return 0, err
	case errors.As(err, &unanswered):
		return 0, r.unreachable(ctx, unanswered.error)
	case err != nil:
		r.leader = -1
		return 0, fmt.Errorf("list offsets of %s/%d: %w", r.Topic, r.Partition, Denied(err, "Describe", ResourceTopic, r.Topic))
	}
	return offset, nil
}

// unreachable returns the error of a request to which the leader did not respond, in a form that is
// retried with another leader.
func (r *Reader) unreachable(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return err
	}
	r.leader = -1
	return fmt.Errorf("%w (%w)", kerr.LeaderNotAvailable, err)
}

// checkID checks that the topic still has the id that it had at the start. It does so by a fetch with that id,
// which a leader refuses if the topic has another id. A metadata request would return all partitions, and what
// Leaders has cached may belong to the former topic.
func (r *Reader) checkID(ctx context.Context, end int64) error {
	err := r.leaders.checkID(ctx, r, end)
	var unanswered *noResponseError
	switch {
	case ctx.Err() != nil && err != nil:
		return err
	case errors.As(err, &unanswered):
		return r.unreachable(ctx, unanswered.error)
	}
	if err == nil || errors.Is(err, kerr.OffsetOutOfRange) {
		return nil
	}
	r.leader = -1
	if errors.Is(err, kerr.UnknownTopicID) {
		if err := r.findLeader(ctx); err != nil {
			return err // wraps ErrTruncated if the topic was recreated
		}
	}
	return fmt.Errorf("check the id of topic %s: %w", r.Topic, Denied(err, "Read", ResourceTopic, r.Topic))
}

func (r *Reader) recreated() error {
	return fmt.Errorf("%w: topic %s was deleted and recreated since the start", ErrTruncated, r.Topic)
}

// Read calls each with the committed records from offset from on, one fetch at a time, and with the
// position after them. It returns once the position has reached end. The records stay valid after each
// returns.
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
			// A transaction is open here. The broker delays an empty response, but not a response that
			// contains only bytes of that transaction.
			if err := Pause(ctx, readIdlePause); err != nil {
				return err
			}
			continue
		}
		from = next
	}
	return nil
}

// readOnce reads one fetch. If only records of an open transaction follow, next is from. failed is the error
// that each returned, err the error of the fetch.
func (r *Reader) readOnce(ctx context.Context, from, end int64, each func(records []*kgo.Record, position int64) error) (next int64, err, failed error) {
	bytes, release := r.fetchSize()
	defer release()
	records, next, err := r.fetch(ctx, from, end, bytes)
	if err != nil || next == from {
		return from, err, nil
	}
	if r.skip != nil {
		records = slices.DeleteFunc(records, r.skip)
	}
	return next, nil, each(records, next)
}

// fetchSize returns the size of the next fetch, and a function that returns its memory to the budget.
func (r *Reader) fetchSize() (bytes int32, release func()) {
	switch {
	case r.fetchMax > 0:
		return r.fetchMax, func() {}
	case r.budget == nil:
		return fetchBytes, func() {}
	case r.budget.takeFree(fetchMemory):
		return fetchBytes, func() { r.budget.release(fetchMemory) }
	}
	return fetchBytesMin, func() {}
}

// fetch sends one fetch request and decodes the response. If only records of an open transaction
// follow, it returns from as the next offset.
func (r *Reader) fetch(ctx context.Context, from, end int64, bytes int32) ([]*kgo.Record, int64, error) {
	partition, err := r.fetchRaw(ctx, r.request(from, bytes))
	if err != nil {
		return nil, from, err
	}
	fetched, next := kgo.ProcessFetchPartition(kgo.ProcessFetchPartitionOpts{
		Offset:         from,
		IsolationLevel: kgo.ReadCommitted(),
		Topic:          r.Topic,
		Partition:      r.Partition,
		Pools:          r.pools,
	}, partition, r.decompressor, nil)
	switch {
	case IsCorrupt(fetched.Err) && next > from: // the next fetch begins at the corrupt batch
	case IsCorrupt(fetched.Err):
		return nil, from, r.endAt(ctx, from, fetched.Err)
	case fetched.Err != nil:
		return nil, from, fetched.Err
	}
	if next == from && len(partition.RecordBatches) == 0 && partition.LastStableOffset >= end {
		next = end // compaction removed all records up to end
	}
	return fetched.Records, next, nil
}

// fetchRaw sends one fetch request and returns the partition's part of the response.
func (r *Reader) fetchRaw(ctx context.Context, req *kmsg.FetchRequest) (*kmsg.FetchResponseTopicPartition, error) {
	if err := r.findLeader(ctx); err != nil {
		return nil, err
	}
	resp, err := req.RequestWith(ctx, r.client.Broker(int(r.leader)))
	if err != nil {
		return nil, r.unreachable(ctx, err)
	}
	if err := kerr.ErrorForCode(resp.ErrorCode); err != nil {
		return nil, err
	}
	if len(resp.Topics) != 1 || len(resp.Topics[0].Partitions) != 1 {
		return nil, fmt.Errorf("%w: fetch response has %d topics, want 1 with 1 partition", kerr.UnknownServerError, len(resp.Topics))
	}
	partition := &resp.Topics[0].Partitions[0]
	return partition, kerr.ErrorForCode(partition.ErrorCode)
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
	topic.Partitions = append(topic.Partitions, fetchPartition(r.Partition, from, bytes))
	req.Topics = append(req.Topics, topic)
	return req
}

func fetchPartition(n int32, from int64, bytes int32) kmsg.FetchRequestTopicPartition {
	partition := kmsg.NewFetchRequestTopicPartition()
	partition.Partition, partition.FetchOffset, partition.PartitionMaxBytes = n, from, bytes
	return partition
}

// TimestampAppend is franz-go's value for a timestamp that the broker set. It is stored for each
// record, because the topic's setting may have changed since.
const TimestampAppend = 1

// FetchMaxWait is how long a broker may delay a fetch response without records. It is the default of
// Kafka's own clients.
const FetchMaxWait = 500 * time.Millisecond
