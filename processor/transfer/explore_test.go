package transfer

import (
	"testing"

	"oncebus/processor/explore"
)

// TestClusterMoveExplored: whatever sleeps, is repeated, lags or dies, both clusters together emit
// each key once, every event is judged in one of them, and the move can always go on.
func TestClusterMoveExplored(t *testing.T) {
	for name, c := range map[string]struct {
		m       clusterModel
		atLeast int
	}{
		"one task, a window that changes": {clusterModel{changes: true, repeats: 1, moves: explore.Bound[int8](1, 0), direct: explore.Bound[int8](1, 0)}, explore.Bound(400_000, 10_000)},
		"two tasks, a seed that dies":     {clusterModel{taskOf: twoTasks, repeats: 1, kills: true, direct: explore.Bound[int8](1, 0)}, explore.Bound(200_000, 10_000)},
		"an app that is taken back":       {clusterModel{backs: 1, moves: 1}, 80_000},
		"an ingress that lags":            {clusterModel{front: true, moves: explore.Bound[int8](1, 0)}, explore.Bound(20_000, 5_000)},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			explore.Holds(t, c.m.model("move to another cluster: "+name), c.atLeast)
		})
	}
}

var twoTasks = [clusterKeys]int8{0, 1}

// TestClusterMoveMistakesFound: each planted mistake is found, by its shortest trace.
func TestClusterMoveMistakesFound(t *testing.T) {
	for name, planted := range map[string]struct {
		mistake clusterMistake
		m       clusterModel
		steps   int
	}{
		"released without its keys":            {releasedUnseeded, clusterModel{}, 18},
		"starts behind its place":              {startsForwards, clusterModel{}, 33},
		"starts at the last copy":              {startsAtLastCopy, clusterModel{repeats: 1}, 34},
		"file before all is judged":            {exportedUndrained, clusterModel{}, 29},
		"file before all is held":              {exportedUnheld, clusterModel{}, 24},
		"new owner does not read the hold":     {takeoverBlind, clusterModel{moves: 2}, 29},
		"hold --left omitted":                  {notLeft, clusterModel{}, 32},
		"leaving app released as any other":    {leavingReleased, clusterModel{}, 30},
		"stream times not carried over":        {timesStay, clusterModel{}, 32},
		"changed window not carried over":      {changeStays, clusterModel{changes: true}, 33},
		"process starts without the hold":      {startsWithoutHold, clusterModel{}, 17},
		"hold not read again after the export": {exportNotAsked, clusterModel{backs: 1}, 30},
		"seed ends before the last key":        {seedsCutShort, clusterModel{taskOf: twoTasks}, 27},
		"file of a hold that was taken back":   {fileOfBeforeTaken, clusterModel{backs: 1}, 30},
		"ingress gets requests":                {requestsInFlight, clusterModel{front: true}, 29},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			m := planted.m
			m.mistake = planted.mistake
			_ = explore.Finds(t, m.model("move to another cluster: "+name), planted.steps)
		})
	}
}
