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
	"oncebus/processor/kafkatest/program"
)

type settings struct {
	events     int
	rounds     int
	partitions int
	duplicates int // percent
	keysMax    int // keys in memory, in the runs that do not hold all keys
	results    string
}

const inputTopic = "bench-input"

func main() {
	var s settings
	bench.Main("audit", s.parse, func(ctx context.Context) error { return run(ctx, s) })
}

func (s *settings) parse() error {
	flag.IntVar(&s.events, "events", 20_000_000, "events in the topic")
	flag.IntVar(&s.rounds, "rounds", 1, "rounds; medians are reported")
	flag.IntVar(&s.partitions, "partitions", 12, "partitions of every topic")
	flag.IntVar(&s.duplicates, "duplicates", 10, "duplicates among the events, in percent")
	flag.IntVar(&s.keysMax, "keys-max", 5_000_000, "keys in memory of the audits that do not hold all")
	flag.StringVar(&s.results, "results", "", "directory for the report; none is written if empty")
	flag.Parse()
	if s.rounds < 1 || s.events < 1 || s.partitions < 1 || s.keysMax < 1000 {
		return errors.New("-rounds, -events and -partitions must be 1 at least, and -keys-max 1000")
	}
	return nil
}

// contender is a program that reads the topic.
type contender struct {
	name string
	args []string // arguments of oncebus audit; nil for the passthrough
	disk bool
}

// passthrough is the name of the contender with which the other contenders are compared.
const passthrough = "passthrough, 1 worker"

func (s settings) contenders() []contender {
	few := []string{"--keys-max", fmt.Sprint(s.keysMax)}
	return []contender{
		{name: passthrough},
		{name: "audit, all keys in memory", args: []string{"--keys-max", fmt.Sprint(s.events + 1000)}},
		{name: fmt.Sprintf("audit, %d M keys in memory, the others on disk", s.keysMax/1_000_000), args: few, disk: true},
		{name: fmt.Sprintf("audit, sample of at most %d M keys", s.keysMax/1_000_000), args: few},
	}
}

func run(ctx context.Context, s settings) (err error) {
	machine := bench.ThisMachine()
	all := s.contenders()
	progress, err := bench.StartProgress(len(all)*s.rounds, 5*time.Second+time.Duration(s.events)*2*time.Microsecond)
	if err != nil {
		return err
	}
	broker, err := bench.StartBroker(ctx, "audit")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, broker.Close()) }()
	binary, err := program.Build(ctx, broker.Dir)
	if err != nil {
		return err
	}
	fmt.Fprintf(os.Stderr, "generating %d events\n", s.events)
	in := bench.Input{Topic: inputTopic, Partitions: s.partitions, Events: s.events, Duplicates: s.duplicates, Start: time.Now().Add(-time.Hour)}
	if err := in.Generate(ctx, broker); err != nil {
		return err
	}
	b := benchmark{settings: s, broker: broker, binary: binary, input: in}
	results := make([]result, len(all))
	for round := range s.rounds {
		for i, c := range all {
			m, err := b.measure(ctx, c, round)
			if err != nil {
				return fmt.Errorf("%s, round %d: %w", c.name, round, err)
			}
			results[i].Contender = c.name
			results[i].Rounds = append(results[i].Rounds, m)
			progress.Done("%-45s %6.0f k events/s  %5.2f us CPU an event  %6.0f MiB memory  %6.0f MiB on disk", c.name, m.Rate/1e3, m.CPUMicros, m.RSSMaxMiB, m.DiskMiB)
		}
	}
	return report(s, machine, results)
}
