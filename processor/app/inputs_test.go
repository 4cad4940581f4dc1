package app

import (
	"strings"
	"testing"
	"time"
)

// TestHeldInputsHaveTheirWayOut: by the kind of the hold. An app that has left processes nothing here any more.
func TestHeldInputsHaveTheirWayOut(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name         string
		hold         Hold
		level        Level
		text, action string
	}{
		{"plain", Hold{}, AtRisk, "the inputs are held since 2026-03-01T00:00:00Z by ann: repair; records that wait in 1 partitions of the inputs: 7", "oncebus release ends the hold"},
		{"part of a move", Hold{Switch: "move-2"}, AtRisk, ": repair; records", "the change that began the hold ends it: oncebus hold shows how far it is"},
		{"leaving", Hold{Leaving: true}, AtRisk, ": repair; the app leaves this cluster; records", "oncebus export --leaving is next, or, if the app was not released in the other cluster, oncebus release --back"},
		{"left", Hold{Leaving: true, Left: true}, Fails, ": repair; the app has left this cluster for good; records", "it runs in the other cluster: stop its processes here"},
		{"arriving", Hold{Arriving: true}, AtRisk, ": repair; the app arrives from another cluster; records", "oncebus seed with the file of oncebus arrive, then oncebus release"},
	} {
		h := c.hold
		h.Reason, h.By, h.At = "repair", "ann", time.Date(2026, 3, 1, 0, 0, 0, 0, time.UTC)
		f := &Facts{manifest: &Manifest{}, inputs: inputFacts{hold: &h, lags: map[TaskID]int64{{"orders.raw", 0}: 7}}}
		got := f.judgeInputs()
		if len(got) != 1 || got[0].Level != c.level || !strings.Contains(got[0].Text, c.text) || got[0].Action != c.action {
			t.Errorf("%s: %+v, want %v, %q, %q", c.name, got, c.level, c.text, c.action)
		}
	}
}

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
