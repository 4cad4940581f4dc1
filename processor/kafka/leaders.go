package kafka

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// leadersMaxAge is how old the cached leaders may be when another reader starts to use them. It covers the
// restores after one rebalance. If a leader has moved since the metadata was read, the reader retries.
const leadersMaxAge = 5 * time.Second

// Leaders finds the leaders of partitions for the readers of one client. A metadata response names all
// partitions of a topic, so the readers of many partitions share one response.
type Leaders struct {
	client *kgo.Client
	turn   chan struct{} // guards topics; not a mutex, because a simulation cannot see a goroutine that waits for one
	topics map[string]topicLeaders
	reads  int // number of metadata reads; each read gets a number

	jointMu sync.Mutex // guards the two maps
	lists   map[listTarget]*Joint[int32, struct{}, int64]
	checks  map[checkTarget]*Joint[int32, int64, struct{}]
}

// listTarget has the values that all questions in one ListOffsets request must have in common.
type listTarget struct {
	leader    int32
	topic     string
	timestamp int64
	isolation int8 // isolationUncommitted or isolationCommitted; it matters for the end
}

// checkTarget has the values that all questions in one fetch by topic id must have in common.
type checkTarget struct {
	leader int32
	id     [16]byte
}

// jointOf returns the Joint for a target. It creates a missing one.
func jointOf[T, K comparable, Q, A any](mu *sync.Mutex, all map[T]*Joint[K, Q, A], target T) *Joint[K, Q, A] {
	mu.Lock()
	defer mu.Unlock()
	j := all[target]
	if j == nil {
		j = &Joint[K, Q, A]{}
		all[target] = j
	}
	return j
}

// topicLeaders is the result of one metadata read.
type topicLeaders struct {
	id         [16]byte
	partitions map[int32]kmsg.MetadataResponseTopicPartition
	read       int // number of this read
	at         time.Time
}

// NewLeaders returns the leaders of a client's cluster.
func NewLeaders(client *kgo.Client) *Leaders {
	l := &Leaders{
		client: client, turn: make(chan struct{}, 1), topics: map[string]topicLeaders{},
		lists: map[listTarget]*Joint[int32, struct{}, int64]{}, checks: map[checkTarget]*Joint[int32, int64, struct{}]{},
	}
	l.turn <- struct{}{}
	return l
}

// listOffset asks a leader for an offset of a partition. The error is a noResponseError if the leader
// did not respond.
func (l *Leaders) listOffset(ctx context.Context, target listTarget, partition int32) (int64, error) {
	j := jointOf(&l.jointMu, l.lists, target)
	return j.Ask(ctx, partition, struct{}{}, func(partitions map[int32]struct{}) map[int32]Answer[int64] {
		topic := kmsg.NewListOffsetsRequestTopic()
		topic.Topic = target.topic
		for n := range partitions {
			partition := kmsg.NewListOffsetsRequestTopicPartition()
			partition.Partition, partition.Timestamp = n, target.timestamp
			topic.Partitions = append(topic.Partitions, partition)
		}
		req := kmsg.NewPtrListOffsetsRequest()
		req.IsolationLevel = target.isolation
		req.Topics = append(req.Topics, topic)
		resp, err := req.RequestWith(context.Background(), l.client.Broker(int(target.leader)))
		answers := map[int32]Answer[int64]{}
		if err != nil {
			return sameAnswer(partitions, answers, &noResponseError{err})
		}
		for i := range resp.Topics {
			for _, p := range resp.Topics[i].Partitions {
				answers[p.Partition] = Answer[int64]{p.Offset, kerr.ErrorForCode(p.ErrorCode)}
			}
		}
		return answers
	})
}

// checkID asks a leader whether its topic has the id that the reader knows. It fetches by that id at
// the end of the partition, which returns no records, and returns the error of the fetch.
func (l *Leaders) checkID(ctx context.Context, r *Reader, end int64) error {
	leader := r.leader // r.leader may have changed by the time the request is sent
	j := jointOf(&l.jointMu, l.checks, checkTarget{leader, r.topicID})
	_, err := j.Ask(ctx, r.Partition, end, func(ends map[int32]int64) map[int32]Answer[struct{}] {
		req := r.request(end, 1)
		req.MaxWaitMillis, req.MinBytes = 0, 0
		topic := &req.Topics[0]
		topic.Partitions = topic.Partitions[:0]
		for n, end := range ends {
			topic.Partitions = append(topic.Partitions, fetchPartition(n, end, 1))
		}
		resp, err := req.RequestWith(context.Background(), l.client.Broker(int(leader)))
		answers := map[int32]Answer[struct{}]{}
		if err != nil {
			return sameAnswer(ends, answers, &noResponseError{err})
		}
		if err := kerr.ErrorForCode(resp.ErrorCode); err != nil {
			sameAnswer(ends, answers, err)
		}
		for i := range resp.Topics {
			for j := range resp.Topics[i].Partitions {
				if err := kerr.ErrorForCode(resp.Topics[i].Partitions[j].ErrorCode); err != nil || resp.ErrorCode == 0 {
					answers[resp.Topics[i].Partitions[j].Partition] = Answer[struct{}]{Err: err}
				}
			}
		}
		return answers
	})
	return err
}

// sameAnswer answers all questions with the same error.
func sameAnswer[Q, A any](asks map[int32]Q, answers map[int32]Answer[A], err error) map[int32]Answer[A] {
	for n := range asks {
		answers[n] = Answer[A]{Err: err}
	}
	return answers
}

// noResponseError is the error of a request to which no response came.
type noResponseError struct{ error }

func (e *noResponseError) Unwrap() error { return e.error }

// find returns metadata of a topic that is newer than the read with the number after. It reads the
// metadata again if the known metadata is too old or has another topic id.
func (l *Leaders) find(ctx context.Context, topic string, id [16]byte, after int) (topicLeaders, error) {
	select {
	case <-l.turn:
	case <-ctx.Done():
		return topicLeaders{}, ctx.Err()
	}
	defer func() { l.turn <- struct{}{} }()
	known, ok := l.topics[topic]
	if ok && known.read > after && known.id == id && time.Since(known.at) < leadersMaxAge {
		return known, nil
	}
	detail, err := l.read(ctx, topic)
	if err != nil {
		return topicLeaders{}, err
	}
	l.reads++
	known = topicLeaders{id: detail.TopicID, partitions: map[int32]kmsg.MetadataResponseTopicPartition{}, read: l.reads, at: time.Now()}
	for _, p := range detail.Partitions {
		known.partitions[p.Partition] = p
	}
	l.topics[topic] = known
	return known, nil
}

// read requests the metadata of a topic from a broker. The admin client would return the client's
// cached metadata, which may name the leader that failed, or a former topic of that name.
func (l *Leaders) read(ctx context.Context, topic string) (*kmsg.MetadataResponseTopic, error) {
	of := kmsg.NewMetadataRequestTopic()
	of.Topic = &topic
	req := kmsg.NewPtrMetadataRequest()
	req.Topics = append(req.Topics, of)
	resp, err := req.RequestWith(ctx, l.client)
	if err != nil {
		return nil, err
	}
	if len(resp.Topics) != 1 {
		return nil, kerr.UnknownTopicOrPartition
	}
	return &resp.Topics[0], kerr.ErrorForCode(resp.Topics[0].ErrorCode)
}

// leader returns the id of the broker that leads a partition.
func (t *topicLeaders) leader(partition int32) (int32, error) {
	p, ok := t.partitions[partition]
	if !ok {
		return 0, kerr.UnknownTopicOrPartition
	}
	if err := kerr.ErrorForCode(p.ErrorCode); err != nil {
		return 0, err
	}
	if p.Leader < 0 {
		return 0, kerr.LeaderNotAvailable
	}
	return p.Leader, nil
}

// findLeader sets the leader of the reader's partition, unless it is known. The metadata that it uses
// is newer than the metadata that named the previous leader.
func (r *Reader) findLeader(ctx context.Context) error {
	if r.leader >= 0 {
		return nil
	}
	known, err := r.leaders.find(ctx, r.Topic, r.topicID, r.metadata)
	if err != nil {
		return fmt.Errorf("find the leader of %s/%d: %w", r.Topic, r.Partition, Denied(err, "Describe", ResourceTopic, r.Topic))
	}
	r.metadata = known.read
	if known.id != r.topicID {
		return r.recreated()
	}
	leader, err := known.leader(r.Partition)
	if err != nil {
		return fmt.Errorf("find the leader of %s/%d: %w", r.Topic, r.Partition, err)
	}
	r.leader = leader
	return nil
}
