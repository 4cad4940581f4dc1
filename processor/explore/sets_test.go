package explore_test

import (
	"testing"

	"oncebus/processor/explore"
)

// TestSetsExplored: whatever process is behind, task moves or file is applied at the same time, each set has one
// file, no task goes back to an older set, each record is judged, eviction changes no verdict, and the window is
// exact from the time that a change promises.
func TestSetsExplored(t *testing.T) {
	t.Run("two tasks", func(t *testing.T) {
		t.Parallel()
		explore.Holds(t, (&setsModel{events: explore.Bound[int8](3, 2), tasks: 2}).model("route sets"), explore.Bound(2_000_000, 100_000))
	})
	t.Run("one task", func(t *testing.T) {
		t.Parallel()
		explore.Holds(t, (&setsModel{events: 4, tasks: 1}).model("route sets and windows"), 100_000)
	})
}

// TestSetsMistakesFound: the exploration finds each planted mistake, by its shortest trace.
func TestSetsMistakesFound(t *testing.T) {
	for name, planted := range map[string]struct {
		mistake setsMistake
		steps   int
	}{
		"replaced operator commits":          {setsNotFenced, 6},
		"operator commits an old plan":       {setsNotRead, 6},
		"process behind judges":              {behindJudges, 9},
		"change not noted":                   {changeUnknown, 15},
		"eviction by the set of the process": {evictsByOwnSet, 12},
		"retired route unknown":              {retiredUnknown, 9},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_ = explore.Finds(t, (&setsModel{3, 1, planted.mistake}).model("route sets: "+name), planted.steps)
		})
	}
}
