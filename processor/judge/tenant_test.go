package judge_test

import (
	"fmt"
	"testing"
)

// outage is what a tenant sends to two inputs while an app is down for six hours, one event in five seconds to each
// input. It also has what the app must grant of these events when it has read one input after the other.
type outage struct {
	quota string
	first bool // the app has never run before
	known bool // the tenant has sent an event before the outage
	// restarts and aborts say whether the app restarts or aborts transactions while it reads the second input.
	restarts, aborts bool

	granted int64 // of the events of the outage
	live    int64 // of 100 events at once after it
}

// TestOutagePutsNoTenantOverItsQuota protects that a tenant's events count at the time at which they were sent, in
// whatever order the app reads the inputs. A tenant that sends more than its quota gets no more because of an outage,
// nor does a tenant whose records have wrong timestamps.
func TestOutagePutsNoTenantOverItsQuota(t *testing.T) {
	t.Parallel()
	const second, hour = int64(1000), int64(3_600_000)
	const every, took = 5 * second, 6 * hour
	const all = 2 * took / every
	below, above := "events_per_second: 0.5", "events_per_second: 0.1"
	for _, c := range []outage{
		{quota: below, known: true, granted: all, live: 5},
		{quota: below, granted: all, live: 5},
		{quota: below, first: true, granted: all, live: 4},
		{quota: below, first: true, restarts: true, granted: all, live: 4},
		{quota: below, known: true, restarts: true, granted: all, live: 5},
		{quota: below, known: true, aborts: true, granted: all, live: 5},
		{quota: above, known: true, granted: took / (10 * second), live: 0},
		{quota: above, known: true, restarts: true, granted: took / (10 * second), live: 0},
		{quota: "keys: 1700", known: true, granted: all, live: 100},
		{quota: "keys: 1440", known: true, granted: all - 26, live: 0},
	} {
		t.Run(fmt.Sprintf("%+v", c), func(t *testing.T) {
			t.Parallel()
			s := newSourceWorld(t, "    tenant: {header: x-tenant}\n    quota: {"+c.quota+"}\n")
			if !c.first {
				s.progress(0, 0)
			}
			if c.known {
				s.event("a.raw", 0)
			}
			s.now += took
			s.emitted = nil
			granted := int64(0)
			for _, topic := range []string{"b.raw", "a.raw"} {
				for at := every; at <= took; at += every {
					if c.restarts && topic == "a.raw" && at == hour {
						s.restart(false)
					}
					s.route(topic, 0, at)
				}
				if topic == "b.raw" {
					s.announce(-1, took) // the other input is not read yet
				} else if s.announce(took, took); c.aborts {
					s.judge()
					s.abort()
				}
				s.run()
				granted += s.unique()
				s.emitted = nil
			}
			for range 100 {
				s.route("a.raw", 0, took-hour/2) // as if they had been sent before
			}
			s.run()
			if live := s.unique(); granted != c.granted || live != c.live {
				t.Errorf("%d of %d events of the outage were granted, want %d; of 100 at once %d, want %d", granted, all, c.granted, live, c.live)
			}
		})
	}
}

// unique returns how many events were emitted since the last step.
func (s *sourceWorld) unique() (n int64) {
	for _, r := range s.emitted {
		if r.Topic == "signals.unique" {
			n++
		}
	}
	return n
}
