//go:build unix

package main

import (
	"context"
	"time"
)

// clock is where the generator has the time from. Tests have their own, which
// moves when they say.
type clock struct {
	now   func() time.Duration // since the start of the schedule
	sleep func(time.Duration)  // about this long
}

// clockFrom is the machine's clock (its monotonic one) counted from start.
func clockFrom(start time.Time) clock {
	return clock{now: func() time.Duration { return time.Since(start) }, sleep: pause}
}

// generator produces the events of a schedule when they are due. It is open
// loop: it waits for no answer, and after a delay, of whatever cause, it sends
// all that is due by then at once.
type generator struct {
	schedule schedule
	clock    clock
	send     func(n int)
	// behind is how far after its due time each measured event was handed to
	// the client: the generator's own share of the latency.
	behind histogram
}

// run returns when the last event was sent, or with the error of ctx.
func (g *generator) run(ctx context.Context) error {
	for n := range g.schedule.events() {
		due := g.schedule.due(n)
		for {
			early := due - g.clock.now()
			if early <= 0 {
				break
			}
			if ctx.Err() != nil {
				return ctx.Err()
			}
			g.clock.sleep(early)
		}
		g.send(n)
		if g.schedule.counts(n) {
			g.behind.record(g.clock.now() - due)
		}
	}
	return nil
}
