package hanging

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// lookMax bounds one question to the leaders. If a partition has lost its leader, the client repeats the
// question within this time, and so reaches the new leader.
const lookMax = 2 * time.Second

// Partition is a partition of a topic.
type Partition struct {
	Topic  string
	Number int32
}

func (p Partition) String() string { return p.Topic + "/" + strconv.Itoa(int(p.Number)) }

// Open is a transaction that is open in a partition, according to the partition's leader.
type Open struct {
	Partition

	Producer int64
	Epoch    int16
	From     int64     // offset of its first record
	Written  time.Time // timestamp of its last record
}

func (o Open) String() string {
	return fmt.Sprintf("%s has an open transaction of producer %d (epoch %d) from offset %d, last written at %s",
		o.Partition, o.Producer, o.Epoch, o.From, o.Written.UTC().Format(time.RFC3339))
}

// Sight is what the leaders of partitions say about open transactions.
type Sight struct {
	Open []Open
	// Unseen has the partitions whose leader did not answer, and why.
	Unseen map[Partition]error
	// Denied has the topics that the user has no right to read, so that nothing is known about them.
	Denied map[string]bool
}

// Of returns those open transactions that belong to a producer id.
func (s *Sight) Of(producer int64) (open []Open) {
	for _, o := range s.Open {
		if o.Producer == producer {
			open = append(open, o)
		}
	}
	return open
}

// Unknown says that the leader of a partition did not answer (the first partition, if there are
// several); "" if all leaders answered.
func (s *Sight) Unknown() string {
	var first string
	for id, why := range s.Unseen {
		if text := fmt.Sprintf("the leader of %s does not answer (%v)", id, why); first == "" || text < first {
			first = text
		}
	}
	if n := len(s.Unseen) - 1; n > 0 {
		first += fmt.Sprintf(", and those of %d other partitions", n)
	}
	return first
}

// Look asks the leaders of partitions for open transactions. It needs the right to read their topics.
// It does not ask about topics in skip, and ignores topics that do not exist.
func Look(ctx context.Context, client *kgo.Client, partitions kadm.TopicsSet, skip map[string]bool) *Sight {
	s := &Sight{Unseen: map[Partition]error{}, Denied: map[string]bool{}}
	req := kmsg.NewPtrDescribeProducersRequest()
	for topic, numbers := range partitions {
		if skip[topic] || len(numbers) == 0 {
			continue
		}
		t := kmsg.NewDescribeProducersRequestTopic()
		t.Topic = topic
		for n := range numbers {
			t.Partitions = append(t.Partitions, n)
			s.Unseen[Partition{topic, n}] = kerr.LeaderNotAvailable
		}
		req.Topics = append(req.Topics, t)
	}
	if len(req.Topics) == 0 {
		return s
	}
	ctx, cancel := context.WithTimeout(ctx, lookMax)
	defer cancel()
	for _, shard := range client.RequestSharded(ctx, req) {
		if shard.Err != nil {
			s.fail(shard.Req.(*kmsg.DescribeProducersRequest), shard.Err)
			continue
		}
		s.add(shard.Resp.(*kmsg.DescribeProducersResponse))
	}
	return s
}

// fail records why the leaders in a request did not answer.
func (s *Sight) fail(req *kmsg.DescribeProducersRequest, err error) {
	for _, topic := range req.Topics {
		for _, n := range topic.Partitions {
			s.judge(Partition{topic.Topic, n}, err)
		}
	}
}

// add adds the answer of a leader.
func (s *Sight) add(resp *kmsg.DescribeProducersResponse) {
	for i := range resp.Topics {
		for _, p := range resp.Topics[i].Partitions {
			id := Partition{resp.Topics[i].Topic, p.Partition}
			s.judge(id, kerr.ErrorForCode(p.ErrorCode))
			for _, a := range p.ActiveProducers {
				if a.CurrentTxnStartOffset >= 0 {
					s.Open = append(s.Open, Open{id, a.ProducerID, int16(a.ProducerEpoch), a.CurrentTxnStartOffset, time.UnixMilli(a.LastTimestamp)})
				}
			}
		}
	}
}

// judge records the answer about a partition: an error, or nil.
func (s *Sight) judge(id Partition, err error) {
	switch {
	case err == nil, errors.Is(err, kerr.UnknownTopicOrPartition), errors.Is(err, kerr.UnknownTopicID):
		delete(s.Unseen, id)
	case errors.Is(err, kerr.TopicAuthorizationFailed):
		delete(s.Unseen, id)
		s.Denied[id.Topic] = true
	default:
		s.Unseen[id] = err
	}
}

// Describe names open transactions, but not more than three.
func Describe(open []Open) string {
	const most = 3
	var texts []string
	for _, o := range open[:min(most, len(open))] {
		texts = append(texts, o.String())
	}
	if n := len(open) - most; n > 0 {
		texts = append(texts, fmt.Sprintf("and %d more", n))
	}
	return strings.Join(texts, "; ")
}
