package processor

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"oncebus/dedup/rules"
	"oncebus/processor/app"
	"oncebus/processor/judge"
	"oncebus/processor/kafkatest/embedded"
)

// TestBusyBrokerResponds protects that the board does not blame the broker for a late ping: hundreds of restores can
// delay a ping beyond its timeout. As long as other requests get responses, the process is not ready for another
// reason.
func TestBusyBrokerResponds(t *testing.T) {
	t.Parallel()
	began := time.Now()
	for name, c := range map[string]struct {
		ping      error
		responses []error // that other clients read during the ping
		up        bool
	}{
		"ping has a response":               {nil, nil, true},
		"no response at all":                {context.DeadlineExceeded, nil, false},
		"another client reads a response":   {context.DeadlineExceeded, []error{nil}, true},
		"another client's connection fails": {context.DeadlineExceeded, []error{io.EOF}, false},
		"credentials are refused":           {kerr.SaslAuthenticationFailed, []error{nil}, false},
	} {
		b := newBoard()
		for _, err := range c.responses {
			b.OnBrokerRead(kgo.BrokerMetadata{}, 0, 0, 0, 0, err)
		}
		if up := b.brokerResponds(c.ping, began); up != c.up {
			t.Errorf("%s: the broker responds: %v", name, up)
		}
		if b.brokerResponds(errors.New("timeout"), time.Now().Add(time.Second)) {
			t.Errorf("%s: a response before the ping counts", name)
		}
	}
}

// TestBoardSeesResponsesToAllClients protects that the options with which each client begins report its responses to
// the board.
func TestBoardSeesResponsesToAllClients(t *testing.T) {
	t.Parallel()
	cluster := embedded.Start(t)
	cfg := goodConfig()
	cfg.StateDir, cfg.Brokers = t.TempDir(), cluster.ListenAddrs()
	routes, err := rules.ParseRoutes("routes.yaml", []byte("routes: [{name: r, topics: [in], key: [{field: id}], window: 1h, output: out, dead_letter: dead}]"))
	if err != nil {
		t.Fatal(err)
	}
	p, err := New(cfg, routes, prometheus.NewRegistry(), slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	client, err := kgo.NewClient(append(p.baseOptions, kgo.ClientID("another"))...)
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	if err := client.Ping(t.Context()); err != nil {
		t.Fatal(err)
	}
	if !p.board.brokerResponds(context.DeadlineExceeded, began) {
		t.Error("the response to a client is not noted")
	}
}

// TestReadinessCountsRestoringTasks protects that an operator sees, after a kill with many partitions, that restores
// are in progress and how many.
func TestReadinessCountsRestoringTasks(t *testing.T) {
	t.Parallel()
	task := func(partition int32, state taskState, reason string) TaskState {
		id := app.TaskID{Topic: "in", Partition: partition}
		return TaskState{Task: id.String(), State: state.String(), Reason: reason, id: id}
	}
	b := newBoard()
	b.brokerUp.Store(true)
	b.addMember(&membership{name: "one-dedup-0", stage: app.StageDedup, topics: []string{"in"}})
	for _, c := range []struct {
		tasks []TaskState
		want  string
	}{
		{[]TaskState{task(0, running, ""), task(1, restoring, "")}, "task in/1 is restoring"},
		{[]TaskState{task(0, restoring, ""), task(1, restoring, ""), task(2, running, "")}, "task in/0 is restoring, one of 2 that do not run, of 3"},
		{[]TaskState{task(0, restoring, ""), task(1, waiting, "route x is unknown")}, "task in/1 is waiting, one of 2 that do not run, of 2: route x is unknown"},
		{[]TaskState{task(0, running, "")}, "worker one-dedup-0 is not in its group yet"},
	} {
		b.setTasks("one-dedup-0", c.tasks)
		if err := b.ready(nil); err == nil || err.Error() != c.want {
			t.Errorf("not ready: %v, want %s", err, c.want)
		}
	}
}

// TestReadinessWaitsForAllWorkersToHavePartitions covers a worker that joins after another worker of its process. It
// gets its partitions in a second rebalance, which interrupts the first worker.
func TestReadinessWaitsForAllWorkersToHavePartitions(t *testing.T) {
	t.Parallel()
	b := newBoard()
	b.brokerUp.Store(true)
	member := func(name, stage string, partitions ...int32) *membership {
		m := &membership{name: name, stage: stage, topics: []string{"in"}}
		m.reset()
		m.assign(map[string][]int32{"in": partitions})
		for _, p := range partitions {
			m.place(app.TaskID{Topic: "in", Partition: p})
		}
		b.addMember(m)
		return m
	}
	member("one-route-0", app.StageRoute, 0, 1)
	second := member("one-route-1", app.StageRoute)
	const want = "worker one-route-1 has no partition until worker one-route-0 gives up some of its 2"
	if err := b.ready(nil); err == nil || err.Error() != want {
		t.Errorf("not ready: %v, want %s", err, want)
	}
	second.assign(map[string][]int32{"in": {1}})
	second.place(app.TaskID{Topic: "in", Partition: 1})
	member("one-dedup-0", app.StageDedup)
	member("one-dedup-1", app.StageDedup)
	if err := b.ready(nil); err != nil {
		t.Errorf("not ready: %v, although the workers of a stage without partitions wait for none", err)
	}
}

// TestLagOfATaskThatFetchedNothing protects that the lag of a task is not known at first, and is 0 once polls came
// back without records. After 'oncebus apply' in an app without traffic, for example, its tasks have begun again and
// nothing waits. Until the lag is known, the worker publishes again.
func TestLagOfATaskThatFetchedNothing(t *testing.T) {
	t.Parallel()
	s := &taskSet{shared: &shared{board: newBoard()}, tasks: map[app.TaskID]*task{}, worker: "one-dedup-0"}
	reg := prometheus.NewRegistry()
	id := app.TaskID{Topic: "in", Partition: 0}
	begun := &task{Judge: &judge.Judge{State: judge.State{ID: id, App: &app.App{}, Store: emptyStore(t)}}, highWatermark: -1, metrics: newMetrics(reg), lagClock: &lagClock{}, state: running}
	begun.Committed.Next = 5
	s.tasks[id] = begun
	for _, of := range []struct {
		running time.Duration
		lag     int64
		stale   bool
	}{{0, -1, true}, {idlePoll, 0, false}} {
		begun.since = time.Now().Add(-of.running)
		s.publish()
		if got := s.board.allTasks()[0].Lag; got != of.lag || s.stale != of.stale {
			t.Errorf("after %v: lag %d, published again: %v; want %d, %v", of.running, got, s.stale, of.lag, of.stale)
		}
		if got := embedded.Metrics(t, reg)[`oncebus_task_lag_records{partition="0",topic="in"}`]; got != float64(of.lag) {
			t.Errorf("after %v the metric is %v: %v", of.running, got, embedded.Metrics(t, reg))
		}
	}
	s.pauses = &pauses{topics: []string{"in"}}
	if s.publish(); s.board.allTasks()[0].Lag != -1 || !s.stale {
		t.Errorf("lag %d while fetching is paused, published again: %v", s.board.allTasks()[0].Lag, s.stale)
	}
	s.pauses.topics, begun.pausedAt = nil, time.Now().Add(-idlePoll)
	if s.publish(); s.board.allTasks()[0].Lag != 0 {
		t.Errorf("lag %d after fetching was resumed", s.board.allTasks()[0].Lag)
	}
	for _, change := range []func(){func() { begun.state = restoring }, func() { begun.state, begun.Committed.Next = running, -1 }, func() { begun.Committed.Next, begun.unread = 5, new(judge.PendingSchemaError) }} {
		if change(); begun.lag() != -1 {
			t.Errorf("lag %d of a task that reads nothing", begun.lag())
		}
	}
	begun.unread, begun.corrupt, begun.stable = nil, true, true
	for highWatermark, want := range map[int64]int64{-1: -1, 5: -1, 8: 3} {
		if begun.highWatermark = highWatermark; begun.lag() != want {
			t.Errorf("lag %d of a task that waits at a wrong checksum, want %d", begun.lag(), want)
		}
	}
}

// TestEndsOfRestoresArePublishedTogether protects that a worker with many tasks publishes the ends of their restores
// together, but the last end at once, because the process is ready then.
func TestEndsOfRestoresArePublishedTogether(t *testing.T) {
	t.Parallel()
	s := &taskSet{shared: &shared{board: newBoard()}, tasks: map[app.TaskID]*task{}, worker: "one-dedup-0", published: time.Now()}
	metrics := newMetrics(prometheus.NewRegistry())
	for _, p := range []int32{0, 1} {
		id := app.TaskID{Topic: "in", Partition: p}
		s.tasks[id] = &task{Judge: &judge.Judge{State: judge.State{ID: id, App: &app.App{}}}, metrics: metrics, lagClock: &lagClock{}, state: restoring}
	}
	s.published = time.Now().Add(time.Hour) // as after a publication just now, whatever the machine's speed
	if s.publishChange(); !s.stale || len(s.board.allTasks()) != 0 {
		t.Error("a change was published although tasks restore and the last publication is new")
	}
	for _, task := range s.tasks {
		task.state = waiting
		task.Judge.Store = emptyStore(t)
	}
	if s.publishChange(); s.stale || len(s.board.allTasks()) != 2 {
		t.Error("the end of the last restore was not published")
	}
}
