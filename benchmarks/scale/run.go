//go:build unix

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"time"

	"oncebus/benchmarks/internal/bench"
	"oncebus/processor/kafkatest/program"
)

// result is written as JSON.
type result struct {
	Complete   bool // every requested part was completed, and every output was correct
	LiveKeys   []liveRun
	Shapes     []shapeRun
	Rebalances []move
	Idle       []idleRun
	Restarts   []lightRun
	Takeovers  []takeover
	Seeds      []seedRun
	Changes    []changesRun

	s settings
}

// note prints what a run does on the terminal.
func note(format string, args ...any) { fmt.Fprintf(os.Stderr, format+"\n", args...) }

// run measures the requested parts and reports them. If a part fails, run reports the parts that were completed.
func run(ctx context.Context, s settings) (err error) {
	machine, r := bench.ThisMachine(), result{s: s}
	progress, err := bench.StartRuns(s.guesses())
	if err != nil {
		return err
	}
	broker, err := bench.StartBroker(ctx, "scale")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, broker.Close()) }()
	b := &bed{s: s, broker: broker, progress: progress}
	if b.binary, err = program.Build(ctx, broker.Dir); err != nil {
		return err
	}
	err = r.measure(ctx, b)
	r.Complete = err == nil
	return errors.Join(err, r.report(machine))
}

func (r *result) measure(ctx context.Context, b *bed) (err error) {
	if r.s.comparesRates() {
		if err := warmUp(ctx, b); err != nil {
			return fmt.Errorf("warm-up: %w", err)
		}
	}
	for _, part := range r.s.what {
		switch part {
		case "live-keys":
			r.LiveKeys, err = measureLive(ctx, b)
		case "workers":
			r.Shapes, err = measureShapes(ctx, b)
		case "rebalance":
			r.Rebalances, err = measureRebalances(ctx, b)
		case "restart":
			r.Restarts, err = measureRestarts(ctx, b)
		case "standby":
			r.Takeovers, err = measureTakeovers(ctx, b)
		case "seed":
			r.Seeds, err = measureSeeds(ctx, b)
		case "changes":
			r.Changes, err = measureChanges(ctx, b)
		case "idle":
			r.Idle, err = measureIdle(ctx, b)
		}
		if err != nil {
			return fmt.Errorf("%s: %w", part, err)
		}
	}
	return nil
}

// measures reports whether a size is measured in a round. Rounds count from 0.
func (s settings) measures(keys, round int) bool { return round == 0 || keys <= largeKeys }

// comparesRates reports whether a requested part compares rates within one run.
func (s settings) comparesRates() bool {
	return slices.Contains(s.what, "live-keys") || slices.Contains(s.what, "workers")
}

// Estimates of what a run takes on two cores that it shares with the broker (2026-11-23): events a second that are
// produced or processed, keys a second that are restored, and the time to start and end an app.
const (
	eventRate   = 200_000
	restoreRate = 1_500_000
	appTime     = 20 * time.Second
	changesRate = 40_000 // keys a second, over all commands and rebuilds of the part changes
)

// seedGuesses estimates the time of each run of the part seed.
func (s settings) seedGuesses(events func(n int) time.Duration) (all []time.Duration) {
	for _, keys := range s.seedKeys {
		all = append(all, appTime+events(4*keys))
	}
	return all
}

// guesses estimates the time of each run, in the order in which they report their progress.
func (s settings) guesses() (all []time.Duration) {
	events := func(n int) time.Duration { return time.Duration(n) * time.Second / eventRate }
	for _, part := range s.what {
		switch part {
		case "live-keys":
			for round := range s.rounds {
				for _, keys := range s.keys {
					if s.measures(keys, round) {
						// The backlogs: two of n, one of n/2 for each kill and one after the rebuild, each produced and processed.
						n := min(s.backlog, keys)
						all = append(all, appTime+s.flushWait+s.steady+events(keys)+events(4*n+(s.kills+1)*n)+time.Duration(keys)*time.Second/restoreRate)
					}
				}
			}
		case "workers":
			all = append(all, slices.Repeat([]time.Duration{appTime + events(2*s.events)}, s.rounds*len(s.shapes))...)
		case "rebalance":
			// A cycle consists of four moves. In each of two moves the group waits for the session timeout.
			all = append(all, appTime+events(s.known)+time.Duration(s.cycles)*(2*s.sessionTimeout+4*(balancedPause+5*time.Second)))
		case "restart":
			for _, keys := range s.restartKeys {
				all = append(all, s.restartGuess(keys))
			}
		case "standby":
			all = append(all, s.takeoverGuesses()...)
		case "seed":
			all = append(all, s.seedGuesses(events)...)
		case "changes":
			all = append(all, s.changesGuesses()...)
		case "idle":
			all = append(all, slices.Repeat([]time.Duration{appTime + quiet + s.idle + events(s.idleKeys)}, 4)...)
		}
	}
	if s.comparesRates() {
		all[0] += appTime + events(2*warmUpEvents)
	}
	return all
}
