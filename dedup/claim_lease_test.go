package dedup

import (
	"testing"
	"time"
)

// TestLeaseAfterABrokerClockThatJumps covers a claim that has the broker time of its dispatch, while the clock jumps
// by a day and the task notices the jump and starts again. The lease must end neither at once nor a day later, but
// its length after the jump.
func TestLeaseAfterABrokerClockThatJumps(t *testing.T) {
	const (
		day   = int64(24 * time.Hour / time.Millisecond)
		lease = int64(10 * time.Minute / time.Millisecond)
		first = int64(1_700_000_000_000)
	)
	window := Window{Size: day}
	rule := ClaimRule{Lease: lease}
	for _, written := range []bool{false, true} {
		testLeaseAfterAStep(t, func(received, started int64) ClaimEvent {
			ev := ClaimEvent{Event: Event{Digest: Digest{1}, Time: first}, ReceivedAt: received, DispatchedAt: received, TaskStartedAt: started}
			ev.Evidence = LeaseEvidence{Written: written, OutcomesReadTo: received, SteppedAt: started}
			return ev
		}, window, rule, day, lease, first)
	}
}

func testLeaseAfterAStep(t *testing.T, event func(received, started int64) ClaimEvent, window Window, rule ClaimRule, day, lease, first int64) {
	t.Helper()
	claimed, err := DecideClaim(event(first, first-lease), Row{}, false, window, rule, NoStreamTime)
	if err != nil || !claimed.Dispatch {
		t.Fatalf("%+v, %v", claimed, err)
	}
	for _, jump := range []int64{-day, 0, day} {
		step := first + 60_000 + jump // a minute later the clock has jumped, and the task has noticed it
		for _, c := range []struct {
			after   int64
			expired bool
		}{{0, false}, {lease - 1, false}, {lease, false}, {lease + 1, true}} {
			duplicate, err := DecideClaim(event(step+c.after, step), claimed.Row, true, window, rule, first)
			if err != nil {
				t.Fatal(err)
			}
			if duplicate.LeaseExpired != c.expired {
				t.Errorf("jump of %v, %v after it: expired %v", time.Duration(jump)*time.Millisecond, time.Duration(c.after)*time.Millisecond, duplicate.LeaseExpired)
			}
		}
	}
	// The clocks of two brokers may differ by seconds: a claim that is a little ahead keeps its time.
	duplicate, err := DecideClaim(event(first-30_000, first-3*lease), claimed.Row, true, window, rule, first)
	if err != nil || duplicate.LeaseExpired {
		t.Errorf("a claim 30 s ahead: %+v, %v", duplicate, err)
	}
}
