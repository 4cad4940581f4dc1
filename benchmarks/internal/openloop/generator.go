//go:build unix

package openloop

import (
	"context"
	"time"
)

// Clock is the time source of the generator. Tests use a clock that they advance themselves.
type Clock struct {
	Now   func() time.Duration // since the start of the schedule
	Sleep func(time.Duration)  // waits for about this long
}

// ClockFrom returns the machine's monotonic clock, counted from start.
func ClockFrom(start time.Time) Clock {
	return Clock{Now: func() time.Duration { return time.Since(start) }, Sleep: pause}
}

// Generator produces the events of a schedule when they are due. It is an open loop: it waits for no response.
// After a delay of any cause, it sends at once all events that are due by then.
type Generator struct {
	Schedule Schedule
	Clock    Clock
	Send     func(n int)
	// Behind is how long after its due time each measured event was passed to the client. This is the generator's
	// share of the latency.
	Behind Histogram
}

// Run returns nil when the last event was sent, or the error of ctx.
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
