//go:build unix

package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"time"

	"oncebus/benchmarks/internal/bench"
)

type settings struct {
	events     int
	rounds     int
	partitions int
	workers    []int
	duplicates int // percent
	warmUp     int // percent of the work that precedes the measurement
	commit     time.Duration
	results    string
	only       string
	profiles   string
}

const inputTopic = "bench-input"

func main() {
	var s settings
	bench.Main("throughput", s.parse, func(ctx context.Context) error { return run(ctx, s) })
}

func (s *settings) parse() (err error) {
	flag.IntVar(&s.events, "events", 2_000_000, "events in the input topic")
	flag.IntVar(&s.rounds, "rounds", 5, "rounds after a first one that does not count; medians are reported")
	flag.IntVar(&s.partitions, "partitions", 4, "partitions of every topic")
	workers := flag.String("workers", "1,2", "workers of each stage, or threads of Kafka Streams: numbers to measure at, comma separated")
	flag.IntVar(&s.duplicates, "duplicates", 10, "duplicates among the events, in percent")
	flag.IntVar(&s.warmUp, "warm-up", 20, "share of the work that is done before the measurement begins, in percent")
	flag.DurationVar(&s.commit, "commit-interval", 100*time.Millisecond, "commit interval of each contender")
	flag.StringVar(&s.results, "results", "", "directory for the report; none is written if empty")
	flag.StringVar(&s.only, "only", "", "run only the contenders whose name contains one of these, comma separated")
	flag.StringVar(&s.profiles, "profiles", "", "directory for a CPU profile of each Go contender's last round; none are written if empty")
	flag.Parse()
	if s.workers, err = bench.Ints("workers", *workers); err != nil {
		return err
	}
	if s.rounds < 1 || s.events < 1 || s.partitions < 1 {
		return errors.New("-rounds, -events and -partitions must be 1 at least")
	}
	if s.warmUp < 0 || s.warmUp > 90 {
		return errors.New("-warm-up must be 0 to 90 percent")
	}
	return nil
}

func run(ctx context.Context, s settings) (err error) {
	machine := bench.ThisMachine()
	all, err := contenders(ctx, s.only)
	if err != nil {
		return err
	}
	if s.profiles != "" {
		if err := os.MkdirAll(s.profiles, 0o755); err != nil {
			return err
		}
	}
	progress, err := bench.StartProgress(len(all)*len(s.workers)*(s.rounds+1), runTime+time.Duration(s.events)*perEvent)
	if err != nil {
		return err
	}
	broker, err := bench.StartBroker(ctx, "throughput")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, broker.Close()) }()
	fmt.Fprintf(os.Stderr, "generating %d events\n", s.events)
	in := bench.Input{Topic: inputTopic, Partitions: s.partitions, Events: s.events, Duplicates: s.duplicates, Start: time.Now().Add(-time.Hour)}
	if err := in.Generate(ctx, broker); err != nil {
		return err
	}
	b := benchmark{settings: s, broker: broker, input: in, progress: progress}
	results := make([]result, 0, len(all)*len(s.workers))
	for _, workers := range s.workers {
		for _, c := range all {
			results = append(results, result{Contender: c.name, Workers: workers, contender: c})
		}
	}
	if err := b.rounds(ctx, results); err != nil {
		return err
	}
	return report(s, machine, results)
}

// rounds measures every contender in every round. The first round does not count: the JVM has not compiled the
// broker's code yet, and the disk caches are empty.
func (b benchmark) rounds(ctx context.Context, results []result) error {
	for round := range b.settings.rounds + 1 {
		for i := range results {
			r := &results[i]
			m, err := b.measure(ctx, r.contender, r.Workers, round)
			if err != nil {
				return fmt.Errorf("%s with %d workers, round %d: %w", r.Contender, r.Workers, round, err)
			}
			b.progress.Done("round %d  %-30s %d worker(s) %7.0f k events/s  %5.2f us CPU an event, its server %5.2f, the broker %5.2f",
				round, r.Contender, r.Workers, m.Rate/1e3, m.CPUMicros, m.ServerCPUMicros, m.BrokerCPUMicros)
			if round > 0 {
				r.Rounds = append(r.Rounds, m)
			}
		}
	}
	return nil
}

// runTime and perEvent estimate how long a run takes, including its start and the check of its output (two cores,
// 2026-11-23).
const runTime, perEvent = 6 * time.Second, 8 * time.Microsecond
