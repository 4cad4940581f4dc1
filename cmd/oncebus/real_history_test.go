//go:build unix

package main_test

import (
	"cmp"
	"context"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"oncebus/processor/kafkatest"
)

const historyRoutes = `
routes:
  - name: r
    topics: [APP.raw, APP.other]
    key: [{field: id}]
    time: {field: at}
    window: 30m
    grace: 10m
    output: APP.unique
    duplicates: {to: APP.duplicates}
    dead_letter: APP.dead
`

// A past is what topics have at the first start of an app: ids in order over some days, of which a
// fifth have a copy in some partition within a minute. Each event is up to the grace out of order.
// All are younger than the retention of a topic by default, 7 days: an output has their timestamps.
type past struct {
	ids, copies int
	records     []*kgo.Record
}

// newPast makes the past of partitions, each with about half of the events of the one before.
func (w *world) newPast(ids int, span time.Duration, partitions ...kgo.Record) *past {
	rng, p := rand.New(rand.NewPCG(w.rng.Uint64(), 0)), &past{ids: ids}
	start := time.Now().Add(-span - time.Hour).UnixMilli()
	add := func(id int, at int64) {
		place := 0
		for place < len(partitions)-1 && rng.IntN(2) == 0 {
			place++
		}
		to := partitions[place]
		p.records = append(p.records, &kgo.Record{
			Topic: w.topic(to.Topic), Partition: to.Partition, Key: fmt.Appendf(nil, "h-%d", id), Timestamp: time.UnixMilli(at),
			Value: fmt.Appendf(nil, `{"id":"h-%d","at":%d}`, id, at-rng.Int64N(9*60_000)),
		})
	}
	for id := range ids {
		at := start + int64(id)*span.Milliseconds()/int64(ids)
		add(id, at)
		if rng.IntN(5) == 0 {
			p.copies++
			add(id, at+rng.Int64N(60_000))
		}
	}
	return p
}

// checkPast checks that each id came out once, each copy is a duplicate, and nothing is a dead letter.
func (w *world) checkPast(p *past) {
	w.t.Helper()
	checkEmitted(w.t, "h", p.ids, w.output("unique"))
	if n := len(w.output("duplicates")); n != p.copies {
		w.t.Errorf("%d duplicates, want %d", n, p.copies)
	}
	if dead := w.output("dead"); len(dead) > 0 {
		w.t.Errorf("%d dead letters; one of %s: %s", len(dead), headerOf(dead[0], "oncebus-source"), headerOf(dead[0], "oncebus-reason"))
	}
}

// TestRealHistory: three processes start for the first time on two topics with the history of six days,
// whose partitions are unequal. One of them is killed five times meanwhile.
func TestRealHistory(t *testing.T) {
	t.Parallel()
	w := newWorld(t, historyRoutes)
	w.createPartitions(4, nil, "raw")
	w.createPartitions(2, nil, "other")
	w.createTopics(nil, "unique", "duplicates", "dead")
	p := w.newPast(40_000, 6*24*time.Hour,
		kgo.Record{Topic: "raw"}, kgo.Record{Topic: "other"}, kgo.Record{Topic: "raw", Partition: 1},
		kgo.Record{Topic: "other", Partition: 1}, kgo.Record{Topic: "raw", Partition: 2}, kgo.Record{Topic: "raw", Partition: 3})
	w.produce(p.records...)
	victim, others := w.start("a"), []*service{w.start("b"), w.start("c")}
	for range 5 {
		victim.awaitReady()
		victim.kill()
		victim = w.start("a")
	}
	w.drained([]string{"raw", "other"}, []string{"unique", "duplicates", "dead"})
	w.checkPast(p)
	for _, s := range append(others, victim) {
		s.stop()
	}
}

// TestRealInputWithoutALeader: the broker of one of three input partitions goes away, and the others
// go on by far more than window and grace. What the producers of that partition hold back until it has
// a leader again is not late.
func TestRealInputWithoutALeader(t *testing.T) {
	t.Parallel()
	c := kafkatest.StartNodes(t, 3)
	w := newWorldAt(t, historyRoutes, c.Seeds(), c.Admin(), false)
	w.createOn("raw", map[string]string{"min.insync.replicas": "1"}, []int32{1}, []int32{2}, []int32{3})
	w.createPartitions(2, nil, "other")
	w.createTopics(nil, "unique", "duplicates", "dead")
	p := w.newPast(6000, 6*24*time.Hour, kgo.Record{Topic: "raw"}, kgo.Record{Topic: "raw", Partition: 1}, kgo.Record{Topic: "raw", Partition: 2})
	s := w.start("a")
	s.awaitReady()
	w.produce(p.records[:1000]...)
	w.drained([]string{"raw", "other"}, nil)
	away := c.Brokers()[2]
	if err := away.Kill(); err != nil {
		t.Fatal(err)
	}
	var there, held []*kgo.Record
	for _, r := range p.records[1000:] {
		if r.Partition == 2 {
			held = append(held, r)
		} else {
			there = append(there, r)
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), realDeadline)
	defer cancel()
	sent := make(chan error, 1)
	go func() { sent <- w.producer.ProduceSync(ctx, held...).FirstErr() }()
	w.produce(there...)
	w.awaitRouted(0, 1)
	s.stop() // a process that starts meanwhile takes the others, too
	s = w.start("a")
	for _, r := range there[len(there)-5:] {
		w.produce(&kgo.Record{Topic: r.Topic, Partition: r.Partition, Key: r.Key, Value: r.Value, Timestamp: r.Timestamp})
		p.copies++
	}
	w.awaitRouted(0, 1)
	if err := away.Restart(ctx); err != nil {
		t.Fatal(err)
	}
	if err := <-sent; err != nil {
		t.Fatal(err)
	}
	w.drained([]string{"raw", "other"}, []string{"unique", "duplicates", "dead"})
	w.checkPast(p)
	s.stop()
}

// awaitRouted waits until these partitions of the topic raw are routed, while others have no leader.
func (w *world) awaitRouted(partitions ...int32) {
	w.t.Helper()
	eventually(w.t, "partitions to be routed", func(ctx context.Context) error {
		committed, err := w.committed(ctx)
		if err != nil {
			return err
		}
		listed, err := w.admin.ListEndOffsets(ctx, w.topic("raw"))
		for _, p := range partitions {
			end, ok := listed.Lookup(w.topic("raw"), p)
			if at := committed[w.topic("raw")][p]; !ok || end.Err != nil || at < end.Offset {
				return fmt.Errorf("partition %d is routed to %d of %d: %w", p, at, end.Offset, cmp.Or(end.Err, err))
			}
		}
		return nil
	})
}

// createOn creates a topic with these settings, and a partition on each of these lists of brokers.
func (w *world) createOn(name string, settings map[string]string, replicas ...[]int32) {
	w.t.Helper()
	topic := kmsg.NewCreateTopicsRequestTopic()
	topic.Topic, topic.NumPartitions, topic.ReplicationFactor = w.topic(name), -1, -1
	for partition, brokers := range replicas {
		assigned := kmsg.NewCreateTopicsRequestTopicReplicaAssignment()
		assigned.Partition, assigned.Replicas = int32(partition), brokers
		topic.ReplicaAssignment = append(topic.ReplicaAssignment, assigned)
	}
	for key, value := range settings {
		config := kmsg.NewCreateTopicsRequestTopicConfig()
		config.Name, config.Value = key, &value
		topic.Configs = append(topic.Configs, config)
	}
	req := kmsg.NewPtrCreateTopicsRequest()
	req.Topics = append(req.Topics, topic)
	resp, err := req.RequestWith(w.t.Context(), w.producer)
	if err == nil {
		err = kerr.ErrorForCode(resp.Topics[0].ErrorCode)
	}
	if err != nil {
		w.t.Fatalf("create %s: %v", name, err)
	}
}
