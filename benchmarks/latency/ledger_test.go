//go:build unix

package main

import (
	"strings"
	"testing"
	"time"

	"oncebus/benchmarks/internal/openloop"
)

// TestLedgerVerdict gives every event of a schedule to ledgers, with one mistake.
func TestLedgerVerdict(t *testing.T) {
	s := openloop.Schedule{Rate: 1000, Warmup: time.Second, Measured: time.Second, Duplicates: 10}
	var aDuplicate int
	for aDuplicate = range s.Events() {
		if s.First(aDuplicate) != aDuplicate {
			break
		}
	}
	tests := map[string]struct {
		dedups  bool
		play    func(l *ledger, n int)
		mistake string
	}{
		"all firsts":              {true, func(l *ledger, n int) { arriveIf(l, n, s.First(n) == n) }, ""},
		"everything":              {false, func(l *ledger, n int) { arriveIf(l, n, true) }, ""},
		"a duplicate was emitted": {true, func(l *ledger, n int) { arriveIf(l, n, s.First(n) == n || n == aDuplicate) }, "1 arrivals are duplicates"},
		"a duplicate was lost":    {false, func(l *ledger, n int) { arriveIf(l, n, n != aDuplicate) }, "1 of 3000 events have not arrived"},
		"a first was lost":        {true, func(l *ledger, n int) { arriveIf(l, n, s.First(n) == n && n != 77) }, "the first of them number 77"},
		"an event arrived twice":  {false, func(l *ledger, n int) { arriveIf(l, n, true); arriveIf(l, n, n == 5) }, "1 arrivals are duplicates"},
		"one is foreign":          {false, func(l *ledger, n int) { arriveIf(l, n, true); arriveIf(l, -1, n == 5) }, "1 arrivals were never sent"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			l := newLedger(s, test.dedups, 2)
			if l.primed() {
				t.Error("primed without a primer")
			}
			l.arrive(s.Events(), -time.Second)
			l.arrive(s.Events()+1, -time.Second)
			if !l.primed() || l.complete() {
				t.Errorf("after the primers: primed %v, complete %v", l.primed(), l.complete())
			}
			for n := range s.Events() {
				test.play(l, n)
			}
			switch err := l.verdict(); {
			case test.mistake == "" && err != nil:
				t.Errorf("verdict %v, want none", err)
			case test.mistake != "" && (err == nil || !strings.Contains(err.Error(), test.mistake)):
				t.Errorf("verdict %v, want one with %q", err, test.mistake)
			}
		})
	}
}

// arriveIf makes event n arrive 10 ms after its due time.
func arriveIf(l *ledger, n int, arrives bool) {
	if arrives {
		l.arrive(n, l.schedule.Due(max(0, n))+10*time.Millisecond)
	}
}

// TestLedgerMeasuresTheFirstsOfTheMeasuredPart: the ledger measures the same events
// whether or not the contender drops duplicates.
func TestLedgerMeasuresTheFirstsOfTheMeasuredPart(t *testing.T) {
	s := openloop.Schedule{Rate: 1000, Warmup: time.Second, Measured: time.Second, Duplicates: 10}
	for _, dedups := range []bool{true, false} {
		l := newLedger(s, dedups, 0)
		for n := range s.Events() {
			arriveIf(l, n, l.expected(n))
		}
		if l.latency.Total != 900 {
			t.Errorf("dedups %v: %d events measured, want 900", dedups, l.latency.Total)
		}
		if l.drain() != 10*time.Millisecond {
			t.Errorf("dedups %v: the drain took %v, want 10ms", dedups, l.drain())
		}
	}
}

func TestEventsKeepTheirNumbers(t *testing.T) {
	for _, n := range []int{0, 7, 999_999_999_999} {
		r := newEvent(n, 3, time.Time{})
		if got := eventNumber(r.Value); got != n || string(r.Key) != "trace-000000000003" {
			t.Errorf("event %d has number %d and key %s", n, got, r.Key)
		}
	}
	for _, value := range []string{"", "{}", strings.Repeat("x", 300), strings.Replace(string(newEvent(1, 1, time.Time{}).Value), "seq", "two", 1)} {
		if got := eventNumber([]byte(value)); got != -1 {
			t.Errorf("%.40q has number %d", value, got)
		}
	}
}
