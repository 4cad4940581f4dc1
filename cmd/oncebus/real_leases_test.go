package main_test

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"oncebus/processor/wire"
)

// leaseRoutes are two routes with leases of a second: one names the group of its executor.
const leaseRoutes = `routes:
  - name: plain
    topics: [APP.plain.raw]
    mode: claim
    key: [{field: id}]
    window: 1h
    output: APP.plain.run
    outcomes: APP.plain.outcomes
    replies: APP.plain.replies
    lease: 1s
    dead_letter: APP.dead
  - name: grouped
    topics: [APP.grouped.raw]
    mode: claim
    key: [{field: id}]
    window: 1h
    output: APP.grouped.run
    outcomes: APP.grouped.outcomes
    replies: APP.grouped.replies
    lease: 1s
    executor_group: APP-executor
    dead_letter: APP.dead
`

// leases are the operations of one route.
type leases struct {
	*world
	route string
	sent  int
}

// send sends an event of an operation and waits until a task has judged it.
func (l *leases) send(id string) {
	l.t.Helper()
	l.sent++
	l.produce(&kgo.Record{Topic: l.topic(l.route + ".raw"), Key: fmt.Append(nil, "k-", l.sent), Timestamp: time.Now(), Value: fmt.Appendf(nil, `{"id":%q}`, id)})
	l.drained([]string{l.route + ".raw"}, []string{l.route + ".run"})
}

// runs returns the attempts at an operation that were dispatched.
func (l *leases) runs(id string) (runs []*kgo.Record) {
	l.t.Helper()
	for _, r := range l.output(l.route + ".run") {
		if strings.Contains(string(r.Value), fmt.Sprintf("%q", id)) {
			runs = append(runs, r)
		}
	}
	return runs
}

// begin dispatches an operation and returns its event.
func (l *leases) begin(id string) *kgo.Record {
	l.t.Helper()
	l.send(id)
	runs := l.runs(id)
	if len(runs) != 1 {
		l.t.Fatalf("operation %s was dispatched %d times", id, len(runs))
	}
	return runs[0]
}

// complete is the outcome of an event in a partition.
func (l *leases) complete(event *kgo.Record, partition int32) *kgo.Record {
	return &kgo.Record{Topic: l.topic(l.route + ".outcomes"), Partition: partition, Value: []byte("done"), Headers: []kgo.RecordHeader{
		{Key: wire.HeaderClaimToken, Value: []byte(headerOf(event, wire.HeaderClaimToken))}, {Key: wire.HeaderOutcome, Value: []byte("completed")},
	}}
}

// runsOnce sends a duplicate and fails if the operation was dispatched again.
func (l *leases) runsOnce(id string) {
	l.t.Helper()
	l.send(id)
	if n := len(l.runs(id)); n != 1 {
		l.t.Fatalf("operation %s was dispatched %d times", id, n)
	}
}

// runsAgain sends duplicates until the operation is dispatched again.
func (l *leases) runsAgain(id string) {
	l.t.Helper()
	eventually(l.t, "the next attempt at "+id, func(context.Context) error {
		l.send(id)
		if len(l.runs(id)) != 2 {
			return errNotYet
		}
		return nil
	})
}

// awaitProgress waits until these partitions of the outcomes are read for several leases
// from now.
func (l *leases) awaitProgress(partitions ...int) {
	l.t.Helper()
	over := time.Now().Add(3 * time.Second).UnixMilli()
	eventually(l.t, "the outcomes to be read", func(ctx context.Context) error {
		records, err := l.read(ctx, l.app+"-repartition", nil)
		if err != nil {
			return err
		}
		var known wire.Progress // of two workers, which read different partitions
		for _, r := range records {
			var env wire.Envelope
			if err := wire.ReadEnvelope(r, &env); err != nil {
				return err
			}
			if !env.IsProgress || r.Partition != 0 {
				continue
			}
			p, err := wire.DecodeProgress(r.Value)
			if err != nil {
				return err
			}
			known = known.Merge(&p, r.Timestamp.UnixMilli(), func(string) (int64, uint16) { return 1000, 0 })
		}
		for _, o := range known.Outcomes {
			for _, p := range partitions {
				if o.ReadTo[p] < over {
					return fmt.Errorf("partition %d of topic %d is read to %d, not to %d", p, o.Topic, o.ReadTo[p], over)
				}
			}
		}
		if len(known.Outcomes) < 2 {
			return errNotYet
		}
		return nil
	})
}

// TestRealLeases: what holds a lease on Apache Kafka, and what ends it.
func TestRealLeases(t *testing.T) {
	w := newWorld(t, leaseRoutes)
	w.createTopics(nil, "plain.raw", "grouped.raw", "plain.outcomes", "grouped.outcomes", "plain.run", "grouped.run")
	s := w.start("a")
	s.awaitReady()

	// An executor is away for longer than the lease, then commits the event and dies.
	l := &leases{world: w, route: "grouped"}
	away := l.begin("away")
	l.awaitProgress(0, 1, 2, 3, 4, 5)
	l.runsOnce("away")
	executor := l.consumer(kgo.ConsumerGroup(w.app+"-executor"), kgo.ConsumeTopics(w.topic("grouped.run")), kgo.DisableAutoCommit())
	for polled := 0; polled == 0; {
		polled = executor.PollFetches(t.Context()).NumRecords()
	}
	if err := executor.CommitUncommittedOffsets(t.Context()); err != nil {
		t.Fatal(err)
	}
	l.runsAgain("away")
	// The late outcome of the first attempt is refused.
	w.produce(l.complete(away, 0))

	// An executor dies in a transaction. The outcome of another one is behind it.
	l = &leases{world: w, route: "plain"}
	first, second := l.begin("first"), l.begin("second")
	dead := l.consumer(kgo.TransactionalID(w.app+"-dead"), kgo.TransactionTimeout(10*time.Minute), kgo.RecordPartitioner(kgo.ManualPartitioner()))
	if err := dead.BeginTransaction(); err != nil {
		t.Fatal(err)
	}
	if err := dead.ProduceSync(t.Context(), l.complete(second, 0)).FirstErr(); err != nil {
		t.Fatal(err)
	}
	w.produce(l.complete(first, 0))
	l.awaitProgress(1, 2, 3, 4, 5)
	l.runsOnce("first")
	l.runsOnce("second")
	if err := dead.EndTransaction(t.Context(), kgo.TryAbort); err != nil { // as the broker does at its timeout
		t.Fatal(err)
	}
	l.runsAgain("second") // control records and aborted records are no outcomes
	l.runsOnce("first")

	// A partition is added to the outcomes, and an executor uses it at once.
	added := l.begin("added")
	if _, err := w.admin.CreatePartitions(t.Context(), 1, w.topic("plain.outcomes")); err != nil {
		t.Fatal(err)
	}
	sender := l.consumer(kgo.RecordPartitioner(kgo.ManualPartitioner()), kgo.MetadataMinAge(100*time.Millisecond), kgo.UnknownTopicRetries(-1))
	eventually(t, "the new partition", func(ctx context.Context) error {
		return sender.ProduceSync(ctx, l.complete(added, realPartitions)).FirstErr()
	})
	l.awaitProgress(0, 1, 2, 3, 4, 5)
	l.runsOnce("added")

	// Restarts more often than the lease.
	l.begin("restarted")
	for range 3 {
		s.stop()
		s = w.start("a")
		s.awaitReady()
	}
	l.runsAgain("restarted")
	l.runsOnce("added")
	s.stop()
}

// TestRealPausedRouter: the outcomes stay unread for several leases, because a member of the
// routing stage's group has their partitions and reads nothing. No operation runs again.
func TestRealPausedRouter(t *testing.T) {
	w := newWorld(t, leaseRoutes)
	w.createTopics(nil, "plain.raw", "grouped.raw", "plain.outcomes", "grouped.outcomes", "plain.run", "grouped.run")
	s := w.start("a")
	s.awaitReady()
	l := &leases{world: w, route: "plain"}
	l.begin("before") // the routing stage has all partitions
	paused := make(chan []int32, 1)
	router := l.consumer(kgo.ConsumerGroup(w.app+"-route"), kgo.ConsumeTopics(w.topic("plain.outcomes")), kgo.DisableAutoCommit(),
		kgo.OnPartitionsAssigned(func(_ context.Context, _ *kgo.Client, assigned map[string][]int32) {
			if held := assigned[w.topic("plain.outcomes")]; len(held) > 0 {
				select {
				case paused <- held:
				default: // those of a later generation
				}
			}
		}))
	router.PauseFetchTopics(w.topic("plain.outcomes"))
	polling, stop := context.WithCancel(t.Context())
	var poller sync.WaitGroup
	poller.Go(func() {
		for polling.Err() == nil {
			router.PollFetches(polling)
		}
	})
	held := <-paused
	event := l.begin("paused")
	w.produce(l.complete(event, held[0]))
	for began := time.Now(); time.Since(began) < 5*time.Second; {
		l.runsOnce("paused")
	}
	stop()
	poller.Wait()
	router.Close() // leaves the group
	l.drained([]string{"plain.outcomes"}, []string{"plain.run"})
	l.runsOnce("paused")
	completed := 0
	for _, r := range l.output("plain.replies") {
		if headerOf(r, wire.HeaderClaimStatus) == "completed" {
			completed++
		}
	}
	if completed < 2 { // the first sender, and the duplicate after the outcome was read
		t.Errorf("%d replies with the result", completed)
	}
	l.runsAgain("before") // its lease ends, now that the outcomes are read
	s.stop()
}

// consumer returns a client that reads committed records from the start.
func (w *world) consumer(opts ...kgo.Opt) *kgo.Client {
	w.t.Helper()
	client, err := kgo.NewClient(append([]kgo.Opt{kgo.SeedBrokers(w.seeds...), kgo.FetchIsolationLevel(kgo.ReadCommitted()), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart())}, opts...)...)
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(client.Close)
	return client
}
