package processor_test

import (
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"oncebus/processor"
	"oncebus/processor/app"
	"oncebus/processor/wire"
)

// fakeClocks are a machine's wall clock and monotonic clock, which a test sets.
type fakeClocks struct{ wall, mono atomic.Int64 } // added to the real ones

// replace makes a processor use these clocks.
func (f *fakeClocks) replace(p *processor.Processor) {
	began := time.Now()
	p.SetMachine(func() app.Instant {
		now := time.Now()
		return app.Instant{Wall: now.UnixMilli() + f.wall.Load(), Mono: now.Sub(began) + time.Duration(f.mono.Load())*time.Millisecond}
	})
}

// advance lets time pass on the machine that the broker does not see.
func (f *fakeClocks) advance(d time.Duration) {
	f.wall.Add(d.Milliseconds())
	f.mono.Add(d.Milliseconds())
}

// isNow reports whether a broker time is close to the present time.
func isNow(ms int64) bool {
	off := time.Since(time.UnixMilli(ms)).Abs()
	return off < 40*time.Second
}

// TestSuspendedMachineObservesBrokerTime stops the monotonic clock for a day. The estimate of the broker's time is
// right again before the process judges any event.
func TestSuspendedMachineObservesBrokerTime(t *testing.T) {
	t.Parallel()
	b := newBench(t, benchRoutes)
	var clocks fakeClocks
	i := b.ready(b.startWith(b.config("one"), clocks.replace))
	clocks.mono.Add(-24 * time.Hour.Milliseconds())
	b.wait("an observation", func() bool { return isNow(i.App().Clock.Now()) })
	metrics := gather(t, i)
	if metrics["oncebus_broker_clock_steps_total"] != 1 {
		t.Errorf("%v steps are counted", metrics["oncebus_broker_clock_steps_total"])
	}
	if off := metrics["oncebus_broker_clock_offset_seconds"]; off < -40 || off > 40 {
		t.Errorf("offset %v s", off)
	}
	b.wait("the log line that names the step", func() bool { return strings.Contains(b.logs.String(), "broker time changed by a step") })
}

// TestEstimateOfBrokerTimeThatIsADayOff sets the broker's clock while the app is idle. The topic has the producers'
// timestamps, so the process's estimate decides which events are from the future.
func TestEstimateOfBrokerTimeThatIsADayOff(t *testing.T) {
	t.Parallel()
	for name, off := range map[string]time.Duration{"behind": -24 * time.Hour, "ahead": 24 * time.Hour} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newBench(t, keyedRoutes)
			var clocks fakeClocks
			i := b.ready(b.startWith(b.config("one"), clocks.replace))
			i.App().Clock.Set(time.Now().Add(off).UnixMilli())
			clocks.advance(11 * time.Minute)
			now := time.Now()
			b.produce(signal("now", 0, now.UnixMilli()), signal("tomorrow", 1, now.Add(20*time.Hour).UnixMilli()))
			b.wait("both events", func() bool { return len(b.read("signals.unique"))+len(b.read("dead")) == 2 })
			b.assertKeys("signals.unique", "now")
			b.assertKeys("dead", "tomorrow")
			if now := i.App().Clock.Now(); !isNow(now) {
				t.Errorf("the estimate is %v", time.UnixMilli(now))
			}
			if n := i.App().Clock.Steps(); n != 1 {
				t.Errorf("%d steps", n)
			}
		})
	}
}

// TestLeasesBeginAgainAfterAStepOfBrokerTime lets a record show that the estimate is a day wrong. From this step on,
// the task measures leases from the step, as it does after its start.
func TestLeasesBeginAgainAfterAStepOfBrokerTime(t *testing.T) {
	t.Parallel()
	for name, off := range map[string]time.Duration{"behind": -24 * time.Hour, "ahead": 24 * time.Hour} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newBench(t, fmt.Sprintf(claimRoutes, "reject"))
			var clocks fakeClocks
			i := b.ready(b.startWith(b.onePartition("one"), clocks.replace))
			b.produce(operation("first", "a", 0))
			b.drainClaims(i)
			_, started := lastLease(t, b)
			i.App().Clock.Set(time.Now().Add(off).UnixMilli())
			clocks.advance(time.Minute)
			step := time.Now().UnixMilli()
			b.produce(operation("second", "a", 0))
			b.drainClaims(i)
			if n := i.App().Clock.Steps(); n != 1 {
				t.Errorf("%d steps", n)
			}
			began, up := lastLease(t, b)
			if up <= started || up < step-2000 || began < up || !isNow(began) {
				t.Errorf("the transaction began at %v, the task at %v; the step was at %v", time.UnixMilli(began), time.UnixMilli(up), time.UnixMilli(step))
			}
		})
	}
}

// lastLease returns when the transaction of the newest checkpoint began, and the time since which its task judges.
func lastLease(t *testing.T, b *bench) (began, up int64) {
	t.Helper()
	var last string
	for _, r := range b.read("app-repartition-changelog") {
		if wire.IsCheckpoint(r.Key) {
			last = header(r, wire.HeaderLease)
		}
	}
	if _, err := fmt.Sscanf(last, "%d %d", &began, &up); err != nil {
		t.Fatal(err)
	}
	return began, up
}
