package explore_test

import (
	"testing"

	"oncebus/dedup"
	"oncebus/processor/explore"
)

func newSeedModel(mistake seedMistake) *seedModel {
	return &seedModel{dedup.Window{Size: 1}, []int8{0, 1, 2, 3}, 4, mistake}
}

// TestSeedsExplored: no event is emitted that an earlier event or seed forbids, a repeated seed changes nothing, and
// a seed never makes an event late that arrives in order.
func TestSeedsExplored(t *testing.T) {
	explore.Holds(t, newSeedModel(seedsRight).model("seeds"), 6000)
	m := &seedModel{dedup.Window{Size: 1, Grace: 1}, []int8{0, 1, 2, 3, 4}, 6, seedsRight}
	explore.Holds(t, m.model("seeds, with a grace period"), 10_000)
}

// TestSeedMistakesFound: the exploration finds each planted mistake, by its shortest trace.
func TestSeedMistakesFound(t *testing.T) {
	for name, planted := range map[string]struct {
		mistake seedMistake
		steps   int
	}{
		"seed moves stream time": {seedMovesStream, 3},
		"seed replaces a row":    {seedReplaces, 1},
		"seed not stored":        {seedForgotten, 1},
		"seed ahead replaces":    {seedAhead, 4},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_ = explore.Finds(t, newSeedModel(planted.mistake).model("seeds: "+name), planted.steps)
		})
	}
}
