//go:build unix

package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"runtime/debug"
	"slices"
	"time"

	"oncebus/benchmarks/internal/bench"
	"oncebus/benchmarks/internal/openloop"
)

type settings struct {
	rates      []int
	commits    []time.Duration
	only       string
	rounds     int
	partitions int
	workers    int
	duplicates int // percent
	warmup     time.Duration
	measured   time.Duration
	drainMax   time.Duration
	results    string
}

func main() {
	var s settings
	bench.Main("latency", func() (err error) {
		s, err = parse()
		return err
	}, func(ctx context.Context) error { return run(ctx, s) })
}

func parse() (s settings, err error) {
	rates := flag.String("rates", "1000,20000,100000", "rates in events a second, comma separated")
	commits := flag.String("commit-intervals", "5ms,20ms,100ms", "commit intervals, comma separated, 1ms or more")
	flag.StringVar(&s.only, "only", "", "run only the contenders whose name contains one of these, comma separated")
	flag.IntVar(&s.rounds, "rounds", 3, "rounds; medians are reported")
	flag.IntVar(&s.partitions, "partitions", 4, "partitions of every topic")
	flag.IntVar(&s.workers, "workers", 1, "workers of each stage of a contender")
	flag.IntVar(&s.duplicates, "duplicates", 10, fmt.Sprintf("duplicates among the events, in percent, at most %d", openloop.DuplicatesMax))
	flag.DurationVar(&s.warmup, "warm-up", 5*time.Second, "traffic at the rate before what is measured")
	flag.DurationVar(&s.measured, "measure", 20*time.Second, "measured traffic")
	flag.DurationVar(&s.drainMax, "drain", 3*time.Minute, "how long after the last event was due all may take to arrive, or the run fails")
	flag.StringVar(&s.results, "results", "", "directory for the report; none is written if empty")
	flag.Parse()
	var commitsErr error
	s.rates, err = bench.Ints("rates", *rates)
	s.commits, commitsErr = bench.CommitIntervals(*commits)
	err = errors.Join(err, commitsErr)
	if s.duplicates < 0 || s.duplicates > openloop.DuplicatesMax {
		err = errors.Join(err, fmt.Errorf("-duplicates: %d is not within 0 and %d", s.duplicates, openloop.DuplicatesMax))
	}
	if s.rounds < 1 || s.partitions < 1 || s.workers < 1 || s.warmup < 0 || s.measured <= 0 || s.drainMax <= 0 {
		err = errors.Join(err, errors.New("-rounds, -partitions, -workers, -measure and -drain need at least one, and -warm-up must not be negative"))
	}
	if len(s.contenders()) == 0 {
		err = errors.Join(err, fmt.Errorf("-only: no contender's name contains one of %q", s.only))
	}
	return s, err
}

// contenders returns the contenders of the run.
func (s settings) contenders() []contender {
	return slices.DeleteFunc(slices.Clone(contenders), func(c contender) bool {
		return !bench.Selected(c.name, s.only)
	})
}

// gcPercent makes collections of generator and consumer rare, because they share two
// cores with the other processes. Their live memory is small: with Go's 100 it would
// be collected many times a second.
const gcPercent = 1000

// startAndDrain is about what a run takes in addition to its traffic.
const startAndDrain = 8 * time.Second

func run(ctx context.Context, s settings) (err error) {
	debug.SetGCPercent(gcPercent)
	machine := bench.ThisMachine()
	runs := s.rounds * len(s.rates) * len(s.commits) * len(s.contenders())
	progress, err := bench.StartProgress(runs, s.warmup+s.measured+startAndDrain)
	if err != nil {
		return err
	}
	if err := prepare(ctx, s.contenders()); err != nil {
		return err
	}
	broker, err := bench.StartBroker(ctx, "latency")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, broker.Close()) }()
	var measured []measurement
	for round := 1; round <= s.rounds; round++ {
		for _, rate := range s.rates {
			for _, commit := range s.commits {
				for _, c := range s.contenders() {
					m, err := measure(ctx, broker, s, c, point{rate, commit}, round)
					if err != nil {
						return fmt.Errorf("%s at %d events/s, commit interval %v, round %d: %w", c.name, rate, commit, round, err)
					}
					progress.Done("round %d  %6d/s %5v  %-15s  p50 %7.2f  p99 %7.2f  max %7.2f ms; the generator was %.2f ms late at p99",
						round, rate, commit, c.name, m.Latency.P50, m.Latency.P99, m.Latency.Max, m.Behind.P99)
					measured = append(measured, m)
				}
			}
		}
	}
	return report(machine, s, measured)
}
