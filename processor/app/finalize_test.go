package app

import (
	"strings"
	"testing"
	"time"

	"oncebus/dedup/rules"
	"oncebus/processor/wire"
)

// TestFinalizeRefusesWhoIsBehind: each live process must have answered this question, read the level,
// and run the routes of the file.
func TestFinalizeRefusesWhoIsBehind(t *testing.T) {
	file := &rules.Routes{Digest: "file"}
	whole := Seen{Newest: wire.LevelNewest, Routes: "file", Answers: "this", At: time.Unix(1, 0)}
	if err := refuseBehind([]string{"a"}, map[string]Seen{"a": whole, "gone": {}}, "this", file); err != nil {
		t.Errorf("all are there: %v", err)
	}
	for name, c := range map[string]struct {
		change func(*Seen)
		says   string
	}{
		"answered an earlier question": {func(s *Seen) { s.Answers = "before" }, "process b does not say which levels it reads"},
		"never wrote":                  {func(s *Seen) { *s = Seen{} }, "process b does not say which levels it reads"},
		"reads less":                   {func(s *Seen) { s.Newest = wire.LevelNewest - 1 }, "process b of build"},
		"has another file":             {func(s *Seen) { s.Routes = "other" }, "process b runs other routes"},
	} {
		behind := whole
		c.change(&behind)
		err := refuseBehind([]string{"a", "b"}, map[string]Seen{"a": whole, "b": behind}, "this", file)
		if err == nil || !strings.Contains(err.Error(), c.says) || strings.Contains(err.Error(), "process a") {
			t.Errorf("%s: %v, want %q", name, err, c.says)
		}
	}
}
