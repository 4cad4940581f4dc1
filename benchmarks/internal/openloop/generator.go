//go:build unix

package openloop

import (
	"context"
	"time"
)

// Clock is where the generator has the time from. Tests have their own, which
// moves when they say.
type Clock struct {
	Now   func() time.Duration // since the start of the schedule
	Sleep func(time.Duration)  // about this long
}

// ClockFrom is the machine's clock (its monotonic one) counted from start.
func ClockFrom(start time.Time) Clock {
	return Clock{Now: func() time.Duration { return time.Since(start) }, Sleep: pause}
}

// Generator produces the events of a schedule when they are due. It is open
// loop: it waits for no response, and after a delay, of whatever cause, it sends
// all that is due by then at once.
type Generator struct {
	Schedule Schedule
	Clock    Clock
	Send     func(n int)
	// Behind is how far after its due time each measured event was handed to
	// the client: the generator's own share of the latency.
	Behind Histogram
}

// Run returns when the last event was sent, or with the error of ctx.
func (g *Generator) Run(ctx context.Context) error {
	for n := range g.Schedule.Events() {
		due := g.Schedule.Due(n)
		for {
			early := due - g.Clock.Now()
			if early <= 0 {
				break
			}
			if ctx.Err() != nil {
				return ctx.Err()
			}
			g.Clock.Sleep(early)
		}
		g.Send(n)
		if g.Schedule.Counts(n) {
			g.Behind.Record(g.Clock.Now() - due)
		}
	}
	return nil
}
