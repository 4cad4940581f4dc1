package bench

import "testing"

func TestGoalTable(t *testing.T) {
	got := GoalTable([]Goal{AtMost("memory", "%.0f MiB", 1024, 1024), AtLeast("rate", "%.2f", 0.799, 0.8), OpenGoal("start", "at most 1 s")})
	want := `
## Goals

| | goal | measured | |
| --- | --- | --- | --- |
| memory | at most 1024 MiB | 1024 MiB | met |
| rate | at least 0.80 | 0.80 | missed |
| start | at most 1 s | - | not measured |
`
	if got != want || GoalTable(nil) != "" {
		t.Errorf("the table is%s", got)
	}
}
