package judge

import (
	"log/slog"
	"testing"

	"oncebus/dedup/rules"
	"oncebus/processor/app"
	"oncebus/processor/wire"
)

// TestTaskNeverGoesBackToAnOlderSet covers a task whose checkpoint names a newer route set than its process has. The
// task is ahead, so the process does not judge it. If the process did judge it, the checkpoint would still keep its
// set.
func TestTaskNeverGoesBackToAnOlderSet(t *testing.T) {
	routes, err := rules.ParseRoutes("routes.yaml", []byte("routes: [{name: a, topics: [raw], key: [{field: id}], window: 1h, output: out}]"))
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		sets      int // of the process
		committed int64
		ahead     bool
		joins     int64
	}{{1, 2, true, 2}, {2, 2, false, 2}, {3, 2, false, 3}, {1, 0, false, 1}} {
		rt, err := app.OfflineSets("app", 4, []*rules.Routes{routes, routes, routes}[:c.sets]...)
		if err != nil {
			t.Fatal(err)
		}
		s := State{App: rt, Committed: wire.Checkpoint{Set: c.committed}, Log: slog.New(slog.DiscardHandler)}
		if s.Ahead() != c.ahead {
			t.Errorf("a process of set %d, a task of set %d: ahead %v", c.sets, c.committed, s.Ahead())
		}
		s.JoinTransaction()
		if s.Open.Set != c.joins {
			t.Errorf("a process of set %d makes a task of set %d one of set %d, want %d", c.sets, c.committed, s.Open.Set, c.joins)
		}
	}
}
