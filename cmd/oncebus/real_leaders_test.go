//go:build unix

package main_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"oncebus/processor/kafkatest"
)

// leaderMoves is how often TestRealLeadersMove moves each leader.
const leaderMoves = 12

// TestRealLeadersMove: on three brokers every leader moves again and again in the middle of
// transactions: of inputs, of what the app writes, of its groups and of its transactions. A marker then
// has a later leader epoch than the records before it. Each event comes out once, no partition
// waits, and every partition of the output goes on after each move.
func TestRealLeadersMove(t *testing.T) {
	t.Parallel()
	c := kafkatest.StartNodes(t, 3)
	w := newWorldAt(t, seedRoutes, c.Seeds(), c.Admin(), false)
	w.createTopics(nil, seedInputs...)
	settings := []string{"WORKERS=2", "COMMIT_INTERVAL=300ms", "SESSION_TIMEOUT=20s"}
	a, b := w.start("a", settings...), w.start("b", settings...)
	a.awaitReady()
	b.awaitReady()
	sending, stopSending := context.WithCancel(t.Context())
	traffic := &seedTraffic{w: w, keys: 1}
	var sender sync.WaitGroup
	sender.Go(func() { traffic.run(sending, 500) })
	t.Cleanup(stopSending)
	w.awaitProgress()
	for n := range leaderMoves {
		w.moveLeaders(n)
		w.awaitProgress()
	}
	stopSending()
	sender.Wait()
	if traffic.err != nil {
		t.Fatal(traffic.err)
	}
	w.drained(seedInputs, seedOutputs)
	checkEmitted(t, "t", traffic.next, w.output("signals.unique"))
	for _, s := range []*service{a, b} {
		s.awaitReady()
		counts, err := s.metric(t.Context(), "oncebus_refused_partitions")
		for problem, n := range counts {
			if n > 0 {
				t.Errorf("%d partitions wait for a decision: %s", n, problem)
			}
		}
		if err != nil {
			t.Error(err)
		}
		s.stop()
	}
	for _, topic := range []string{w.topic("signals.unique"), w.app + "-repartition", w.app + "-repartition-changelog"} {
		later, err := w.laterMarkers(topic)
		if err != nil {
			t.Fatal(err)
		}
		t.Logf("%s: %d markers of a later leader than the records before them", topic, later)
		if later == 0 {
			t.Errorf("no leader of %s moved in the middle of a transaction", topic)
		}
	}
}

// moveLeaders lets another broker lead each partition of the cluster: it turns the list of its replicas
// and elects the first of them, so that no data moves.
func (w *world) moveLeaders(by int) {
	w.t.Helper()
	listed, err := w.admin.ListTopicsWithInternal(w.t.Context())
	if err != nil {
		w.t.Fatal(err)
	}
	var req kadm.AlterPartitionAssignmentsReq
	all := kadm.TopicsSet{}
	listed.EachPartition(func(p kadm.PartitionDetail) {
		turned := make([]int32, 0, 3)
		for n := range int32(3) {
			turned = append(turned, (int32(by)+p.Partition+n)%3+1)
		}
		req.Assign(p.Topic, p.Partition, turned)
		all.Add(p.Topic, p.Partition)
	})
	moved, err := w.admin.AlterPartitionAssignments(w.t.Context(), req)
	if err == nil {
		err = moved.Error()
	}
	if err != nil {
		w.t.Fatalf("turn the replicas: %v", err)
	}
	eventually(w.t, "the first replica of each partition to lead", func(ctx context.Context) error {
		elected, err := w.admin.ElectLeaders(ctx, kadm.ElectPreferredReplica, all)
		if err != nil {
			return err
		}
		for topic, partitions := range elected {
			for p, result := range partitions {
				if result.Err != nil && !errors.Is(result.Err, kerr.ElectionNotNeeded) {
					return fmt.Errorf("%s/%d: %w", topic, p, result.Err)
				}
			}
		}
		return nil
	})
}

// awaitProgress waits until each partition of the output has more committed records.
func (w *world) awaitProgress() {
	w.t.Helper()
	stable := func(ctx context.Context) (map[int32]int64, error) {
		ends, err := w.admin.ListCommittedOffsets(ctx, w.topic("signals.unique"))
		if err == nil {
			err = ends.Error()
		}
		at := map[int32]int64{}
		ends.Each(func(o kadm.ListedOffset) { at[o.Partition] = o.Offset })
		return at, err
	}
	var before map[int32]int64
	eventually(w.t, "each partition of the output to go on", func(ctx context.Context) error {
		now, err := stable(ctx)
		if err != nil {
			return err
		}
		if len(before) == 0 {
			before = now
		}
		for p, at := range now {
			if at == before[p] {
				return fmt.Errorf("partition %d stands at %d", p, at)
			}
		}
		return nil
	})
}

// laterMarkers returns how many markers of a topic have a later leader epoch than the record before them.
func (w *world) laterMarkers(topic string) (n int, err error) {
	ends, err := w.admin.ListCommittedOffsets(w.t.Context(), topic)
	if err == nil {
		err = ends.Error()
	}
	if err != nil {
		return 0, err
	}
	client, err := kgo.NewClient(kgo.SeedBrokers(w.seeds...), kgo.ConsumeTopics(topic), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()), kgo.KeepControlRecords())
	if err != nil {
		return 0, err
	}
	defer client.Close()
	ctx, cancel := context.WithTimeout(w.t.Context(), realDeadline)
	defer cancel()
	epochs := map[int32]int32{}
	left := map[int32]int64{}
	ends.Each(func(o kadm.ListedOffset) {
		if o.Offset > 0 {
			left[o.Partition] = o.Offset
		}
	})
	for len(left) > 0 {
		fetches := client.PollFetches(ctx)
		if err := fetches.Err(); err != nil {
			return 0, err
		}
		fetches.EachRecord(func(r *kgo.Record) {
			if before, seen := epochs[r.Partition]; seen && r.Attrs.IsControl() && r.LeaderEpoch > before {
				n++
			}
			epochs[r.Partition] = r.LeaderEpoch
			if r.Offset+1 >= left[r.Partition] {
				delete(left, r.Partition)
			}
		})
	}
	return n, nil
}
