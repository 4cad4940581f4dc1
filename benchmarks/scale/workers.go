//go:build unix

package main

import (
	"context"
	"errors"
	"fmt"
)

// shapeRun has the rate of one shape in one round.
type shapeRun struct {
	Shape shape
	Round int
	Rate  drainRun
}

// manyKeys is the horizon of an app in which no key may expire.
const manyKeys = 1 << 30

// measureShapes runs every shape in each round.
func measureShapes(ctx context.Context, b *bed) (runs []shapeRun, err error) {
	for round := range b.s.rounds {
		for _, sh := range b.s.shapes {
			m, err := shapeOnce(ctx, b, fmt.Sprintf("shape-%v-round-%d", sh, round+1), sh, b.s.events)
			if err != nil {
				return runs, fmt.Errorf("shape %v, round %d: %w", sh, round+1, err)
			}
			b.progress.Done("shape %-8v round %d: %4.0f k events/s, %.2f us CPU an event", sh, round+1, m.Rate/1e3, m.CPU)
			runs = append(runs, shapeRun{Shape: sh, Round: round + 1, Rate: m})
		}
	}
	return runs, nil
}

// warmUp does the same work as a measurement, once, in a separate app whose result does not count. Without it
// the first size or shape would be the slowest, because the JVM of a new broker is still compiling its code.
func warmUp(ctx context.Context, b *bed) error {
	note("  warm-up")
	_, err := shapeOnce(ctx, b, "warm-up", shape{1, b.s.workers, b.s.partitions}, warmUpEvents)
	return err
}

// warmUpEvents keep the broker busy for some ten seconds.
const warmUpEvents = 5_000_000

// shapeOnce runs an app with the given name and a backlog of events, and measures it.
func shapeOnce(ctx context.Context, b *bed, name string, sh shape, events int) (m drainRun, err error) {
	a, err := b.newApp(ctx, name, sh, true, manyKeys)
	if err != nil {
		return m, err
	}
	defer func() { err = errors.Join(err, a.close()) }()
	services, err := a.startAll(ctx)
	defer func() { err = errors.Join(err, end(services...)) }()
	if err != nil {
		return m, err
	}
	if m, err = a.drain(ctx, events, services...); err != nil {
		return m, err
	}
	for _, s := range services {
		err = errors.Join(err, s.Stop())
	}
	return m, errors.Join(err, a.verify(ctx))
}
