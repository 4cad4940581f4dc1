package explore_test

import (
	"testing"

	"oncebus/processor/explore"
)

// TestSwitchExplored: whatever dies or sleeps while the keys move to other partitions, each
// key is emitted once, the events of a router and key keep their order, and from each state the
// move can end or be undone, with all records judged.
func TestSwitchExplored(t *testing.T) {
	explore.Holds(t, (&switchModel{leaders: 2}).model("switch"), 150_000)
}

// TestSwitchMistakesFound: each planted mistake is found, by its shortest trace.
func TestSwitchMistakesFound(t *testing.T) {
	for name, planted := range map[string]struct {
		mistake switchMistake
		steps   int
	}{
		"no wait for held rows":            {actsUnheld, 16},
		"no drain":                         {actsUndrained, 20},
		"ends listed before the held rows": {endsBeforeHeld, 20},
		"no wait for the copy":             {closesUncopied, 16},
		"closed task judges":               {judgesClosed, 19},
		"closed task skips":                {dropsClosed, 12},
		"replaced leader writes":           {leadersNotFenced, 20},
		"router starts without the hold":   {holdNotRead, 21},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			m := &switchModel{planted.mistake, 1}
			if planted.mistake == leadersNotFenced {
				m.leaders = 2
			}
			explore.Finds(t, m.model("switch: "+name), planted.steps)
		})
	}
}
