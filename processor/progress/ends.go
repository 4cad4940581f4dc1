package progress

import (
	"context"
	"fmt"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"oncebus/processor/app"
	"oncebus/processor/kafka"
)

// partitionsOf returns how many partitions a topic has, and the topic's id. It asks the broker: since the
// client stored its metadata, an operator may have added a partition.
func partitionsOf(ctx context.Context, client *kgo.Client, topic string) (partitions int, id [16]byte, err error) {
	req := kmsg.NewPtrMetadataRequest()
	of := kmsg.NewMetadataRequestTopic()
	of.Topic = &topic
	req.Topics = append(req.Topics, of)
	resp, err := req.RequestWith(ctx, client)
	switch {
	case err != nil:
	case len(resp.Topics) != 1:
		err = kerr.UnknownTopicOrPartition
	default:
		err = kerr.ErrorForCode(resp.Topics[0].ErrorCode)
	}
	if err != nil {
		return 0, id, fmt.Errorf("count the partitions of %s: %w", topic, kafka.Denied(err, "Describe", kafka.ResourceTopic, topic))
	}
	return len(resp.Topics[0].Partitions), resp.Topics[0].TopicID, nil
}

// endsOf returns the high watermarks of a topic's partitions. With an error it returns the high watermarks that
// it could list.
func endsOf(ctx context.Context, client *kgo.Client, topic string) (map[int32]int64, error) {
	ctx, cancel := context.WithTimeout(ctx, app.ListMax)
	defer cancel()
	listed, err := kadm.NewClient(client).ListEndOffsets(ctx, topic)
	if err != nil {
		err = fmt.Errorf("list the ends of %s: %w", topic, err)
	}
	ends := map[int32]int64{}
	for partition, o := range listed[topic] {
		if o.Err != nil {
			err = fmt.Errorf("list the end of %s/%d: %w", topic, partition, o.Err)
			continue
		}
		ends[partition] = o.Offset
	}
	return ends, err
}

// reachedEnd keeps two of the observed ends of a partition: the oldest end that the worker has not reached yet,
// and the newest end. If it kept only the newest end, a worker that reads behind a busy producer would never
// reach any end.
type reachedEnd struct {
	tail          tail
	first, newest observedEnd
}

// observedEnd is the high watermark end of a partition. The observation began after the broker time at, in ms.
type observedEnd struct{ at, end int64 }

// newReachedEnd returns the state of a partition after its first observation.
func newReachedEnd(client *kgo.Client, topic string, id [16]byte, partition int32, observed observedEnd) *reachedEnd {
	return &reachedEnd{tail: tail{reader: kafka.NewReader(client, topic, id, partition), position: -1}, first: observed}
}

// advance sets readTo to the time of the newest observed end that the worker has reached at position. If the
// worker has reached no end, advance does not change readTo. This is sound because every record that was stored
// before a broker time is below any high watermark that is observed after that time.
func (p *reachedEnd) advance(ctx context.Context, position int64, newest observedEnd, readTo *int64) error {
	p.newest = newest
	if p.first.end > newest.end {
		p.first = newest // the partition was truncated: the worker can never reach the old end
	}
	for _, observed := range []observedEnd{p.first, p.newest} {
		reached, err := p.tail.reaches(ctx, position, observed.end)
		if err != nil || !reached {
			return err
		}
		*readTo = observed.at
		p.first = p.newest
	}
	return nil
}

// A tail moves the position of a worker over control records and aborted records. A consumer gets no such
// records from Kafka. So the worker's own position may stop before them, although no committed record is left.
type tail struct {
	reader   *kafka.Reader
	position int64 // the worker's position for which to was found
	to       int64 // no committed record is between position and to
}

// reaches reports whether a worker at position has read all committed records before end, and no transaction
// that began before end is open.
func (t *tail) reaches(ctx context.Context, position, end int64) (bool, error) {
	if t.position != position {
		t.position, t.to = position, max(position, 0)
	}
	for t.to < end {
		next, err := t.reader.SkipUncommitted(ctx, t.to, end)
		if err != nil {
			return false, err
		}
		if next == t.to {
			return false, nil // a committed record, or an open transaction
		}
		t.to = next
	}
	return true, nil
}
