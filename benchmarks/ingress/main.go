//go:build unix

package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"runtime/debug"
	"slices"
	"strings"
	"time"

	"oncebus/benchmarks/internal/bench"
	"oncebus/benchmarks/internal/openloop"
)

type settings struct {
	what        []string
	rates       []int
	commits     []time.Duration
	connections []int // of the closed loop
	rounds      int
	partitions  int
	workers     int
	quietRate   int // requests a second of the quiet path in the flood part
	duplicates  int // percent
	warmup      time.Duration
	measured    time.Duration
	drainMax    time.Duration
	results     string
	profiles    string
}

// The parts, in the order of a run.
const (
	partVerdict = "verdict"
	partAsync   = "async"
	partFlood   = "flood"
)

func main() {
	plainMain()
	var s settings
	bench.Main("ingress", s.parse, func(ctx context.Context) error { return run(ctx, s) })
}

func (s *settings) parse() (err error) {
	what := flag.String("what", partVerdict+","+partAsync+","+partFlood, "parts to run, comma separated")
	rates := flag.String("rates", "1000,10000", "verdict: rates in requests a second, comma separated")
	commits := flag.String("commit-intervals", "5ms,20ms,100ms", "verdict: commit intervals, comma separated, 1ms or more")
	connections := flag.String("connections", "16,128", "async: numbers of connections, comma separated")
	flag.IntVar(&s.rounds, "rounds", 3, "rounds; medians are reported")
	flag.IntVar(&s.partitions, "partitions", 4, "partitions of every topic")
	flag.IntVar(&s.workers, "workers", 1, "workers that judge")
	flag.IntVar(&s.quietRate, "quiet-rate", 200, "flood: requests a second to the path that is measured")
	flag.IntVar(&s.duplicates, "duplicates", 10, fmt.Sprintf("duplicates among the requests, in percent, at most %d", openloop.DuplicatesMax))
	flag.DurationVar(&s.warmup, "warm-up", 5*time.Second, "traffic before what is measured")
	flag.DurationVar(&s.measured, "measure", 20*time.Second, "measured traffic")
	flag.DurationVar(&s.drainMax, "drain", time.Minute, "verdict: how long after the last request was due all responses may take, or the run fails")
	flag.StringVar(&s.results, "results", "", "directory for the report; none is written if empty")
	flag.StringVar(&s.profiles, "profiles", "", "directory for profiles of CPU and allocations of each process of oncebus; none are written if empty")
	flag.Parse()
	s.what = strings.Split(*what, ",")
	for _, part := range s.what {
		if part != partVerdict && part != partAsync && part != partFlood {
			err = errors.Join(err, fmt.Errorf("-what: %q is unknown, want %s, %s or %s", part, partVerdict, partAsync, partFlood))
		}
	}
	for _, list := range []struct {
		to   *[]int
		name string
		text string
	}{{&s.rates, "rates", *rates}, {&s.connections, "connections", *connections}} {
		var listErr error
		*list.to, listErr = bench.Ints(list.name, list.text)
		err = errors.Join(err, listErr)
	}
	var commitsErr error
	s.commits, commitsErr = bench.CommitIntervals(*commits)
	err = errors.Join(err, commitsErr)
	if s.duplicates < 0 || s.duplicates > openloop.DuplicatesMax {
		err = errors.Join(err, fmt.Errorf("-duplicates: %d is not within 0 and %d", s.duplicates, openloop.DuplicatesMax))
	}
	if s.rounds < 1 || s.quietRate < 1 || s.partitions < 1 || s.workers < 1 || s.warmup < 0 || s.measured <= 0 || s.drainMax <= 0 {
		err = errors.Join(err, errors.New("-rounds, -quiet-rate, -partitions, -workers, -measure and -drain need at least one, and -warm-up must not be negative"))
	}
	return err
}

// gcPercent makes collections of the generator rare, because it shares two cores with
// the other processes: its live memory is small.
const gcPercent = 1000

// startAndDrain is about what a run takes in addition to its traffic.
const startAndDrain = 8 * time.Second

func run(ctx context.Context, s settings) (err error) {
	debug.SetGCPercent(gcPercent)
	machine := bench.ThisMachine()
	var r result
	progress, err := bench.StartRuns(s.guesses())
	if err != nil {
		return err
	}
	broker, err := bench.StartBroker(ctx, "ingress")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, broker.Close()) }()
	b := &bed{settings: s, broker: broker, progress: progress}
	if err := b.build(ctx); err != nil {
		return err
	}
	if slices.Contains(s.what, partVerdict) {
		if r.Verdict, err = b.verdictRuns(ctx); err != nil {
			return err
		}
	}
	if slices.Contains(s.what, partAsync) {
		if r.Async, err = b.asyncRuns(ctx); err != nil {
			return err
		}
	}
	if slices.Contains(s.what, partFlood) {
		if r.Flood, err = b.floodRuns(ctx); err != nil {
			return err
		}
	}
	return r.report(machine, s)
}

// guesses estimates the time of each run, in the order in which they report their progress.
func (s settings) guesses() (all []time.Duration) {
	each := s.warmup + s.measured + startAndDrain
	for part, n := range map[string]int{partVerdict: (1 + s.rounds) * len(s.rates) * len(s.commits), partAsync: 1 + s.rounds*len(s.connections)*len(contenders), partFlood: s.rounds * len(phases)} {
		if slices.Contains(s.what, part) {
			all = append(all, slices.Repeat([]time.Duration{each}, n)...)
		}
	}
	return all
}

// verdictRuns measures every point in every round. A first round does not count: the
// broker compiles its code for half a minute of traffic at each rate, on one of two cores.
func (b *bed) verdictRuns(ctx context.Context) (runs []latencyRun, err error) {
	for round := range 1 + b.rounds {
		for _, rate := range b.rates {
			for _, commit := range b.commits {
				m, err := b.measureLatency(ctx, point{rate, commit}, round)
				if err != nil {
					return nil, fmt.Errorf("%d requests/s, commit interval %v, round %d: %w", rate, commit, round, err)
				}
				name := fmt.Sprintf("round %d", round)
				if round == 0 {
					name = "warm-up"
				} else {
					runs = append(runs, m)
				}
				b.progress.Done("%s  %6d/s %5v  p50 %7.2f  p99 %7.2f  p99.9 %7.2f  max %7.2f ms, at most %v; %v; the generator was %.2f ms late at p99",
					name, rate, commit, m.Latency.P50, m.Latency.P99, m.Latency.P999, m.Latency.Max, m.bound(), m.Statuses, m.Behind.P99)
			}
		}
	}
	return runs, nil
}

// asyncRuns measures the contenders in turn. A first run does not count: it warms up
// the broker, whose code is not compiled yet.
func (b *bed) asyncRuns(ctx context.Context) (runs []throughputRun, err error) {
	for round := 0; round <= b.rounds; round++ {
		for _, connections := range b.connections {
			for _, c := range contenders {
				m, err := b.measureThroughput(ctx, c, connections, round)
				if err != nil {
					return nil, fmt.Errorf("%s, %d connections, round %d: %w", c, connections, round, err)
				}
				if round == 0 {
					b.progress.Done("the broker is warm")
					break
				}
				b.progress.Done("round %d  %-16s %4d connections %7.0f requests/s  p99 %6.2f ms  %6.1f us CPU a request, the broker %5.1f, %5.1f allocations",
					round, c, connections, m.Rate, m.Latency.P99, m.CPUMicros, m.BrokerCPUMicros, m.Allocations)
				runs = append(runs, m)
			}
			if round == 0 {
				break
			}
		}
	}
	return runs, nil
}
