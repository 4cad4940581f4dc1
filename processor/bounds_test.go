package processor_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"oncebus/processor/kafka"
	"oncebus/processor/kafkatest/embedded"
)

// requestCounter counts the requests of a client and the bytes of their responses.
type requestCounter struct {
	mu       sync.Mutex
	requests map[kmsg.Key]int
	bytes    map[kmsg.Key]int
}

func newRequestCounter() *requestCounter {
	return &requestCounter{requests: map[kmsg.Key]int{}, bytes: map[kmsg.Key]int{}}
}

func (c *requestCounter) OnBrokerRead(_ kgo.BrokerMetadata, key int16, read int, _, _ time.Duration, _ error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.requests[kmsg.Key(key)]++
	c.bytes[kmsg.Key(key)] += read
}

// take returns the counts and resets them.
func (c *requestCounter) take() (requests, bytes map[kmsg.Key]int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	requests, bytes = c.requests, c.bytes
	c.requests, c.bytes = map[kmsg.Key]int{}, map[kmsg.Key]int{}
	return requests, bytes
}

// boundsOfAll lets readers of all partitions of a new topic list their bounds at the same time, and returns the
// number of requests and the bytes of their responses.
func boundsOfAll(t *testing.T, partitions int32) (requests, bytes map[kmsg.Key]int) {
	cluster := embedded.Start(t)
	cluster.CreateTopic("log", partitions)
	meta, err := cluster.Admin().Metadata(t.Context(), "log")
	if err != nil {
		t.Fatal(err)
	}
	counter := newRequestCounter()
	client := cluster.Client(kgo.WithHooks(counter))
	if err := client.Ping(t.Context()); err != nil {
		t.Fatal(err)
	}
	counter.take()
	leaders := kafka.NewLeaders(client)
	var wg sync.WaitGroup
	for partition := range partitions {
		wg.Go(func() {
			start, end, err := leaders.NewReader("log", meta.Topics["log"].ID, partition).Bounds(t.Context())
			if start != 0 || end != 0 || err != nil {
				t.Errorf("partition %d: %d to %d, %v", partition, start, end, err)
			}
		})
	}
	wg.Wait()
	return counter.take()
}

// TestBoundsOfAPartitionCostNoMoreInATopicOfMany protects that the bounds of a partition cost no more requests in a
// topic with many partitions. Each task lists the bounds of its changelog and of its input, and tasks that list them
// at the same time share requests.
func TestBoundsOfAPartitionCostNoMoreInATopicOfMany(t *testing.T) {
	t.Parallel()
	const few, many = 1, 64
	_, small := boundsOfAll(t, few)
	requests, large := boundsOfAll(t, many)
	for key, most := range map[kmsg.Key]int{kmsg.Metadata: 1, kmsg.ListOffsets: 2 * many, kmsg.Fetch: many} {
		if n := requests[key]; n < 1 || n > most {
			t.Errorf("%d tasks send %d requests %s, want 1 to %d", many, n, key.Name(), most)
		}
	}
	for _, key := range []kmsg.Key{kmsg.ListOffsets, kmsg.Fetch} {
		if small[key]/few < large[key]/many {
			t.Errorf("responses %s have %d bytes a task of %d, %d of %d", key.Name(), small[key]/few, few, large[key]/many, many)
		}
	}
}

// TestBoundsFollowALeaderThatMoves lets a partition move, so that the leader which the readers share refuses.
func TestBoundsFollowALeaderThatMoves(t *testing.T) {
	t.Parallel()
	cluster := embedded.Start(t)
	cluster.CreateTopic("log", 1)
	counter := newRequestCounter()
	client := cluster.Client(kgo.WithHooks(counter))
	meta, err := kadm.NewClient(client).Metadata(t.Context(), "log")
	if err != nil {
		t.Fatal(err)
	}
	leaders := kafka.NewLeaders(client)
	bounds := func() {
		if _, _, err := leaders.NewReader("log", meta.Topics["log"].ID, 0).Bounds(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	bounds()
	counter.take()
	bounds()
	if requests, _ := counter.take(); requests[kmsg.Metadata] != 0 {
		t.Errorf("a second reader sent %d metadata requests", requests[kmsg.Metadata])
	}
	var refused bool
	cluster.Intercept(func(req kmsg.Request) (kmsg.Response, error, bool) {
		if refused {
			return nil, nil, false
		}
		refused = true
		asked := req.(*kmsg.ListOffsetsRequest)
		resp := asked.ResponseKind().(*kmsg.ListOffsetsResponse)
		topic := kmsg.NewListOffsetsResponseTopic()
		topic.Topic = "log"
		partition := kmsg.NewListOffsetsResponseTopicPartition()
		partition.ErrorCode = kerr.NotLeaderForPartition.Code
		topic.Partitions = append(topic.Partitions, partition)
		resp.Topics = append(resp.Topics, topic)
		return resp, nil, true
	}, kmsg.ListOffsets)
	bounds()
	if requests, _ := counter.take(); !refused || requests[kmsg.Metadata] != 1 {
		t.Errorf("refused: %v, and %d metadata requests, want 1", refused, requests[kmsg.Metadata])
	}
}

// TestBoundsOfARecreatedTopic protects that a reader never takes the offsets of another topic with the same name for
// its bounds, even if it knows the leader from before.
func TestBoundsOfARecreatedTopic(t *testing.T) {
	t.Parallel()
	cluster := embedded.Start(t)
	cluster.CreateTopic("log", 1)
	client := cluster.Client()
	admin := kadm.NewClient(client)
	meta, err := admin.Metadata(t.Context(), "log")
	if err != nil {
		t.Fatal(err)
	}
	reader := kafka.NewLeaders(client).NewReader("log", meta.Topics["log"].ID, 0)
	if _, _, err := reader.ListBounds(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := admin.DeleteTopics(context.WithoutCancel(t.Context()), "log"); err != nil {
		t.Fatal(err)
	}
	cluster.CreateTopic("log", 1)
	if _, _, err := reader.ListBounds(t.Context()); !errors.Is(err, kafka.ErrTruncated) {
		t.Errorf("bounds of the new topic: %v", err)
	}
}
