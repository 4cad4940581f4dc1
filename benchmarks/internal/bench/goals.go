package bench

import (
	"fmt"
	"strings"
)

// Goal is a target that was set before the measurement, together with the measured value.
type Goal struct {
	What    string
	Want    string
	Got     string
	Verdict string
}

// The verdicts on a goal.
const (
	Met         = "met"
	Missed      = "missed"
	NotMeasured = "not measured"
)

// NewGoal returns a goal that was measured.
func NewGoal(what, want, got string, holds bool) Goal {
	g := Goal{What: what, Want: want, Got: got, Verdict: Missed}
	if holds {
		g.Verdict = Met
	}
	return g
}

// OpenGoal returns a goal that the run did not measure.
func OpenGoal(what, want string) Goal {
	return Goal{What: what, Want: want, Got: "-", Verdict: NotMeasured}
}

// AtMost returns the goal that the measured value is at most bound. format formats one value with its unit, such as
// "%.1f ms".
func AtMost(what, format string, value, bound float64) Goal {
	return NewGoal(what, "at most "+fmt.Sprintf(format, bound), fmt.Sprintf(format, value), value <= bound)
}

// AtLeast is [AtMost] for a lower bound.
func AtLeast(what, format string, value, bound float64) Goal {
	return NewGoal(what, "at least "+fmt.Sprintf(format, bound), fmt.Sprintf(format, value), value >= bound)
}

// GoalTable returns the section of a report with its goals; "" without any.
func GoalTable(goals []Goal) string {
	if len(goals) == 0 {
		return ""
	}
	var b strings.Builder
	b.WriteString("\n## Goals\n\n| | goal | measured | |\n| --- | --- | --- | --- |\n")
	for _, g := range goals {
		fmt.Fprintf(&b, "| %s | %s | %s | %s |\n", g.What, g.Want, g.Got, g.Verdict)
	}
	return b.String()
}
