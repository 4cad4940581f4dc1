package cli

import (
	"strings"
	"testing"
	"time"
)

// TestProgressIsShownOnATerminalAfterAWhile has a clock of its own.
func TestProgressIsShownOnATerminalAfterAWhile(t *testing.T) {
	now := time.Unix(0, 0)
	for _, v := range []struct {
		name     string
		terminal bool
		after    time.Duration
		want     bool
	}{
		{"a slow command on a terminal", true, progressAfter, true},
		{"a quick command on a terminal", true, progressAfter - 1, false},
		{"a slow command in a file", false, progressAfter, false},
	} {
		t.Run(v.name, func(t *testing.T) {
			var shown strings.Builder
			now = time.Unix(0, 0)
			g := NewProgress(Process{Stderr: &output{w: &shown, terminal: v.terminal}, Now: func() time.Time { return now }}, "tasks")
			now = now.Add(v.after)
			g.Set(3, 12)
			g.Set(6, 24)
			if got := shown.String(); (got != "") != v.want || v.want && !(strings.Contains(got, "tasks") && strings.Contains(got, "3/12")) {
				t.Errorf("%q", got)
			}
			g.End()
			if got := shown.String(); v.want && !strings.HasSuffix(got, "\r") {
				t.Errorf("the line stays on the terminal: %q", got)
			}
			before := shown.Len()
			g.End()
			if shown.Len() != before {
				t.Error("a second End writes again")
			}
		})
	}
}
