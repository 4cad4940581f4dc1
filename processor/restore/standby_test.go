package restore

import (
	"context"
	"log/slog"
	"testing"
	"testing/synctest"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/twmb/franz-go/pkg/kgo"

	"oncebus/processor/app"
	"oncebus/processor/kafka"
	"oncebus/processor/wire"
	"oncebus/state"
)

// TestStandbyEvictsByItsOwnRouteSetOnly covers a task that judges by another route set, which may have a longer
// window: the horizons of this process would drop rows that the task needs.
func TestStandbyEvictsByItsOwnRouteSetOnly(t *testing.T) {
	for name, c := range map[string]struct {
		process, task int64
		want          bool
	}{
		"level 1":                 {0, 0, true},
		"the same set":            {4, 4, true},
		"the task is ahead":       {4, 5, false},
		"the process is ahead":    {5, 4, false},
		"the process has no sets": {0, 1, false},
	} {
		var fold wire.Fold
		checkpoint := wire.Checkpoint{Next: 1, Set: c.task}
		if err := fold.Add(0, checkpoint.Append(nil)); err != nil {
			t.Fatal(err)
		}
		if _, ok := evictable(&Source{App: &app.App{Set: c.process}}, &fold); ok != c.want {
			t.Errorf("%s: evicts %v, want %v", name, ok, c.want)
		}
	}
	if _, ok := evictable(&Source{}, &wire.Fold{}); ok {
		t.Error("evicts without a checkpoint")
	}
}

// slowStandbys has a standby of task whose store closes only when the channel closes is closed. A standby of source
// waits for space on the disk, and ends at once.
type slowStandbys struct {
	*Standbys

	task   app.TaskID
	source *Source
	closes chan struct{}
}

// inSlowStandbys runs a test in a synctest bubble, where Wait returns once all other goroutines wait.
func inSlowStandbys(t *testing.T, test func(*testing.T, *slowStandbys)) {
	t.Helper()
	log, metrics := slog.New(slog.DiscardHandler), NewMetrics(prometheus.NewRegistry())
	stores, err := NewStores(Config{Dir: t.TempDir(), App: "app", State: state.DefaultConfig(), Openings: 1}, prometheus.NewRegistry(), metrics, log)
	if err != nil {
		t.Fatal(err)
	}
	client, err := kgo.NewClient()
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	synctest.Test(t, func(t *testing.T) {
		stores.Disk.resumed = make(chan struct{})
		s := &slowStandbys{
			Standbys: NewStandbys(log), task: app.TaskID{Topic: "app-repartition"}, closes: make(chan struct{}),
			source: &Source{App: &app.App{Topology: &app.Topology{App: "app"}}, Leaders: kafka.NewLeaders(client), Stores: stores, Metrics: metrics},
		}
		b := &standby{r: &Restore{src: &Source{}}}
		b.start(t.Context(), func() {}, func(ctx context.Context) {
			<-ctx.Done()
			<-s.closes
		})
		s.running[s.task] = b
		test(t, s)
	})
	if err := stores.Close(); err != nil {
		t.Error(err)
	}
}

// during calls change, which has to wait until the slow store closes, and calls meanwhile when change waits.
func (s *slowStandbys) during(t *testing.T, change, meanwhile func()) {
	t.Helper()
	changed := make(chan struct{})
	go func() {
		defer close(changed)
		change()
	}()
	synctest.Wait()
	select {
	case <-changed:
		t.Error("does not wait for the store")
	default:
	}
	if s.mu.TryLock() {
		s.mu.Unlock()
		meanwhile()
	} else {
		t.Error("the standbys are locked while a store closes")
	}
	close(s.closes)
	<-changed
}

// TestStateWaitsForNoStore covers a store that closes slowly, because the disk is slow. The state of the process, and
// with it the live page, must be readable meanwhile.
func TestStateWaitsForNoStore(t *testing.T) {
	inSlowStandbys(t, func(t *testing.T, s *slowStandbys) {
		s.during(t, func() { s.Follow(t.Context(), nil) }, func() {
			if following := s.State(); len(following) > 0 {
				t.Errorf("follows %v, want none", following)
			}
		})
	})
}

// TestStoreOpensAgainAfterItsClose covers a standby that ends while two calls want its task again, from another
// source. The store must open only after its close: a directory that another store has open would look damaged.
func TestStoreOpensAgainAfterItsClose(t *testing.T) {
	inSlowStandbys(t, func(t *testing.T, s *slowStandbys) {
		follow := func() { s.Follow(t.Context(), map[app.TaskID]*Source{s.task: s.source}) }
		s.during(t, follow, func() {
			go follow()
			synctest.Wait()
			if following := s.State(); len(following) > 0 {
				t.Errorf("follows %v before the store has closed", following)
			}
		})
		synctest.Wait()
		if following := s.State(); len(following) != 1 {
			t.Errorf("follows %v, want the task again", following)
		}
		s.Close()
	})
}

// TestNoStandbyStartsDuringAClose stops the process while it chooses the tasks that it follows. A standby that
// started then would keep its store open, and the stop would report a failure.
func TestNoStandbyStartsDuringAClose(t *testing.T) {
	inSlowStandbys(t, func(t *testing.T, s *slowStandbys) {
		s.during(t, s.Close, func() {
			go s.Follow(t.Context(), map[app.TaskID]*Source{{Topic: "app-repartition", Partition: 1}: s.source})
			synctest.Wait()
			s.mu.Lock()
			defer s.mu.Unlock()
			if !s.closed {
				t.Error("Follow would start a standby if it came before Close again")
			}
		})
		synctest.Wait()
		if following := s.State(); len(following) > 0 {
			t.Errorf("follows %v after Close, want none", following)
			s.Follow(t.Context(), nil)
			for _, b := range s.running {
				b.Stop()
			}
		}
	})
}

// TestCloseWaitsForAnInterruptedFollow stops the process while a standby that is no longer wanted ends. The choice of
// tasks ends at once, and Close waits until the store of that standby has closed, too.
func TestCloseWaitsForAnInterruptedFollow(t *testing.T) {
	inSlowStandbys(t, func(t *testing.T, s *slowStandbys) {
		ended, end := context.WithCancel(t.Context())
		end()
		if s.Follow(ended, nil); len(s.State()) > 0 {
			t.Error("follows a task that is not wanted")
		}
		s.during(t, s.Close, func() {})
	})
}
