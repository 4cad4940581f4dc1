package explore_test

import (
	"testing"

	"oncebus/processor/explore"
)

// TestPromotionExplored: until the promotion each old key is emitted once, and from the promotion on each new key. No
// event is dropped as a duplicate unless an event with its key was emitted. The promotion can always be ended.
func TestPromotionExplored(t *testing.T) {
	explore.Holds(t, (&shadowModel{}).model("shadow and promotion"), 100_000)
}

// TestPromotionMistakesFound: the exploration finds each planted mistake, by its shortest trace.
func TestPromotionMistakesFound(t *testing.T) {
	for name, planted := range map[string]struct {
		mistake shadowMistake
		steps   int
	}{
		"record from the router":    {shadowByRouter, 11},
		"row of a dropped copy":     {shadowOfCopies, 14},
		"hold ends before the join": {shadowUnjoined, 8},
		"forwarded under the hold":  {shadowHeldForward, 8},
		"act ends the hold":         {shadowActReleases, 7},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_ = explore.Finds(t, (&shadowModel{planted.mistake}).model("promotion: "+name), planted.steps)
		})
	}
}
