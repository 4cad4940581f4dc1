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

// A setFollower makes the process take each route set that is put in force, and writes to the manifest topic
// which set the process runs.
type setFollower struct {
	*shared

	conn   app.Conn
	follow *app.Follower
	seen   app.Seen // what the process last wrote about itself
	asked  string   // the newest question of 'oncebus finalize' to the processes
	failed string   // why the newest set is not taken, as last logged
}

func newSetFollower(s *shared, conn app.Conn) *setFollower {
	return &setFollower{shared: s, conn: conn, follow: app.NewFollower(conn, s.cfg.Config)}
}

// take takes a record of the manifest or of a route set, or a question of 'oncebus finalize'.
func (f *setFollower) take(rec *kgo.Record) bool {
	f.follow.Take(rec)
	if id := app.DecodeAsk(rec); id != "" {
		f.asked = id
	}
	return false
}

func (f *setFollower) clear() { f.follow.Clear() }

// caughtUp takes the route set in force, if it is newer than the set of the process.
func (f *setFollower) caughtUp(ctx context.Context) error {
	rt, err := f.follow.App(ctx, f.newest().rt)
	switch {
	case err != nil:
		f.explain(err)
		return nil // the next reading tries again; the other followers must run, too
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

// explain publishes why the process does not take the newest set; err is nil if the process takes it.
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

// tell writes to the manifest topic which set all workers of the process run, when that has changed. At level 1
// there are no sets: tell then writes which formats the process can read, at the start and when 'oncebus
// finalize' asks. At every level tell also writes if another process with the same name fences this one.
func (f *setFollower) tell(ctx context.Context) error {
	rt, set := f.newest().rt, f.takenSet()
	fenced := f.twins.since(f.seen.Fenced)
	written := !f.seen.At.IsZero() && f.seen.Answers == f.asked && fenced.Equal(f.seen.Fenced)
	if written && set == f.seen.Set || set == 0 && rt.Level > wire.LevelOldest {
		return nil
	}
	seen := app.NewSeen(f.cfg.InstanceID, build(), set, rt.InForce)
	seen.Answers, seen.Fenced = f.asked, fenced
	if err := seen.Write(ctx, f.conn.Client, rt.Topology); err != nil {
		return err
	}
	f.seen = seen
	return nil
}

// build names the build of the program, for people to read.
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

// takenSets holds, by worker, the route set of the worker's edition.
type takenSets struct {
	mu  sync.Mutex
	all map[string]int64
}

// take notes that a worker runs a set.
func (s *takenSets) take(worker string, set int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.all == nil {
		s.all = map[string]int64{}
	}
	s.all[worker] = set
}

// takenSet returns the newest set that all workers run, or have run before a newer one; 0 at level 1, and before
// all workers have begun.
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

// takes notes that the worker runs its edition. When the last worker does so, the process writes to the manifest
// topic that it runs the edition's set.
func (w *worker) takes() {
	w.taken.take(w.name, w.rt.Set)
	if w.rt.Set > 0 && w.takenSet() == w.newest().rt.Set {
		w.readManifestNow()
	}
}

// SetState is the state of the route set of a process, as /state shows it.
type SetState struct {
	// InForce is the number of the newest set that the process has read. Taken is the number of the set
	// that all of its workers run.
	InForce int64 `json:"in_force"`
	Taken   int64 `json:"taken"`
	// FileBehind is the number of the set that the routes file contains, if that set is older than the set in
	// force; 0 if the file contains the set in force.
	FileBehind int64 `json:"file_behind,omitempty"`
	// Reason says why the process does not take the newest set; "" if it takes the set.
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

// awaitSet makes a restored task wait if its checkpoint was written under a newer route set than the process
// has. The task writes nothing until the process has taken that set.
func (s *taskSet) awaitSet(t *task) {
	t.to(running)
	t.to(waiting)
	t.since = time.Now()
	t.Log.Warn("checkpoint of a newer route set, task waits", "set", t.Committed.Set, "process", t.App.Set)
	s.readManifestNow()
}
