//go:build unix

package main_test

import (
	"context"
	"fmt"
	"math"
	"strconv"
	"sync/atomic"
	"testing"

	"github.com/twmb/franz-go/pkg/kgo"
	"golang.org/x/time/rate"
)

const ownersRoutes = `
routes:
  - name: events
    topics: [APP.raw]
    key: [{field: id}]
    window: 1h
    output: APP.unique
    dead_letter: APP.dead
`

const (
	ownersTasks = 12 // so many that no process gets those that it had by chance
	ownersMore  = 1 << 20
)

// ownersRate is the load meanwhile, in events a second; ownersKeys is how many keys are known before:
// so many that stores have written most of them when their process is killed, and that most of
// them are older than the kill.
var ownersRate, ownersKeys = int(loadRate), max(300_000, 100*int(loadRate))

// flood sends numbered events, and duplicates of earlier ones.
type flood struct {
	w      *world
	keys   atomic.Int64 // the next new key
	events int
	failed atomic.Pointer[error]
}

// more sends n events, a quarter of them duplicates: most of recent keys, some of any.
func (f *flood) more(ctx context.Context, n int) {
	for range n {
		keys := int(f.keys.Load())
		key := keys
		switch {
		case f.events%4 < 3 || keys == 0:
			f.keys.Add(1)
		case f.events%64 == 3:
			key = f.w.rng.IntN(keys)
		default:
			key = keys - 1 - f.w.rng.IntN(min(keys, 5000))
		}
		f.events++
		r := &kgo.Record{Topic: f.w.topic("raw"), Partition: f.w.rng.Int32N(realPartitions), Value: fmt.Appendf(nil, `{"id":"%d"}`, key)}
		f.w.producer.Produce(context.WithoutCancel(ctx), r, func(_ *kgo.Record, err error) {
			if err != nil {
				f.failed.Store(&err)
			}
		})
	}
}

// flow sends events at a rate until the returned function is called.
func (f *flood) flow() (stop func()) {
	ctx, cancel := context.WithCancel(f.w.t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		batch := ownersRate / 100
		limit := rate.NewLimiter(rate.Limit(ownersRate), 2*batch)
		for f.events < ownersKeys*2+ownersMore && limit.WaitN(ctx, batch) == nil {
			f.more(ctx, batch)
		}
	}()
	stop = func() {
		cancel()
		<-done
	}
	f.w.t.Cleanup(stop)
	return stop
}

// check waits until all events are processed, and compares the output with what was sent.
func (f *flood) check() {
	f.w.t.Helper()
	if err := f.w.producer.Flush(f.w.t.Context()); err != nil {
		f.w.t.Fatal(err)
	}
	if err := f.failed.Load(); err != nil {
		f.w.t.Fatal(*err)
	}
	f.taken()
	f.w.drained([]string{"raw"}, []string{"unique", "dead"})
	emitted := make([]int, int(f.keys.Load()))
	for _, r := range f.w.output("unique") {
		var id int
		if _, err := fmt.Sscanf(string(r.Value), `{"id":"%d"}`, &id); err != nil || id >= int(f.keys.Load()) {
			f.w.t.Fatalf("%q was never sent", r.Value)
		}
		emitted[id]++
	}
	lost, doubled := 0, 0
	for _, n := range emitted {
		if n == 0 {
			lost++
		}
		doubled += max(0, n-1)
	}
	if lost+doubled > 0 {
		f.w.t.Errorf("of %d keys in %d events %d are lost and %d doubled", int(f.keys.Load()), f.events, lost, doubled)
	}
	f.w.t.Logf("%d events of %d keys: %d lost, %d doubled", f.events, int(f.keys.Load()), lost, doubled)
}

// taken waits until the input is processed, as long as there is progress: a machine may be
// slower than the events come.
func (f *flood) taken() {
	f.w.t.Helper()
	for left := int64(math.MaxInt64); left > int64(ownersRate); {
		eventually(f.w.t, "progress", func(ctx context.Context) error {
			lags, err := f.w.admin.Lag(ctx, f.w.app+"-route", f.w.app+"-dedup")
			if err == nil {
				err = lags.Error()
			}
			if err != nil {
				return err
			}
			var now int64
			for _, group := range lags {
				now += group.Lag.Total()
			}
			if now >= left && now > 0 {
				return fmt.Errorf("%d records are not processed", now)
			}
			left = now
			return nil
		})
	}
}

// startOwner starts a process of ownersTasks partitions, which the busy machine does not take
// from it.
func (w *world) startOwner(instance string, settings ...string) *service {
	w.t.Helper()
	return w.start(instance, append([]string{"PARTITIONS=" + strconv.Itoa(ownersTasks), "STATE_FLUSH_AGE=5s", "SESSION_TIMEOUT=6s", "TRANSACTION_TIMEOUT=15s"}, settings...)...)
}

// readAgain returns how many changelog rows a process has read, and in how many restores
// that began without local state.
func (s *service) readAgain() (rows, cold int) {
	s.t.Helper()
	m, err := s.Metrics(s.t.Context())
	if err != nil {
		s.t.Fatal(err)
	}
	return int(m.Sum("oncebus_restored_rows_total")), m.Counts("oncebus_restores_total")["cold"]
}

// writes waits until a process has fewer rows in memory alone than any of its tasks has, of so many keys of
// all tasks: a kill loses those in memory, and a store without any on disk is cold.
func (s *service) writes(keys int) {
	s.t.Helper()
	eventually(s.t, "the stores write their rows", func(ctx context.Context) error {
		m, err := s.Metrics(ctx)
		if rows := m.Sum("oncebus_state_recent_rows"); err == nil && rows > float64(keys/ownersTasks*3/4) {
			err = fmt.Errorf("%v rows are in memory only", rows)
		}
		return err
	})
}

// TestRealFormerOwnerIsWarm kills one of two processes under load, and starts it again after
// the other has taken over its tasks. It gets the tasks that it had, and reads the rows that
// came meanwhile, not those of all keys.
func TestRealFormerOwnerIsWarm(t *testing.T) {
	t.Parallel()
	w := newLoadedWorld(t, ownersRoutes)
	w.createTopics(nil, "raw")
	a, b := w.startOwner("a"), w.startOwner("b")
	awaitSharing(t, ownersTasks, a, b)
	f := &flood{w: w}
	f.more(t.Context(), ownersKeys*4/3)
	f.check()
	stop := f.flow()

	b.writes(ownersKeys)
	before, coldBefore := a.readAgain()
	b.kill()
	taken, _ := a.takesOver(before, coldBefore)
	keys := int(f.keys.Load())
	b = w.startOwner("b")
	awaitSharing(t, ownersTasks, a, b)
	rows, cold := b.readAgain()
	half := keys / 2
	t.Logf("%d keys: the survivor read %d rows at the takeover, the former owner %d when it came back, in %d cold restores", keys, taken, rows, cold)
	if cold > 0 || rows > half/2 {
		t.Errorf("the former owner read %d rows in %d cold restores; its tasks have about %d", rows, cold, half)
	}
	stop()
	f.check()
	a.stop()
	b.stop()
}

// takesOver waits until a process runs all tasks, and returns how many changelog rows it read
// for that, and in how many cold restores.
func (s *service) takesOver(before, coldBefore int) (rows, cold int) {
	s.t.Helper()
	eventually(s.t, "one process runs all tasks", func(ctx context.Context) error {
		states, err := s.metric(ctx, "oncebus_tasks")
		if err == nil && states["running"] < ownersTasks {
			err = fmt.Errorf("%v", states)
		}
		return err
	})
	rows, cold = s.readAgain()
	return rows - before, cold - coldBefore
}

// follows waits until a process follows this many tasks and has been at the end of each of
// their changelogs within the last look.
func (s *service) follows(tasks int) {
	s.t.Helper()
	eventually(s.t, "the standbys keep up", func(ctx context.Context) error {
		lags, err := s.metric(ctx, "oncebus_standby_lag_records")
		behind := 0
		for _, lag := range lags {
			if lag > max(500, ownersRate/4) {
				behind++
			}
		}
		if err == nil && (len(lags) != tasks || behind > 0) {
			err = fmt.Errorf("%d standbys, %d behind: %v", len(lags), behind, lags)
		}
		return err
	})
}

// TestRealStandbyTakesOver kills each of two processes under load. The other one follows its
// tasks, so it reads only the tails of their changelogs. The kill also ends standbys, behind
// open transactions; they go on from their directories.
func TestRealStandbyTakesOver(t *testing.T) {
	t.Parallel()
	w := newLoadedWorld(t, ownersRoutes)
	w.createTopics(nil, "raw")
	a, b := w.startOwner("a", "STANDBY=1"), w.startOwner("b", "STANDBY=1")
	awaitSharing(t, ownersTasks, a, b)
	f := &flood{w: w}
	f.more(t.Context(), ownersKeys*4/3)
	f.check()
	stop := f.flow()
	stays, dies := a, b
	for range 2 {
		stays.follows(ownersTasks / 2)
		dies.follows(ownersTasks / 2)
		dies.writes(ownersKeys)
		before, coldBefore := stays.readAgain()
		keys := int(f.keys.Load())
		dies.kill()
		rows, cold := stays.takesOver(before, coldBefore)
		t.Logf("%d keys: process %s took over from %s, and read %d rows in %d cold restores", keys, stays.Name, dies.Name, rows, cold)
		if cold > 0 || rows > keys/8 {
			t.Errorf("the takeover read %d rows of %d keys in %d cold restores; want the tail", rows, keys/2, cold)
		}
		comes := w.startOwner(dies.Name, "STANDBY=1")
		awaitSharing(t, ownersTasks, stays, comes)
		if rows, cold := comes.readAgain(); cold > 0 || rows > keys/4 {
			t.Errorf("the process that came back read %d rows in %d cold restores", rows, cold)
		}
		stays, dies = comes, stays
	}
	stop()
	f.check()
	stays.stop()
	dies.stop()
}
