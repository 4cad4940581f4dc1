//go:build unix

package main

import (
	"context"
	"testing"
	"time"

	"oncebus/benchmarks/internal/openloop"
)

// fakeSystem is a generator, a contender and a consumer with one simulated clock. The
// contender emits an event at once, except while it stalls.
type fakeSystem struct {
	at     time.Duration
	ledger *ledger
	stall  func(at time.Duration) (until time.Duration) // at itself without a stall
	queue  []int
}

// advance advances the clock, and emits the events that are due until then.
func (f *fakeSystem) advance(to time.Duration) {
	if free := f.stall(f.at); len(f.queue) > 0 && free <= to {
		f.at = max(f.at, free)
		for _, n := range f.queue {
			f.ledger.arrive(n, f.at)
		}
		f.queue = nil
	}
	f.at = max(f.at, to)
}

func (f *fakeSystem) clock() openloop.Clock {
	return openloop.Clock{Now: func() time.Duration { return f.at }, Sleep: func(d time.Duration) { f.advance(f.at + d) }}
}

func (f *fakeSystem) run(t *testing.T, send func(n int)) *openloop.Generator {
	t.Helper()
	g := &openloop.Generator{Schedule: f.ledger.schedule, Clock: f.clock(), Send: send}
	if err := g.Run(context.Background()); err != nil {
		t.Fatal(err)
	}
	f.advance(time.Hour)
	if err := f.ledger.verdict(); err != nil {
		t.Fatal(err)
	}
	return g
}

// within compares, with the tolerance of the histogram and a tick.
func within(t *testing.T, what string, got, want time.Duration) {
	t.Helper()
	if got < want-openloop.Tick || float64(got) > 1.01*float64(want)+float64(openloop.Tick) {
		t.Errorf("%s is %v, want %v", what, got, want)
	}
}

// tenSeconds is a schedule of 10,000 measured events.
var tenSeconds = openloop.Schedule{Rate: 1000, Warmup: time.Second, Measured: 10 * time.Second}

// stalled has one stall of a second.
func stalled(at time.Duration) time.Duration {
	if at >= 5*time.Second && at < 6*time.Second {
		return 6 * time.Second
	}
	return at
}

// TestAStallOfTheContenderIsCountedInFull: a tenth of all events is due during a
// stall of 1 s, and they wait from 0 to 1 s. So 1 % of all wait more than 0.9 s, and
// 5 % more than 0.5 s. A closed loop would have sent one event during the stall, and
// measured a p99 of almost 0.
func TestAStallOfTheContenderIsCountedInFull(t *testing.T) {
	f := &fakeSystem{ledger: newLedger(tenSeconds, true, 0), stall: stalled}
	f.run(t, func(n int) { f.queue = append(f.queue, n) })
	latency := &f.ledger.latency
	if latency.Total != 10_000 {
		t.Fatalf("%d events were measured, want 10,000", latency.Total)
	}
	within(t, "p50", latency.Quantile(0.5), 0)
	within(t, "p90", latency.Quantile(0.9), 0)
	within(t, "p95", latency.Quantile(0.95), 500*time.Millisecond)
	within(t, "p99", latency.Quantile(0.99), 900*time.Millisecond)
	within(t, "p99.9", latency.Quantile(0.999), 990*time.Millisecond)
	within(t, "the maximum", latency.Highest, time.Second)
}

// TestAStallOfTheGeneratorIsCountedInFull: the client blocks for a second. The events
// that were due are sent late, all of them, and their latency counts from the due
// times. The generator reports its part.
func TestAStallOfTheGeneratorIsCountedInFull(t *testing.T) {
	f := &fakeSystem{ledger: newLedger(tenSeconds, true, 0), stall: func(at time.Duration) time.Duration { return at }}
	g := f.run(t, func(n int) {
		f.at = max(f.at, stalled(f.at))
		f.queue = append(f.queue, n)
	})
	for what, h := range map[string]*openloop.Histogram{"latency": &f.ledger.latency, "behind": &g.Behind} {
		if h.Total != 10_000 {
			t.Fatalf("%s: %d events were measured, want 10,000", what, h.Total)
		}
		within(t, what+": p50", h.Quantile(0.5), 0)
		within(t, what+": p95", h.Quantile(0.95), 500*time.Millisecond)
		within(t, what+": p99", h.Quantile(0.99), 900*time.Millisecond)
		within(t, what+": the maximum", h.Highest, time.Second)
	}
}
