package explore_test

import (
	"math/rand/v2"
	"testing"

	"oncebus/processor/explore"
)

// TestSwitchExplored: whatever dies or sleeps while the keys move to other partitions, each
// key is emitted once, the events of a router and key keep their order, and from each state the
// move can end or be undone, with all records judged.
func TestSwitchExplored(t *testing.T) {
	explore.Holds(t, (&switchModel{leaders: 2, routed: routedFew, aborts: true}).model("switch"), 150_000)
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
			m := &switchModel{planted.mistake, 1, routedFew, true}
			if planted.mistake == leadersNotFenced {
				m.leaders = 2
			}
			_ = explore.Finds(t, m.model("switch: "+name), planted.steps)
		})
	}
}

// TestSwitchAtRandom takes random steps with more events than can be explored. Each run must
// end with all records judged, or be able to go on.
func TestSwitchAtRandom(t *testing.T) {
	t.Parallel()
	for _, mistake := range []switchMistake{switchesRight, actsUnheld, actsUndrained, closesUncopied, judgesClosed} {
		routed := [2][]int8{{0, 1, 0, 1}, {1, 0, 1, 0}}
		models := []explore.Model[switchState]{(&switchModel{mistake, 2, routed, false}).model("switch"), (&switchModel{mistake, 2, routed, true}).model("switch that may be undone")}
		wrong, ended := 0, 0
		for seed := range uint64(explore.Bound(20_000, 5_000)) {
			switch reached, err := explore.Walk(models[seed%2], rand.New(rand.NewPCG(seed, 19)), 2000); {
			case err != nil:
				wrong++
				if mistake == switchesRight {
					t.Fatal(err)
				}
			case reached:
				ended++
			}
		}
		t.Logf("mistake %d: %d runs wrong, %d ended", mistake, wrong, ended)
		if mistake != switchesRight && wrong == 0 || ended == 0 {
			t.Errorf("mistake %d was not found, or no run ended", mistake)
		}
	}
}
