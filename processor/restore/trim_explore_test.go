package restore

import (
	"testing"

	"oncebus/processor/explore"
)

// TestTrimExplored protects three properties in every explored state: rows leave the changelog only below a floor
// that the changelog itself states, no restore refuses or relies on its local store, and no verdict differs from the
// verdict of a memory that never drops a row.
func TestTrimExplored(t *testing.T) {
	t.Run("one namespace", func(t *testing.T) {
		disturbances := explore.Bound[int8](2, 1)
		explore.Holds(t, newTrimModel([]uint8{3, 3}, []int8{0, 1, 3, 4}, 4, disturbances, trimsRight).model("trim, one namespace"), explore.Bound(1_000_000, 100_000))
	})
	t.Run("two namespaces", func(t *testing.T) {
		explore.Holds(t, newTrimModel([]uint8{3, 9}, []int8{0, 1, 3, 4}, 4, 1, trimsRight).model("trim, two namespaces"), 150_000)
	})
}

// TestTrimMistakesFound protects that the exploration finds each planted mistake, by its shortest trace.
func TestTrimMistakesFound(t *testing.T) {
	for name, planted := range map[string]struct {
		mistake trimMistake
		steps   int
	}{
		"purger takes the floor of an open transaction": {floorOpen, 6},
		"purger deletes all that the local store has":   {floorBeyond, 5},
		"floor in a partial checkpoint":                 {floorInPartial, 7},
		"fences omit clamped rows":                      {clampedForgot, 8},
		"rows dropped after one window":                 {retentionShort, 5},
		"partial checkpoint after a restore":            {restartRelative, 8},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			m := newTrimModel([]uint8{3, 3}, []int8{0, 1, 3, 4}, 4, 2, planted.mistake)
			_ = explore.Finds(t, m.model("trim: "+name), planted.steps)
		})
	}
}
