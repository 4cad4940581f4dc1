package kafka

import (
	"context"
	"fmt"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// leadersMaxAge is how long a reader may start with the leaders that another one found.
// It spans the restores of one rebalance. A leader that moved since costs a retry.
const leadersMaxAge = 5 * time.Second

// Leaders finds the leaders of partitions for the readers of one client. Metadata names
// all partitions of a topic, so readers of many partitions share one response.
type Leaders struct {
	client *kgo.Client
	turn   chan struct{} // guards topics; a channel, because simulations cannot see that a goroutine waits for a mutex
	topics map[string]topicLeaders
	reads  int // of metadata, to number them
}

// topicLeaders is what one read of metadata found.
type topicLeaders struct {
	id         [16]byte
	partitions map[int32]kmsg.MetadataResponseTopicPartition
	read       int // the number of this read
	at         time.Time
}

// NewLeaders returns the leaders of a client's cluster.
func NewLeaders(client *kgo.Client) *Leaders {
	l := &Leaders{client: client, turn: make(chan struct{}, 1), topics: map[string]topicLeaders{}}
	l.turn <- struct{}{}
	return l
}

// find returns metadata of a topic with this id that is newer than the read numbered
// after. It reads it again if the topic that it has is old or has another id.
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

// read requests the metadata of a topic. An admin client would return that which the
// client has, which may name the leader that failed, or a former topic.
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

// leader returns the leader of a partition.
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

// findLeader sets the leader of the reader's partition, unless it is known. The metadata
// is newer than that which named a leader before.
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
