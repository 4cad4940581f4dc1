package processor

import (
	"testing"
	"time"

	"oncebus/processor/judge"
)

// TestDueOfATransaction protects when a worker ends a transaction: a commit interval after the one before, or at once
// if a request waits for the transaction. After a transaction of many records, which means load, it does not end at
// once.
func TestDueOfATransaction(t *testing.T) {
	const interval = 100 * time.Millisecond
	x := &transactions{shared: &shared{}, emitter: &judge.Emitter{}}
	x.cfg.CommitInterval = interval
	began := time.Unix(1_700_000_000, 0)
	ended := began.Add(2 * time.Millisecond)
	for _, c := range []struct {
		name    string
		records int // of the one before
		awaited bool
		now     time.Duration // since that began its end
		want    time.Duration
	}{
		{"no request", 1, false, 10 * time.Millisecond, 90 * time.Millisecond},
		{"no request, after a pause", 1, false, time.Second, 0},
		{"a request", 1, true, 10 * time.Millisecond, 0},
		{"a request, while the markers are written", 1, true, 2 * time.Millisecond, markerTime},
		{"a request after 100 records", 100, true, 10 * time.Millisecond, 20 * time.Millisecond},
		{"a request under load", 1000, true, 10 * time.Millisecond, 90 * time.Millisecond},
		{"a request after a transaction without records", 0, true, 10 * time.Millisecond, 0},
	} {
		x.records, x.emitter.Awaited = c.records, c.awaited
		x.setDue(began, ended)
		now := began.Add(c.now)
		if got := x.waitForMore(now, now.Add(interval)); got != c.want {
			t.Errorf("%s: it waits for %v, want %v", c.name, got, c.want)
		}
		if got := x.waitForMore(now, now.Add(time.Microsecond)); got > time.Microsecond {
			t.Errorf("%s: it waits for %v, longer than it may be open", c.name, got)
		}
	}
}
