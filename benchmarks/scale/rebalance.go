//go:build unix

package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"oncebus/benchmarks/internal/bench"
	"oncebus/processor/kafkatest"
	"oncebus/processor/kafkatest/program"
)

// The events of a rebalance: what the benchmark does with the last process of an app.
const (
	processStarts = "start"
	processStops  = "stop (SIGTERM)"
	processDies   = "kill -9"
)

// move has the measurements of one rebalance. A silence is the longest time between two commits of a partition that
// has input waiting, in milliseconds.
type move struct {
	Event    string
	Balanced float64 // seconds until all tasks run
	Moved    int     // number of tasks that moved
	Silence  bench.Spread
	Others   float64 // longest silence of a task that did not move, ms
}

// balancedPause is how long the traffic continues to be measured after a rebalance.
const balancedPause = 3 * time.Second

// errEnough ends the traffic.
var errEnough = errors.New("enough traffic")

// measureRebalances starts and ends the last process of an app while events arrive.
func measureRebalances(ctx context.Context, b *bed) (moves []move, err error) {
	a, err := b.newApp(ctx, "rebalance", b.s.rebalance, true, manyKeys)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, a.close()) }()
	var services []*program.Process
	defer func() { err = errors.Join(err, end(services...)) }()
	for i := range a.shape.Processes - 1 {
		s, err := a.start(ctx, i)
		if err != nil {
			return nil, err
		}
		services = append(services, s)
	}
	if err := a.allRun(ctx, services...); err != nil {
		return nil, err
	}
	if err := a.fill(ctx, b.s.known, services...); err != nil {
		return nil, err
	}
	note("%d keys known", b.s.known)
	stopTraffic := a.traffic(ctx, b.s.rate)
	moves, err = a.cycles(ctx, services)
	if err := errors.Join(err, stopTraffic()); err != nil {
		return moves, err
	}
	if err := a.watch.drained(ctx, services...); err != nil {
		return moves, err
	}
	for _, s := range services {
		err = errors.Join(err, s.Stop())
	}
	if err := errors.Join(err, a.verify(ctx)); err != nil {
		return moves, err
	}
	b.progress.Done("rebalance of %v", a.shape)
	return moves, nil
}

// traffic streams events at a rate until the returned function is called.
func (a *app) traffic(ctx context.Context, rate int) (stop func() error) {
	enough := make(chan struct{})
	var running sync.WaitGroup
	var err error
	running.Go(func() {
		pace := a.load.pace(rate)
		err = a.load.stream(ctx, manyKeys, func(ctx context.Context) error {
			select {
			case <-enough:
				return errEnough
			default:
				return pace(ctx)
			}
		})
		err = errors.Join(err, a.load.client.Flush(ctx))
	})
	return func() error {
		close(enough)
		running.Wait()
		if errors.Is(err, errEnough) {
			return nil
		}
		return err
	}
}

// cycles starts, stops, starts and kills the last process, as often as the flag requires.
func (a *app) cycles(ctx context.Context, stay []*program.Process) (moves []move, err error) {
	for n := range a.s.cycles {
		var comes *program.Process
		for _, event := range []string{processStarts, processStops, processStarts, processDies} {
			m, s, err := a.move(ctx, event, stay, comes)
			if err != nil {
				return moves, errors.Join(fmt.Errorf("%s: %w", event, err), end(s))
			}
			comes = s
			note("rebalance %d, %s: balanced after %.1f s, %d tasks moved, silent for %.0f ms, others %.0f ms", n+1, event, m.Balanced, m.Moved, m.Silence.Median, m.Others)
			moves = append(moves, m)
		}
	}
	return moves, nil
}

// move starts or ends the last process. It returns the process that it started, if any.
func (a *app) move(ctx context.Context, event string, stay []*program.Process, goes *program.Process) (m move, comes *program.Process, err error) {
	m.Event = event
	var moved []int
	if goes != nil {
		if moved, err = tasks(ctx, goes); err != nil {
			return m, goes, err
		}
	}
	a.watch.reset()
	began := time.Now()
	services := stay
	switch event {
	case processStarts:
		if comes, err = a.start(ctx, len(stay)); err != nil {
			return m, nil, err
		}
		services = append(slices.Clone(stay), comes)
	case processStops:
		err = goes.Stop()
	case processDies:
		err = goes.Kill()
	}
	if err == nil {
		err = a.allRun(ctx, services...)
	}
	if err != nil {
		return m, comes, err
	}
	m.Balanced = time.Since(began).Seconds()
	if err := kafkatest.Pause(ctx, balancedPause); err != nil {
		return m, comes, err
	}
	if comes != nil {
		if moved, err = tasks(ctx, comes); err != nil {
			return m, comes, err
		}
	}
	m.silences(a.watch.longestGaps(), moved)
	if m.Moved == 0 {
		err = errors.New("no task moved")
	}
	return m, comes, err
}

// silences separates the gaps of the partitions that moved from the gaps of the others.
func (m *move) silences(gaps []float64, moved []int) {
	var silent []float64
	for p, gap := range gaps {
		if slices.Contains(moved, p) {
			silent = append(silent, gap)
		} else {
			m.Others = max(m.Others, gap)
		}
	}
	if m.Moved = len(silent); m.Moved > 0 {
		m.Silence = bench.SpreadOf(silent)
	}
}
