package app

import (
	"strings"
	"testing"
)

// TestWhyTimeIsHeld: each cause has its way out.
func TestWhyTimeIsHeld(t *testing.T) {
	t.Parallel()
	id := TaskID{"orders.raw", 3}
	for _, c := range []struct {
		name         string
		source       string
		facts        inputFacts
		text, action string
	}{
		{"hold", "orders.raw/3", inputFacts{hold: &Hold{}}, "are held", "end the hold"},
		{"not counted", "orders.raw", inputFacts{}, "how many partitions", "start a process"},
		{"a partition that was added since", "orders.raw/3", inputFacts{}, "how many partitions", "start a process"},
		{"no leader", "orders.raw/3", inputFacts{lags: map[TaskID]int64{id: -1}, readers: map[TaskID]string{id: "one"}}, "has no leader", "start the brokers that are down"},
		{"no process", "orders.raw/3", inputFacts{lags: map[TaskID]int64{id: 7}}, "no process reads it, and it has 7 records", "start a process"},
		{"read", "orders.raw/3", inputFacts{lags: map[TaskID]int64{id: 0}, readers: map[TaskID]string{id: "one"}}, "client one has read it to its end", "repeat the command"},
		{"paused or slow", "orders.raw/3", inputFacts{lags: map[TaskID]int64{id: 7}, readers: map[TaskID]string{id: "one"}}, "it has 7 records, and client one reads it", "restart it"},
	} {
		f := &Facts{inputs: c.facts}
		if text, action := f.whyHeld(&HeldTime{Source: c.source}); !strings.Contains(text, c.text) || !strings.Contains(action, c.action) {
			t.Errorf("%s: %q, %q, want %q, %q", c.name, text, action, c.text, c.action)
		}
	}
}
