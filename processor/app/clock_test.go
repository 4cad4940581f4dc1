package app

import (
	"testing"
	"time"
)

const dayMS = 24 * 60 * 60 * 1000

// fakeMachine has the clocks of a machine, and of the broker.
type fakeMachine struct {
	Instant
	broker int64
}

// pass lets time pass; suspended, the machine's monotonic clock does not run.
func (m *fakeMachine) pass(d time.Duration, suspended bool) {
	m.broker += d.Milliseconds()
	m.Wall += d.Milliseconds()
	if !suspended {
		m.Mono += d
	}
}

// newClocks returns a machine whose clock is 5 s behind the broker's, and the estimate of
// broker time.
func newClocks() (*fakeMachine, *BrokerClock) {
	m := &fakeMachine{Instant{Wall: 1_700_000_000_000, Mono: time.Hour}, 1_700_000_005_000}
	c := &BrokerClock{Machine: func() Instant { return m.Instant }}
	c.observed(m.broker, m.Instant)
	return m, c
}

func (m *fakeMachine) assert(t *testing.T, c *BrokerClock, steps uint64) {
	t.Helper()
	if off := c.Now() - m.broker; off < -1000 || off > 1000 {
		t.Errorf("the estimate is %v off", time.Duration(off)*time.Millisecond)
	}
	if got := c.Steps(); got != steps {
		t.Errorf("%d steps, want %d", got, steps)
	}
}

// TestClockRunsWithTheMachine: without a doubt there is no observation.
func TestClockRunsWithTheMachine(t *testing.T) {
	m, c := newClocks()
	m.pass(10*time.Hour, false)
	m.assert(t, c, 0)
	if c.Suspended() || c.Received(m.broker, true) || c.Received(m.broker-dayMS, false) || c.Doubts(m.broker, 1000*3600) {
		t.Error("a correct estimate is doubted")
	}
	m.assert(t, c, 0)
	if c.Offset() != 5*time.Second {
		t.Errorf("offset %v", c.Offset())
	}
}

// TestClockAfterASuspend: the monotonic clock did not run for a day. The machine's clocks
// disagree, and so does the first record.
func TestClockAfterASuspend(t *testing.T) {
	m, c := newClocks()
	m.pass(24*time.Hour, true)
	if !c.Suspended() {
		t.Error("a suspend is not noticed")
	}
	sent := m.Instant
	m.pass(20*time.Millisecond, false)
	c.observed(m.broker, sent)
	m.assert(t, c, 1)
	if c.Suspended() {
		t.Error("the suspend is noticed a second time")
	}

	m, c = newClocks()
	m.pass(24*time.Hour, true)
	if c.Received(m.broker, true) {
		t.Error("a record shows the time, and leaves a doubt")
	}
	m.assert(t, c, 1)
}

// TestBrokerClockThatJumps: forth by a day, back by a day, and small differences between
// brokers.
func TestBrokerClockThatJumps(t *testing.T) {
	m, c := newClocks()
	m.pass(time.Minute, false)
	m.broker += dayMS
	c.Received(m.broker, true)
	m.assert(t, c, 1)

	m.pass(time.Minute, false)
	m.broker -= dayMS
	if c.Received(m.broker, false) {
		t.Error("an old record of a backlog is doubted")
	}
	if !c.Received(m.broker, true) {
		t.Error("the clock is a day back, and nothing is doubted")
	}
	sent := m.Instant
	c.observed(m.broker, sent)
	m.assert(t, c, 2)
	// Another worker had the same doubt.
	c.observed(m.broker, sent)
	c.Received(m.broker, true)
	m.assert(t, c, 2)

	m.pass(time.Minute, false)
	c.Received(m.broker+900, true)
	c.observed(m.broker-900, m.Instant)
	m.assert(t, c, 2)
}

// TestLocalClockThatJumps: the wall clock was set, the broker's was not.
func TestLocalClockThatJumps(t *testing.T) {
	for _, by := range []int64{dayMS, -dayMS} {
		m, c := newClocks()
		m.pass(time.Minute, false)
		m.Wall += by
		m.assert(t, c, 0)
		if !c.Suspended() {
			t.Error("a change of the wall clock looks like a suspend, and is not noticed")
		}
		c.observed(m.broker, m.Instant)
		m.assert(t, c, 0)
		if c.Suspended() {
			t.Error("the change is noticed a second time")
		}
	}
}

// TestEventsFromTheFutureAreDoubted: an estimate that is a day wrong, in either direction,
// is observed again before an event is judged by it.
func TestEventsFromTheFutureAreDoubted(t *testing.T) {
	const skew = 3_600_000
	m, c := newClocks()
	m.pass(time.Minute, false)
	m.broker += dayMS
	if !c.Doubts(m.broker, skew) {
		t.Error("an event of now is judged by an estimate of yesterday")
	}
	m, c = newClocks()
	c.Set(m.broker + dayMS)
	m.pass(11*time.Minute, false)
	if !c.Doubts(m.broker+dayMS/2, skew) {
		t.Error("an event of tomorrow is judged by an estimate of tomorrow")
	}
	c.observed(m.broker, m.Instant)
	if c.Doubts(m.broker+dayMS/2, skew) {
		t.Error("a fresh estimate is doubted")
	}
	m.assert(t, c, 1)
}

// TestSlowObservation: the broker took its time between the request and the response.
func TestSlowObservation(t *testing.T) {
	m, c := newClocks()
	sent := m.Instant
	m.pass(30*time.Second, false)
	at := m.broker
	m.pass(30*time.Second, false)
	c.observed(at, sent)
	m.assert(t, c, 0)
}
