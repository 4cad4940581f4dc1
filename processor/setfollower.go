package processor

import (
	"context"
	"runtime/debug"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"oncebus/processor/app"
	"oncebus/processor/kafka"
	"oncebus/processor/wire"
)

// A setFollower makes the process go over to each route set that is put in force, and tells in
// the manifest topic which one it runs.
type setFollower struct {
	*shared

	conn   app.Conn
	follow *app.Follower
	seen   app.Seen // as last written
	asked  string   // the newest question of 'oncebus finalize'
	failed string   // why the newest set is not taken, as last logged
}

func newSetFollower(s *shared, conn app.Conn) *setFollower {
	return &setFollower{shared: s, conn: conn, follow: app.NewFollower(conn, s.cfg.Config)}
}

// take notes a record of the manifest or of a route set, or a question.
func (f *setFollower) take(rec *kgo.Record) bool {
	f.follow.Take(rec)
	if id := app.DecodeAsk(rec); id != "" {
		f.asked = id
	}
	return false
}

func (f *setFollower) clear() { f.follow.Clear() }

// caughtUp takes the set in force, if it is newer than the one that the process has.
func (f *setFollower) caughtUp(ctx context.Context) error {
	rt, err := f.follow.App(ctx, f.newest().rt)
	switch {
	case err != nil:
		f.explain(err)
		return nil // the next reading tries again; other followers go on
	case rt != nil:
		f.explain(nil)
		rt.ConnectHeaders, rt.DuplicateLog = f.cfg.ConnectHeaders, f.cfg.DuplicateLog
		f.judging.Prepare(rt.InForce)
		f.log.Info("route set in force", "set", rt.Set, "routed", rt.Topology.Routed, "prepartitioned", rt.Topology.Prepartitioned)
		f.adopt(f.newEdition(rt))
		f.wakeAll()
	}
	return f.tell(ctx)
}

// explain publishes why the process does not take the newest set; nil if it does.
func (f *setFollower) explain(err error) {
	text := ""
	if err != nil {
		text = err.Error()
	}
	if text != "" && text != f.failed && kafka.Classify(err) == kafka.Stop {
		f.log.Error("route set in force cannot be taken, retrying", "error", err)
	}
	f.failed = text
	f.board.setNotTaken(text)
}

// tell writes which set all workers of the process run, when it has changed. At level 1 it
// writes what the process reads, at the start and when 'oncebus finalize' asks.
func (f *setFollower) tell(ctx context.Context) error {
	rt, set := f.newest().rt, f.takenSet()
	written := !f.seen.At.IsZero() && f.seen.Answers == f.asked
	if written && set == f.seen.Set || set == 0 && rt.Level > wire.LevelOldest {
		return nil
	}
	seen := app.NewSeen(f.cfg.InstanceID, build(), set, rt.InForce)
	seen.Answers = f.asked
	if err := seen.Write(ctx, f.conn.Client, rt.Topology); err != nil {
		return err
	}
	f.seen = seen
	return nil
}

// build names the program for people.
func build() string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return ""
	}
	for _, s := range info.Settings {
		if s.Key == "vcs.revision" {
			return s.Value
		}
	}
	return info.Main.Version
}

// takenSets has, by worker, the route set of its edition.
type takenSets struct {
	mu  sync.Mutex
	all map[string]int64
}

// take notes that a worker has a set.
func (s *takenSets) take(worker string, set int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.all == nil {
		s.all = map[string]int64{}
	}
	s.all[worker] = set
}

// takenSet returns the newest set that all workers have; 0 at level 1 and before all workers
// have begun.
func (s *shared) takenSet() int64 {
	s.taken.mu.Lock()
	defer s.taken.mu.Unlock()
	if len(s.taken.all) < s.workersMax {
		return 0
	}
	least := s.newest().rt.Set
	for _, set := range s.taken.all {
		least = min(least, set)
	}
	return least
}

// takes notes that a worker runs its edition, and makes the process tell so.
func (w *worker) takes() {
	w.taken.take(w.name, w.rt.Set)
	if w.rt.Set > 0 && w.takenSet() == w.newest().rt.Set {
		w.readManifestNow()
	}
}

// SetState is the route set of a process, as /state shows it.
type SetState struct {
	// InForce is the number of the set that the process has read, Taken that of the set which
	// all of its workers run.
	InForce int64 `json:"in_force"`
	Taken   int64 `json:"taken"`
	// FileBehind is the number of the older set that the routes file is; 0 if the file is the
	// set in force.
	FileBehind int64 `json:"file_behind,omitempty"`
	// Reason says why the newest set is not taken; "" if it is.
	Reason string `json:"reason,omitempty"`
}

// setState returns the state of the route sets; nil at level 1.
func (s *shared) setState() *SetState {
	e := s.newest()
	if e == nil || e.rt.Set == 0 {
		return nil
	}
	return &SetState{InForce: e.rt.Set, Taken: s.takenSet(), FileBehind: e.rt.FileBehind, Reason: s.board.notTakenReason()}
}

// awaitSet makes a restored task wait whose checkpoint is of a newer route set than the process
// has. It writes nothing until the process has taken that set.
func (s *taskSet) awaitSet(t *task) {
	t.to(running)
	t.to(waiting)
	t.since = time.Now()
	t.Log.Warn("checkpoint of a newer route set, task waits", "set", t.Committed.Set, "process", t.App.Set)
	s.readManifestNow()
}
