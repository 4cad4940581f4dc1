//go:build unix

package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"time"

	"oncebus/benchmarks/internal/bench"
)

type settings struct {
	operations int
	duplicates int // percent of operations that have one
	duration   time.Duration
	away       time.Duration // how long all executors are away once
	interval   time.Duration
	seed       uint64
	fenced     bool
	results    string
}

func main() {
	var s settings
	bench.Main("executions", s.parse, func(ctx context.Context) error { return run(ctx, s) })
}

func (s *settings) parse() error {
	flag.IntVar(&s.operations, "operations", 50_000, "number of operations")
	flag.IntVar(&s.duplicates, "duplicates", 30, "duplicates for each 100 operations")
	flag.DurationVar(&s.duration, "duration", time.Hour, "time over which they are sent")
	flag.DurationVar(&s.away, "away", 10*time.Minute, "how long all executors are away once, in the middle; 0 for never")
	flag.DurationVar(&s.interval, "interval", 15*time.Second, "mean time from one fault to the next")
	flag.Uint64Var(&s.seed, "seed", 0, "seed of operations and faults; 0 draws one")
	flag.BoolVar(&s.fenced, "fenced", true, "the route names the executor group, and executors ask before they execute")
	flag.StringVar(&s.results, "results", "", "directory for the report; none is written if empty")
	flag.Parse()
	if s.operations < 1 || s.duplicates < 0 || s.duration <= 0 || s.away < 0 || s.away >= s.duration || s.interval <= 0 {
		return errors.New("want operations, a duration and an interval above 0, and -away below -duration")
	}
	if s.seed == 0 {
		s.seed = uint64(time.Now().UnixNano())
	}
	return nil
}

// drainMax limits the time from the last fault until all requests are answered.
const drainMax = 5 * time.Minute

func run(ctx context.Context, s settings) (err error) {
	progress, err := bench.StartProgress(1, s.duration+drainMax/2)
	if err != nil {
		return err
	}
	machine := bench.ThisMachine()
	fmt.Fprintf(os.Stderr, "seed %d\n", s.seed)
	y, err := startSystem(ctx, s)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, y.close()) }()
	rng := rand.New(rand.NewPCG(s.seed, 1))
	log, err := readReplies(ctx, y)
	if err != nil {
		return err
	}
	defer log.close()
	out, err := newSenders(y)
	if err != nil {
		return err
	}
	defer out.close()
	f := newFaults(y, s, rand.New(rand.NewPCG(s.seed, 2)))
	faulting, stop := context.WithTimeout(ctx, s.duration)
	defer stop()
	struck := make(chan error, 1)
	go func() { struck <- f.run(faulting) }()
	out.send(ctx, plan(s, rng))
	if err := <-struck; err != nil {
		return err
	}
	if err := y.heal(ctx); err != nil {
		return err
	}
	drained := y.awaitAnswers(ctx, out, log)
	if err := errors.Join(y.failure(), y.stopExecutors()); err != nil {
		return err
	}
	counted, err := countExecutions(y.journals())
	if err != nil {
		return err
	}
	found := judge(counted, out, log)
	progress.Done("%d operations, executed %d times", found.Operations, found.Executed)
	return errors.Join(drained, report(s, machine, &f, &found), found.err(s))
}
