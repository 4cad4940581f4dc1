package move

import (
	"encoding/json"
	"testing"
	"time"

	"oncebus/processor/app"
)

// TestHeldForIsTheWholeTime: a run that takes over counts the hold from where the run before began
// it, and one that begins it from where it saw it.
func TestHeldForIsTheWholeTime(t *testing.T) {
	sw := &app.Switch{Number: 2}
	row, err := json.Marshal(&app.Hold{ID: sw.HoldID(), At: time.Now().Add(-time.Hour)})
	if err != nil {
		t.Fatal(err)
	}
	held := app.Rows{"hold": row}
	takesOver := &run{sw: sw}
	takesOver.observeHold(held)
	if h := takesOver.state.HeldFor; h < time.Hour || h > time.Hour+time.Minute {
		t.Errorf("held for %v, want an hour", h)
	}
	begins := &run{sw: sw}
	begins.observeHold(app.Rows{})
	begins.observeHold(held)
	if h := begins.state.HeldFor; h > time.Minute {
		t.Errorf("held for %v, by the clock of another machine", h)
	}
}

// TestLimitIsOfOneClock: a run takes over a hold that began by another clock, which is ahead or behind.
// It neither undoes the move at once, nor says that the input was held for less than nothing.
func TestLimitIsOfOneClock(t *testing.T) {
	for _, ahead := range []time.Duration{-time.Hour, time.Hour} {
		sw := &app.Switch{Number: 2, LimitMS: 60_000}
		row, err := json.Marshal(&app.Hold{ID: sw.HoldID(), At: time.Now().Add(ahead)})
		if err != nil {
			t.Fatal(err)
		}
		takesOver := &run{sw: sw}
		takesOver.observeHold(app.Rows{"hold": row})
		if takesOver.undo() || takesOver.state.HeldFor < 0 {
			t.Errorf("a clock that is %v ahead: undone %v, held for %v", ahead, takesOver.undo(), takesOver.state.HeldFor)
		}
		takesOver.saw = takesOver.saw.Add(-time.Hour)
		if !takesOver.undo() {
			t.Errorf("a clock that is %v ahead: not undone after an hour of its own", ahead)
		}
	}
}

// TestMoveWaitsForReaders: it waits while a process reads on, and not for one that does not.
func TestMoveWaitsForReaders(t *testing.T) {
	sw := &app.Switch{To: 6}
	row := func(instance string, tasks, behind int, left int64) app.Followed {
		return app.Followed{Instance: instance, Tasks: tasks, Behind: behind, Left: left}
	}
	type look struct {
		after time.Duration // the look before
		rows  []app.Followed
		ended bool
	}
	for name, looks := range map[string][]look{
		"all have read": {
			{0, nil, false},
			{time.Second, []app.Followed{row("a", 3, 3, 100), row("b", 3, 2, 50)}, false},
			{time.Second, []app.Followed{row("a", 3, 0, 0), row("b", 3, 1, 10)}, false},
			{time.Second, []app.Followed{row("b", 3, 0, 0), row("a", 3, 0, 0)}, true},
		},
		"one has all tasks": {{0, []app.Followed{row("a", 6, 0, 0)}, true}},
		"no process reads":  {{0, nil, false}, {readPatience - 1, nil, false}, {1, nil, true}},
		"one reads on slowly": {
			{0, []app.Followed{row("a", 6, 6, 100)}, false},
			{readPatience - 1, []app.Followed{row("a", 6, 6, 99)}, false},
			{readPatience - 1, []app.Followed{row("a", 6, 5, 99)}, false},
			{readPatience, []app.Followed{row("a", 6, 5, 99)}, true},
		},
		"the order of rows is no progress": {
			{0, []app.Followed{row("a", 2, 2, 1), row("b", 2, 2, 1)}, false},
			{readPatience, []app.Followed{row("b", 2, 2, 1), row("a", 2, 2, 1)}, true},
		},
	} {
		var r reading
		now := time.Unix(1000, 0)
		for i, l := range looks {
			now = now.Add(l.after)
			if got := r.ended(l.rows, sw, now); got != l.ended {
				t.Errorf("%s, look %d: ended %v", name, i, got)
			}
		}
	}
}
