package front

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"oncebus/dedup"
	"oncebus/dedup/rules"
	"oncebus/processor/app"
	"oncebus/processor/kafka"
	"oncebus/processor/wire"
)

// ErrPosition says that a position is malformed or belongs to other routes.
var ErrPosition = errors.New("unknown position")

// repliesFetch bounds, in bytes, how much a follower fetches at a time.
const repliesFetch = 1 << 20

// A Reply is the outcome that a request got.
type Reply struct {
	wire.Answer
	Route   string
	Request string // the sender's id of the request; "" for none
	Source  string // topic/partition/offset of the event
}

// Replies follows the replies topics of some routes from a position on. One goroutine may use it. Each Replies
// has a separate Kafka client, so that a slow follower delays no other follower.
type Replies struct {
	client *kgo.Client
	routes []string
	app    *app.Topology
	topics []repliesTopic
	gap    bool // result of Gap
}

// repliesTopic is a replies topic, with the next offset to read of each partition.
type repliesTopic struct {
	name string
	id   [16]byte
	next []int64
}

// FollowReplies opens the replies to the HTTP requests for some routes. position is a result of Position for
// the same routes, in any process, or "" for the end of the topics. The error wraps ErrPosition or
// ErrKafkaUnavailable.
func (f *IngressClient) FollowReplies(ctx context.Context, routes []*rules.Route, position string) (*Replies, error) {
	at, err := f.reach(ctx, false)
	if err != nil {
		return nil, err
	}
	r := &Replies{app: at.rt.Topology}
	for _, route := range routes {
		r.routes = append(r.routes, route.Name)
		if topic := route.Claim.Replies; !slices.ContainsFunc(r.topics, func(t repliesTopic) bool { return t.name == topic }) {
			r.topics = append(r.topics, repliesTopic{name: topic})
		}
	}
	slices.SortFunc(r.topics, func(a, b repliesTopic) int { return strings.Compare(a.name, b.name) })
	finder, err := kgo.NewClient(f.baseOptions...)
	if err != nil {
		return nil, fmt.Errorf("client: %w", err)
	}
	err = r.find(ctx, kadm.NewClient(finder), position)
	finder.Close()
	if err != nil {
		return nil, err
	}
	from := map[string]map[int32]kgo.Offset{}
	for _, t := range r.topics {
		from[t.name] = map[int32]kgo.Offset{}
		for partition, offset := range t.next {
			from[t.name][int32(partition)] = kgo.NewOffset().At(offset)
		}
	}
	r.client, err = kgo.NewClient(append(slices.Clone(f.baseOptions), kgo.ConsumePartitions(from), kgo.FetchIsolationLevel(kgo.ReadCommitted()), kgo.FetchMaxWait(kafka.FetchMaxWait),
		kgo.FetchMaxBytes(repliesFetch), kgo.FetchMaxPartitionBytes(repliesFetch), kgo.ConsumeResetOffset(kgo.NoResetOffset()))...)
	if err != nil {
		return nil, fmt.Errorf("client: %w", err)
	}
	return r, nil
}

// Close ends the connections.
func (r *Replies) Close() { r.client.Close() }

// Gap reports whether records after the given position are missing: the topic's retention deleted them, or the
// topic was recreated.
func (r *Replies) Gap() bool { return r.gap }

// find sets the next offsets to read, from the position or to the ends of the topics.
func (r *Replies) find(ctx context.Context, admin *kadm.Client, position string) error {
	var names []string
	for _, t := range r.topics {
		names = append(names, t.name)
	}
	meta, err := admin.Metadata(ctx, names...)
	if err != nil {
		return fmt.Errorf("%w: %w", ErrKafkaUnavailable, err)
	}
	starts, err := admin.ListStartOffsets(ctx, names...)
	if err != nil {
		return fmt.Errorf("%w: %w", ErrKafkaUnavailable, err)
	}
	ends, err := admin.ListCommittedOffsets(ctx, names...)
	if err != nil {
		return fmt.Errorf("%w: %w", ErrKafkaUnavailable, err)
	}
	for i := range r.topics {
		t := &r.topics[i]
		described := meta.Topics[t.name]
		if err := errors.Join(described.Err, starts.Error(), ends.Error()); err != nil {
			return fmt.Errorf("%w: list offsets of %s: %w", ErrKafkaUnavailable, t.name, kafka.Denied(err, "Describe", kafka.ResourceTopic, t.name))
		}
		t.id, t.next = described.ID, make([]int64, len(described.Partitions))
		for partition := range t.next {
			o, _ := ends.Lookup(t.name, int32(partition))
			t.next[partition] = o.Offset
		}
	}
	if position == "" {
		return nil
	}
	if err := r.decode(position); err != nil {
		return err
	}
	for i := range r.topics {
		t := &r.topics[i]
		for partition := range t.next {
			start, _ := starts.Lookup(t.name, int32(partition))
			end, _ := ends.Lookup(t.name, int32(partition))
			if next := t.next[partition]; next < start.Offset || next > end.Offset {
				r.gap, t.next[partition] = true, start.Offset
			}
		}
	}
	return nil
}

// positionVersion is the first byte of an encoded position.
const positionVersion = 1

// topicMark is how many bytes of a topic's id a position contains, to notice that the topic was recreated.
const topicMark = 4

// Position returns the position after the last reply that Next returned: the next offsets of all partitions,
// encoded as
//
//	version 1 | for each topic, by name: mark 4 | partitions uvarint | offsets uvarint
func (r *Replies) Position() string {
	b := []byte{positionVersion}
	for _, t := range r.topics {
		b = binary.AppendUvarint(append(b, t.id[:topicMark]...), uint64(len(t.next)))
		for _, offset := range t.next {
			b = binary.AppendUvarint(b, uint64(offset))
		}
	}
	return base64.RawURLEncoding.EncodeToString(b)
}

// decode reads a position. The follower reads partitions that were added since, and all partitions of a topic
// that was recreated since, from their start.
func (r *Replies) decode(position string) error {
	b, err := base64.RawURLEncoding.Strict().DecodeString(position)
	c := dedup.NewCursor(b)
	if err != nil || c.Byte() != positionVersion {
		return ErrPosition
	}
	for i := range r.topics {
		t := &r.topics[i]
		same := bytes.Equal(c.Bytes(topicMark), t.id[:topicMark])
		known := int(c.Uvarint(uint64(c.Left())))
		if !same {
			r.gap = true
		}
		for partition := range max(known, len(t.next)) {
			offset := int64(0)
			if partition < known {
				offset = int64(c.Uvarint(math.MaxInt64))
			}
			if !same {
				offset = 0
			}
			if partition < len(t.next) {
				t.next[partition] = offset
			}
		}
	}
	if !c.Done() {
		return ErrPosition
	}
	return nil
}

// Next calls each with the outcomes in the next records. After a call of each, Position returns the position
// after the record of that outcome. It waits at most wait for records, and returns nil if there are none. The
// error is an error of each, or wraps ErrKafkaUnavailable: in the latter case the follower must begin again
// from its position.
func (r *Replies) Next(ctx context.Context, wait time.Duration, each func(*Reply) error) error {
	polling, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	fetches := r.client.PollRecords(polling, repliesPolled)
	for _, rec := range fetches.Records() {
		i := slices.IndexFunc(r.topics, func(t repliesTopic) bool { return t.name == rec.Topic })
		r.topics[i].next[rec.Partition] = rec.Offset + 1
		if reply, ok := r.read(rec); ok {
			if err := each(reply); err != nil {
				return err
			}
		}
	}
	if ctx.Err() != nil {
		return ctx.Err()
	}
	for _, e := range fetches.Errors() {
		if batch := (*kgo.ErrDecompressTooLarge)(nil); errors.As(e.Err, &batch) {
			r.skip(batch)
			continue
		}
		if !errors.Is(e.Err, context.DeadlineExceeded) && !errors.Is(e.Err, kafka.ErrBudgetExhausted) && !kerr.IsRetriable(e.Err) {
			return fmt.Errorf("%w: fetch %s/%d: %w", ErrKafkaUnavailable, e.Topic, e.Partition, kafka.Denied(e.Err, "Read", kafka.ResourceTopic, e.Topic))
		}
	}
	return nil
}

// skip skips a batch that is too large to decompress: without the skip, the follower would stay at the batch.
func (r *Replies) skip(batch *kgo.ErrDecompressTooLarge) {
	i := slices.IndexFunc(r.topics, func(t repliesTopic) bool { return t.name == batch.Topic })
	r.topics[i].next[batch.Partition] = batch.NextOffset
	r.client.SetOffsets(map[string]map[int32]kgo.EpochOffset{batch.Topic: {batch.Partition: {Epoch: batch.Epoch, Offset: batch.NextOffset}}})
}

// repliesPolled is the most records that one call of Next takes.
const repliesPolled = 256

// outcomeStatuses are the claim statuses of replies that have an outcome.
var outcomeStatuses = func() (all []string) {
	for _, kind := range dedup.OutcomeKinds {
		if kind != dedup.OutcomeSubmitted && !kind.Asks() {
			all = append(all, kind.ClaimStatus())
		}
	}
	return all
}()

// read reads the reply to an HTTP request that has an outcome; it returns false for any other record.
func (r *Replies) read(rec *kgo.Record) (*Reply, bool) {
	answer, ok := wire.ReadAnswer(rec)
	if !ok || !slices.Contains(outcomeStatuses, answer.Status) {
		return nil, false
	}
	reply := &Reply{Answer: answer}
	for i := range rec.Headers {
		switch h := &rec.Headers[i]; h.Key {
		case wire.HeaderRoute:
			reply.Route = string(h.Value)
		case wire.HeaderRequestID:
			reply.Request = string(h.Value)
		case wire.HeaderSource:
			reply.Source = string(h.Value)
		}
	}
	reply.HasOutcome = true
	// If an event came by HTTP, the topic in its position is a repartition topic, of the present or of an
	// earlier generation.
	topic, _, _ := strings.Cut(reply.Source, "/")
	return reply, slices.Contains(r.routes, reply.Route) && app.GenerationOf(r.app.App, topic) > 0
}
