package hanging

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// A forgetful is a coordinator that has completed a transaction without the marker of partition 0 of
// topic t. It answers in place of the embedded broker, which forgets nothing.
type forgetful struct {
	mu      sync.Mutex
	state   string
	epoch   int16
	timeout int32
	added   bool // the partition is in the open transaction
	// marker is what ended the old records: "" while they are open.
	marker string
	// drops is how many more markers it drops; fails after how many requests it answers none.
	drops, fails int
	leaderless   int // questions to the leader without an answer
	requests     int
	produced     int // requests with records
	maxTimeout   int32
	// pending says that the offset of partition 0 is part of an open transaction, own that it is one
	// of this producer.
	pending, own   bool
	offsetsAdded   bool
	offsetsClosed  int // closings of the offsets
	offsetsVisible bool
}

// answers returns a client of an embedded broker whose coordinator is f.
func (f *forgetful) answers(t *testing.T) *Closer {
	t.Helper()
	topics := []string{"t"}
	if f.offsetsVisible {
		topics = append(topics, offsetsTopic)
	}
	cluster, err := kfake.NewCluster(kfake.NumBrokers(1), kfake.SeedTopics(1, topics...))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(cluster.Close)
	for key, answer := range map[kmsg.Key]func(kmsg.Request) kmsg.Response{
		kmsg.DescribeTransactions: f.describe, kmsg.DescribeProducers: f.producers, kmsg.InitProducerID: f.init,
		kmsg.AddPartitionsToTxn: f.add, kmsg.EndTxn: f.end, kmsg.Produce: f.produce,
		kmsg.OffsetFetch: f.offsets, kmsg.AddOffsetsToTxn: f.addOffsets,
	} {
		cluster.ControlKey(key.Int16(), func(req kmsg.Request) (kmsg.Response, error, bool) {
			cluster.KeepControl()
			f.mu.Lock()
			defer f.mu.Unlock()
			if f.requests++; f.fails > 0 && f.requests > f.fails {
				return nil, errors.New("the process is dead"), true
			}
			return answer(req), nil, true
		})
	}
	options := []kgo.Opt{kgo.SeedBrokers(cluster.ListenAddrs()...)}
	client, err := kgo.NewClient(options...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(client.Close)
	return &Closer{Client: client, Admin: kadm.NewClient(client), Options: options, Log: slog.New(slog.DiscardHandler), Waits: func(string) {}}
}

const forgetfulProducer = 7

func (f *forgetful) describe(req kmsg.Request) kmsg.Response {
	resp := req.ResponseKind().(*kmsg.DescribeTransactionsResponse)
	s := kmsg.NewDescribeTransactionsResponseTransactionState()
	s.TransactionalID, s.State, s.ProducerID, s.ProducerEpoch, s.TimeoutMillis = "id", f.state, forgetfulProducer, f.epoch, f.timeout
	resp.TransactionStates = append(resp.TransactionStates, s)
	return resp
}

func (f *forgetful) producers(req kmsg.Request) kmsg.Response {
	resp := req.ResponseKind().(*kmsg.DescribeProducersResponse)
	if asked := req.(*kmsg.DescribeProducersRequest).Topics[0].Topic; asked == offsetsTopic {
		open := kmsg.NewDescribeProducersResponseTopicPartitionActiveProducer()
		open.ProducerID, open.CurrentTxnStartOffset = forgetfulProducer+1, 12
		if f.own {
			open.ProducerID = forgetfulProducer
		}
		p := kmsg.NewDescribeProducersResponseTopicPartition()
		p.ActiveProducers = append(p.ActiveProducers, open)
		topic := kmsg.NewDescribeProducersResponseTopic()
		topic.Topic, topic.Partitions = asked, append(topic.Partitions, p)
		resp.Topics = append(resp.Topics, topic)
		return resp
	}
	p := kmsg.NewDescribeProducersResponseTopicPartition()
	if f.leaderless > 0 {
		f.leaderless--
		p.ErrorCode = kerr.RequestTimedOut.Code
	} else {
		open := kmsg.NewDescribeProducersResponseTopicPartitionActiveProducer()
		open.ProducerID, open.CurrentTxnStartOffset = forgetfulProducer, -1
		if f.marker == "" {
			open.CurrentTxnStartOffset = 41
		}
		p.ActiveProducers = append(p.ActiveProducers, open)
	}
	topic := kmsg.NewDescribeProducersResponseTopic()
	topic.Topic, topic.Partitions = "t", append(topic.Partitions, p)
	resp.Topics = append(resp.Topics, topic)
	return resp
}

func (f *forgetful) init(req kmsg.Request) kmsg.Response {
	init, resp := req.(*kmsg.InitProducerIDRequest), req.ResponseKind().(*kmsg.InitProducerIDResponse)
	switch {
	case init.ProducerID >= 0 && (init.ProducerID != forgetfulProducer || init.ProducerEpoch != f.epoch):
		resp.ErrorCode = kerr.ProducerFenced.Code
	case init.TransactionTimeoutMillis > f.maxTimeout:
		resp.ErrorCode = kerr.InvalidTransactionTimeout.Code
	case f.state == stateOngoing:
		f.write("abort")
		f.epoch++
		f.state = stateAborted
		resp.ErrorCode = kerr.ConcurrentTransactions.Code
	default:
		f.epoch++
		f.state, f.timeout, f.added = stateEmpty, init.TransactionTimeoutMillis, false
		resp.ProducerID, resp.ProducerEpoch = forgetfulProducer, f.epoch
	}
	return resp
}

// offsets answers that the offset of partition 0 is pending.
func (f *forgetful) offsets(req kmsg.Request) kmsg.Response {
	resp := req.ResponseKind().(*kmsg.OffsetFetchResponse)
	p := kmsg.NewOffsetFetchResponseGroupTopicPartition()
	if p.Offset = 5; f.pending {
		p.ErrorCode = kerr.UnstableOffsetCommit.Code
	}
	topic := kmsg.NewOffsetFetchResponseGroupTopic()
	topic.TopicID = req.(*kmsg.OffsetFetchRequest).Groups[0].Topics[0].TopicID
	topic.Topic, topic.Partitions = "t", append(topic.Partitions, p)
	group := kmsg.NewOffsetFetchResponseGroup()
	group.Group, group.Topics = "g", append(group.Topics, topic)
	resp.Groups = append(resp.Groups, group)
	return resp
}

func (f *forgetful) addOffsets(req kmsg.Request) kmsg.Response {
	add, resp := req.(*kmsg.AddOffsetsToTxnRequest), req.ResponseKind().(*kmsg.AddOffsetsToTxnResponse)
	if add.ProducerEpoch != f.epoch {
		resp.ErrorCode = kerr.ProducerFenced.Code
	} else {
		f.state, f.offsetsAdded = stateOngoing, true
	}
	return resp
}

func (f *forgetful) add(req kmsg.Request) kmsg.Response {
	add, resp := req.(*kmsg.AddPartitionsToTxnRequest), req.ResponseKind().(*kmsg.AddPartitionsToTxnResponse)
	p := kmsg.NewAddPartitionsToTxnResponseTopicPartition()
	if add.ProducerEpoch != f.epoch {
		p.ErrorCode = kerr.ProducerFenced.Code
	} else {
		f.state, f.added = stateOngoing, true
	}
	topic := kmsg.NewAddPartitionsToTxnResponseTopic()
	topic.Topic, topic.Partitions = "t", append(topic.Partitions, p)
	resp.Topics = append(resp.Topics, topic)
	return resp
}

func (f *forgetful) end(req kmsg.Request) kmsg.Response {
	end, resp := req.(*kmsg.EndTxnRequest), req.ResponseKind().(*kmsg.EndTxnResponse)
	switch {
	case end.ProducerEpoch != f.epoch:
		resp.ErrorCode = kerr.ProducerFenced.Code
	case f.state != stateOngoing:
		resp.ErrorCode = kerr.InvalidTxnState.Code
	case end.Commit:
		f.write("commit")
		f.state = stateCommitted
	default:
		f.write("abort")
		f.state = stateAborted
	}
	return resp
}

// write writes the marker of the partition, or drops it.
func (f *forgetful) write(marker string) {
	if f.offsetsAdded {
		f.offsetsAdded = false
		f.offsetsClosed++
		if f.drops > 0 {
			f.drops--
		} else if f.own {
			f.pending, f.own = false, false
		}
	}
	if f.drops > 0 {
		f.drops--
	} else if f.added && f.marker == "" {
		f.marker = marker
	}
	f.added = false
}

func closeOnce(ctx context.Context, s *Closer) error {
	return s.Close(ctx, &Last{ID: "id", Partitions: kadm.TopicsSet{"t": {0: {}}}})
}

// forgotten are the states in which a marker can be missing, and what it has to say.
var forgotten = []struct {
	state   string
	timeout int32
	marker  string
}{
	{stateCommitted, 5000, "commit"}, {stateAborted, 5000, "abort"},
	{stateEmpty, 5000, "abort"}, // InitProducerID aborted what was open
}

// TestClosedAsTheCoordinatorRecorded: what hangs gets the marker that was dropped, also if the next
// one is dropped too, the leader is away at first, or the broker allows no long timeout.
func TestClosedAsTheCoordinatorRecorded(t *testing.T) {
	t.Parallel()
	for _, c := range forgotten {
		for _, f := range []*forgetful{
			{maxTimeout: 900_000}, {maxTimeout: 900_000, drops: 2}, {maxTimeout: 900_000, leaderless: 1}, {maxTimeout: 6000},
		} {
			f.state, f.timeout, f.epoch = c.state, c.timeout, 3
			if err := closeOnce(t.Context(), f.answers(t)); err != nil {
				t.Fatal(err)
			}
			if f.marker != c.marker {
				t.Errorf("%+v: the records of a transaction in state %s got the marker %q, want %q", f, c.state, f.marker, c.marker)
			}
		}
	}
}

// TestClosingSurvivesACrashAtEachRequest: a process is killed after each of the requests with which it
// closes what hangs. The next one closes it as the coordinator recorded.
func TestClosingSurvivesACrashAtEachRequest(t *testing.T) {
	t.Parallel()
	for _, c := range forgotten {
		for fails := 1; fails <= 7; fails++ {
			t.Run(fmt.Sprint(c.state, fails), func(t *testing.T) {
				t.Parallel()
				f := &forgetful{state: c.state, timeout: c.timeout, epoch: 3, fails: fails, maxTimeout: 900_000}
				s := f.answers(t)
				ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
				defer cancel()
				_ = closeOnce(ctx, s)
				f.mu.Lock()
				f.fails = 0
				f.mu.Unlock()
				if err := closeOnce(t.Context(), s); err != nil {
					t.Fatal(err)
				}
				if f.state == stateOngoing && c.marker == "abort" {
					f.write("abort") // the next InitProducerID aborts it, or its timeout
				}
				if f.marker != c.marker {
					t.Errorf("killed after %d requests: marker %q, want %q", fails, f.marker, c.marker)
				}
			})
		}
	}
}

// TestTwoCloseTheSame: the worker and the watch of another process close the same transaction at
// the same time.
func TestTwoCloseTheSame(t *testing.T) {
	t.Parallel()
	for _, c := range forgotten {
		for range 20 {
			f := &forgetful{state: c.state, timeout: c.timeout, epoch: 3, maxTimeout: 900_000}
			s := f.answers(t)
			var both sync.WaitGroup
			for range 2 {
				both.Go(func() {
					if err := closeOnce(t.Context(), s); err != nil {
						t.Error(err)
					}
				})
			}
			both.Wait()
			if f.marker != c.marker {
				t.Fatalf("marker %q, want %q", f.marker, c.marker)
			}
		}
	}
}

// TestOpenTransactionIsLeftAlone: its producer or its timeout ends it.
func TestOpenTransactionIsLeftAlone(t *testing.T) {
	t.Parallel()
	f := &forgetful{state: stateOngoing, timeout: 5000, epoch: 3}
	if err := closeOnce(t.Context(), f.answers(t)); err != nil || f.marker != "" || f.epoch != 3 {
		t.Errorf("marker %q, epoch %d: %v", f.marker, f.epoch, err)
	}
}

// TestAwaitClosedSeesWhatHangs: a transaction that is open after its coordinator has completed it
// hangs, and one that its coordinator is about to end does not.
func TestAwaitClosedSeesWhatHangs(t *testing.T) {
	t.Parallel()
	last := &Last{ID: "id", Partitions: kadm.TopicsSet{"t": {0: {}}}}
	f := &forgetful{state: stateCommitted, timeout: 5000}
	if err := f.answers(t).AwaitClosed(t.Context(), last, forgetfulProducer, map[string]bool{}); !errors.Is(err, ErrHangs) {
		t.Errorf("%v, want ErrHangs", err)
	}
	f = &forgetful{state: "PrepareCommit", timeout: 5000}
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if err := f.answers(t).AwaitClosed(ctx, last, forgetfulProducer, map[string]bool{}); err == nil || errors.Is(err, ErrHangs) {
		t.Errorf("%v, want the end of the context", err)
	}
	f = &forgetful{state: stateCommitted, timeout: 5000, marker: "commit"}
	if err := f.answers(t).AwaitClosed(t.Context(), last, forgetfulProducer, map[string]bool{}); err != nil {
		t.Error(err)
	}
}

// TestPendingOffsetsOfAnotherProducerAreForeign: offsets stay pending. Close closes those of its own
// producer, also if a marker is dropped, and says which are of another one. An id
// that its coordinator does not know has none.
func TestPendingOffsetsOfAnotherProducerAreForeign(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		f        *forgetful
		closings int
		foreign  bool
	}{
		"seen to be another's":    {&forgetful{state: stateEmpty, offsetsVisible: true}, 0, true},
		"hidden, another's":       {&forgetful{state: stateEmpty}, 2, true},
		"seen to be its own":      {&forgetful{state: stateAborted, offsetsVisible: true, own: true}, 1, false},
		"hidden, a drop, its own": {&forgetful{state: stateAborted, own: true, drops: 1}, 2, false},
		"of an unknown id":        {&forgetful{state: "Dead"}, 0, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c.f.pending, c.f.marker, c.f.timeout, c.f.epoch, c.f.maxTimeout = true, "commit", 5000, 3, 900_000
			s := c.f.answers(t)
			offsets := map[string][]int32{"t": {0}}
			last := &Last{ID: "id", Partitions: kadm.TopicsSet{"t": {0: {}}}, TakesOver: true, Group: "g", Offsets: offsets}
			if err := s.Close(t.Context(), last); err != nil {
				t.Fatal(err)
			}
			want := map[string][]int32{}
			if c.foreign {
				want = offsets
			}
			if fmt.Sprint(last.Foreign) != fmt.Sprint(want) || c.f.offsetsClosed != c.closings {
				t.Errorf("foreign %v after %d closings, want %v after %d", last.Foreign, c.f.offsetsClosed, want, c.closings)
			}
		})
	}
}

// TestOffsetsPartition: where Kafka keeps the offsets of a group, with its 50 partitions.
func TestOffsetsPartition(t *testing.T) {
	t.Parallel()
	for group, want := range map[string]int32{"app-dedup": 18, "app-route": 17, "": 0, "polygenelubricants": 0} {
		if got := offsetsPartition(group, 50); got != want {
			t.Errorf("%s: %d, want %d", group, got, want)
		}
	}
}

// TestForeignOffsetsOfEarlierStepsStay: a later step finds another offset that is foreign.
func TestForeignOffsetsOfEarlierStepsStay(t *testing.T) {
	last := Last{Offsets: map[string][]int32{"a": {0, 1, 2}, "b": {0}}}
	last.isForeign(map[string][]int32{"a": {1}})
	last.isForeign(map[string][]int32{"a": {2}, "b": {0}})
	if got, want := fmt.Sprint(last.Foreign, last.Offsets), "map[a:[1 2] b:[0]] map[a:[0]]"; got != want {
		t.Errorf("foreign and left: %s, want %s", got, want)
	}
}
