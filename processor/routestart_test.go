package processor

import (
	"context"
	"log/slog"
	"slices"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"oncebus/processor/app"
	"oncebus/processor/kafkatest/embedded"
	"oncebus/processor/restore"
)

// heldManifest is a process whose manifest topic accepts no record until release is closed, and one partition of
// which waits for a decision.
type heldManifest struct {
	*routeStarts

	id             app.TaskID
	asked, release chan struct{}
}

func newHeldManifest(t *testing.T) *heldManifest {
	t.Helper()
	cluster := embedded.Start(t)
	cluster.CreateTopic("app-manifest", 1)
	h := &heldManifest{id: app.TaskID{Topic: "raw", Partition: 3}, asked: make(chan struct{}, 9), release: make(chan struct{})}
	cluster.Intercept(func(kmsg.Request) (kmsg.Response, error, bool) {
		h.asked <- struct{}{}
		cluster.SleepControl(func() { <-h.release })
		return nil, nil, false
	}, kmsg.Produce)
	listed, err := cluster.Admin().ListTopics(t.Context(), "app-manifest")
	if err != nil {
		t.Fatal(err)
	}
	topology := &app.Topology{Manifest: "app-manifest", Topics: map[string]app.Topic{"app-manifest": {ID: listed["app-manifest"].ID, Partitions: 1}}}
	s := &shared{log: slog.New(slog.DiscardHandler), board: newBoard(), restores: restore.NewMetrics(prometheus.NewRegistry())}
	s.adopt(&edition{rt: &app.App{Topology: topology}, source: &restore.Source{Client: cluster.Client()}, superseded: make(chan struct{})})
	h.routeStarts = newRouteStarts(s)
	h.waiting[h.id] = h.refused()
	return h
}

func (h *heldManifest) refused() *waitingPartition {
	return &waitingPartition{facts: routeFacts{end: 9}, refusal: app.Refusal{Topic: h.id.Topic, Partition: h.id.Partition, Facts: "facts", Ways: []app.Way{app.FromOffset}}}
}

// decideDuring decides about the partition, and calls meanwhile once the write waits for the manifest topic.
func (h *heldManifest) decideDuring(t *testing.T, decisions *app.Decisions, meanwhile func()) (some bool) {
	t.Helper()
	decided := make(chan bool)
	go func() { decided <- h.decide(t.Context(), decisions) }()
	<-h.asked
	if h.mu.TryLock() {
		h.mu.Unlock()
		meanwhile()
	} else {
		t.Error("a rebalance would wait for a write to the manifest topic")
	}
	close(h.release)
	return <-decided
}

// TestRebalanceWaitsForNoRefusalRow covers the row of a refusal that is not listed yet, because the manifest topic
// does not accept it, while the partition moves on to another process. The row that was written late must be removed
// again, because the next owner may have started without a refusal.
func TestRebalanceWaitsForNoRefusalRow(t *testing.T) {
	t.Parallel()
	h := newHeldManifest(t)
	some := h.decideDuring(t, &app.Decisions{}, func() { h.drop(map[string][]int32{h.id.Topic: {h.id.Partition}}) })
	if decided := h.takeDecided(); some || len(decided) > 0 {
		t.Errorf("decided on %v, want none", decided)
	}
	if topology := h.newest().rt.Topology; !t.Failed() {
		decisions, err := app.ReadDecisions(t.Context(), h.newest().source.Client, topology, nil)
		if err != nil || len(decisions.Refusals) > 0 {
			t.Errorf("the refusals %v are listed, %v; want none", decisions.Refusals, err)
		}
	}
}

// TestDecisionIsOnTheRefusalThatWaits covers an operator's decision while the manifest topic accepts the removal of
// the row late. The decision applies unless the partition was revoked or refused again meanwhile.
func TestDecisionIsOnTheRefusalThatWaits(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		meanwhile func(*heldManifest)
		want      bool
	}{
		"waits":   {func(*heldManifest) {}, true},
		"revoked": {func(h *heldManifest) { h.drop(map[string][]int32{h.id.Topic: {h.id.Partition}}) }, false},
		"refused again": {func(h *heldManifest) {
			h.mu.Lock()
			h.waiting[h.id] = h.refused()
			h.mu.Unlock()
		}, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := newHeldManifest(t)
			accepted := &app.Decisions{Acceptances: map[string]app.Acceptance{h.id.String(): {Facts: "facts", Way: app.FromOffset, Offset: 7}}}
			some := h.decideDuring(t, accepted, func() { c.meanwhile(h) })
			start, ok := h.takeDecided()[h.id]
			if some != c.want || ok != c.want || ok && start.at != 7 {
				t.Errorf("decided %v, on %+v (%v), want %v and offset 7", some, start, ok, c.want)
			}
		})
	}
}

// TestWaitingPartitionsOfOthersAreUnassigned protects that a worker also forgets inputs that the group took in
// silence (hazard A8) while the inputs waited for a decision, for a leader, or for the worker to go on.
func TestWaitingPartitionsOfOthersAreUnassigned(t *testing.T) {
	t.Parallel()
	h := newHeldManifest(t)
	at := func(p int32) app.TaskID { return app.TaskID{Topic: h.id.Topic, Partition: p} }
	kept := map[app.TaskID]bool{}
	for n, wait := range []func(app.TaskID){
		func(id app.TaskID) { h.waiting[id] = h.refused() },
		func(id app.TaskID) { h.awaitLeader(id, kgo.NewOffset().At(3), kerr.LeaderNotAvailable) },
		func(id app.TaskID) { h.decided[id] = decidedStart{} },
	} {
		lost, stays := at(int32(10+n)), at(int32(20+n))
		wait(lost)
		wait(stays)
		kept[stays] = true
	}
	kept[h.id] = true
	gone := unassigned(h.ids(), func() map[app.TaskID]bool { return kept })
	slices.Sort(gone[h.id.Topic])
	if want := []int32{10, 11, 12}; !slices.Equal(gone[h.id.Topic], want) {
		t.Errorf("%v are unassigned, want %v", gone, want)
	}
}

// TestDecisionWaitsForThePause covers a partition that gets a leader before the client has paused it. A pause that
// came after the worker let the partition go on would leave the partition paused.
func TestDecisionWaitsForThePause(t *testing.T) {
	t.Parallel()
	h := newHeldManifest(t)
	offsets := map[string]map[int32]kgo.Offset{h.id.Topic: {h.id.Partition: kgo.NewOffset().At(0)}}
	h.place(offsets, true)
	h.decided[h.id] = decidedStart{at: 7}
	if early := h.takeDecided(); len(early) > 0 {
		t.Errorf("the worker goes on at %+v before its client has paused the partition", early)
	}
	h.place(offsets, false)
	if start := h.takeDecided()[h.id]; start.at != 7 {
		t.Errorf("the worker goes on at %d, want 7", start.at)
	}
}

// TestAssignmentForgetsTheFormerOne covers a partition that waits for a leader, is lost in silence (hazard A8) and
// comes back. If the worker went on from the offset of the former assignment, it would route records that another
// process may have routed since.
func TestAssignmentForgetsTheFormerOne(t *testing.T) {
	t.Parallel()
	h := newHeldManifest(t)
	h.remove(h.id)
	h.awaitLeader(h.id, kgo.NewOffset().At(3), kerr.LeaderNotAvailable)
	u := h.unlisted[h.id]
	h.admin = kadm.NewClient(h.newest().source.Client)
	offsets := map[string]map[int32]kgo.Offset{h.id.Topic: {h.id.Partition: kgo.NewOffset().At(7)}}
	ctx, cancel := context.WithCancel(t.Context())
	cancel() // nothing else is known yet
	if _, err := h.resolve(ctx, offsets, nil, nil); err == nil {
		t.Fatal("the partition was resolved without a request")
	}
	facts := routeFacts{group: 3, end: 9, pinned: true, divergence: -1}
	if h.returned(t.Context(), h.id, &facts, u, &app.Decisions{}) {
		t.Errorf("the partition goes on at %+v, as of the former assignment", h.takeDecided())
	}
}

// TestPartitionThatMovedOnIsNotDecided covers a partition that waits for a leader and gets one. While this process
// decides where the partition goes on, another process takes it and may route more, so that what this process knows
// is outdated.
func TestPartitionThatMovedOnIsNotDecided(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		group int64 // offset of the group; 99 is above the end, and needs a decision
		again bool  // the partition comes back without a leader
	}{"goes on": {group: 3}, "is refused": {group: 99}, "comes back": {group: 3, again: true}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := newHeldManifest(t)
			h.remove(h.id)
			h.awaitLeader(h.id, kgo.NewOffset().At(c.group), kerr.LeaderNotAvailable)
			facts := routeFacts{group: c.group, end: 9, pinned: true, divergence: -1}
			refusal := h.refused().refusal
			listed := &app.Decisions{Refusals: map[string]app.Refusal{h.id.String(): refusal}} // its row is to be removed
			u, decided := h.unlisted[h.id], make(chan bool)
			go func() { decided <- h.returned(t.Context(), h.id, &facts, u, listed) }()
			<-h.asked
			h.drop(map[string][]int32{h.id.Topic: {h.id.Partition}})
			if c.again {
				h.awaitLeader(h.id, kgo.NewOffset().At(7), kerr.LeaderNotAvailable)
			}
			close(h.release)
			if some, starts := <-decided, h.takeDecided(); some || len(starts) > 0 || len(h.waiting) > 0 {
				t.Errorf("decided %v, goes on at %v, waits %v; want nothing", some, starts, h.waiting)
			}
			if u := h.unlisted[h.id]; (u != nil) != c.again || u != nil && u.at.EpochOffset().Offset != 7 {
				t.Errorf("waits for a leader: %v", u)
			}
			decisions, err := app.ReadDecisions(t.Context(), h.newest().source.Client, h.newest().rt.Topology, nil)
			if err != nil || len(decisions.Refusals) > 0 {
				t.Errorf("the refusals %v are listed, %v; want none", decisions.Refusals, err)
			}
		})
	}
}

// TestTaskThatArrivesMeanwhileIsKept covers a task that the group gives to a worker while the worker looks which of
// its tasks were taken in silence. If the worker dropped the task then, nothing would ever open it again.
func TestTaskThatArrivesMeanwhileIsKept(t *testing.T) {
	t.Parallel()
	lost, stays, arrives := app.TaskID{Topic: "t", Partition: 1}, app.TaskID{Topic: "t", Partition: 2}, app.TaskID{Topic: "t", Partition: 3}
	s := &taskSet{shared: &shared{board: newBoard()}, wake: func() {}, inbox: []assignment{{id: lost}, {id: stays}}}
	s.closeUnassigned(func() map[app.TaskID]bool {
		s.assigned([]assignment{{id: arrives}})
		return map[app.TaskID]bool{stays: true} // as of before it arrived
	})
	if want := []assignment{{id: stays}, {id: arrives}}; !slices.Equal(s.inbox, want) {
		t.Errorf("%v are to be opened, want %v", s.inbox, want)
	}
}

// TestStoppedPartitionIsNotResumed covers a partition with a backlog that has lost records and waits for a decision.
// The pacer, which had paused the partition, leaves it paused once the tasks are no longer behind.
func TestStoppedPartitionIsNotResumed(t *testing.T) {
	t.Parallel()
	h := newHeldManifest(t)
	h.admin = kadm.NewClient(h.newest().source.Client)
	h.metrics = newMetrics(prometheus.NewRegistry())
	client := unusedClient(t)
	x := &transactions{shared: h.shared, client: client, starts: h.routeStarts, pacer: newPacer(h.shared, h.newest(), client), order: newTimeOrder(h.shared, h.newest().rt, nil, nil, nil, nil), schemas: newSchemaWaits(t.Context(), h.shared, func() {}), marks: app.NewMarks(h.newest().rt, app.NewHolds())}
	x.cfg.TransactionTimeout = time.Minute
	x.pacer.backlogs[h.id] = true
	lost := &kgo.FetchTopicPartition{Topic: h.id.Topic, FetchPartition: kgo.FetchPartition{Partition: h.id.Partition, Err: kerr.OffsetOutOfRange}}
	if err := x.stopLost(lost); err == nil {
		t.Error("a partition that lost records went on")
	}
	x.pacer.set(0, 1)
	if paused := client.PauseFetchPartitions(nil); len(paused[h.id.Topic]) != 1 {
		t.Errorf("paused: %v, want %v", paused, h.id)
	}
}
