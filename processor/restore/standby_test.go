package restore

import (
	"testing"

	"oncebus/processor/app"
	"oncebus/processor/wire"
)

// TestStandbyEvictsByItsOwnRouteSetOnly: a task that judges by another route set may have a
// longer window, so the horizons of this process would drop rows that it needs.
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
