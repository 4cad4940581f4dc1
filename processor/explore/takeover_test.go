package explore_test

import (
	"testing"

	"oncebus/processor/explore"
)

// TestTakeoverExplored: a claim is taken over only on evidence that is true, no outcome of an old attempt counts, at
// most one outcome of a claim counts, and a started claim is never taken over. With -short no exploration has
// executors that both fail and die; this leaves a tenth of the states.
func TestTakeoverExplored(t *testing.T) {
	crashes := explore.Bound[int8](1, 0)
	t.Run("executors that do not ask", func(t *testing.T) {
		t.Parallel()
		explore.Holds(t, newTakeoverModel(false, true, 2, crashes, 3, takesOverRight).model("takeover"), explore.Bound(3_000_000, 200_000))
	})
	t.Run("executors that do not ask, and never fail", func(t *testing.T) {
		t.Parallel()
		explore.Holds(t, newTakeoverModel(false, false, 2, 1, 3, takesOverRight).model("takeover without failures"), 600_000)
	})
	t.Run("executors that ask", func(t *testing.T) {
		t.Parallel()
		explore.Holds(t, newTakeoverModel(true, false, 2, crashes, 3, takesOverRight).model("takeover with starts"), explore.Bound(3_000_000, 100_000))
	})
}

// TestTakeoverMistakesFound: the exploration finds each planted mistake, by its shortest trace.
func TestTakeoverMistakesFound(t *testing.T) {
	for name, planted := range map[string]struct {
		mistake takeoverMistake
		asks    bool
		crashes int8
		steps   int
	}{
		"lease ends by the clock":              {leaseByClock, false, 0, 6},
		"progress before the outcomes":         {progressBeforeRead, false, 0, 13},
		"progress of one partition":            {progressOfOne, false, 0, 12},
		"old token accepted":                   {oldTokenAccepted, false, 1, 11},
		"started claim taken over":             {startedTakenOver, true, 0, 14},
		"executor's group not asked":           {groupNotAsked, false, 0, 8},
		"executor without the time of a lease": {executorWithoutTime, false, 0, 11},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			m := newTakeoverModel(planted.asks, planted.mistake == oldTokenAccepted, 2, planted.crashes, 3, planted.mistake)
			_ = explore.Finds(t, m.model("takeover: "+name), planted.steps)
		})
	}
}
