//go:build unix

package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"path/filepath"
	"time"

	"oncebus/benchmarks/internal/bench"
	"oncebus/processor/kafkatest/program"
)

type settings struct {
	events   int
	rounds   int
	rest     time.Duration
	previous string
	results  string
}

func main() {
	var s settings
	bench.Main("claims", s.parse, func(ctx context.Context) error { return run(ctx, s) })
}

func (s *settings) parse() error {
	flag.IntVar(&s.events, "events", 200_000, "events of a round, each with a key of its own")
	flag.IntVar(&s.rounds, "rounds", 3, "rounds of each program")
	flag.DurationVar(&s.rest, "rest", 20*time.Second, "how long a process is measured at rest")
	flag.StringVar(&s.previous, "previous", "8cd6fac~1", "commit of the earlier program")
	flag.StringVar(&s.results, "results", "", "directory for the report; none is written if empty")
	flag.Parse()
	if s.events < 1 || s.rounds < 1 || s.rest <= 0 {
		return errors.New("want events, rounds and a time of rest above 0")
	}
	return nil
}

// contender is a program that the benchmark measures.
type contender struct {
	name, binary string
	rounds       []measurement
}

// perEvent estimates how long an event and its outcome take.
const perEvent = 50 * time.Microsecond

func run(ctx context.Context, s settings) (err error) {
	machine := bench.ThisMachine()
	progress, err := bench.StartProgress(2*s.rounds, 2*s.rest+20*time.Second+time.Duration(s.events)*perEvent)
	if err != nil {
		return err
	}
	broker, err := bench.StartBroker(ctx, "claims")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, broker.Close()) }()
	earlier, err := program.BuildCommit(ctx, s.previous, filepath.Join(broker.Dir, "earlier"))
	if err != nil {
		return err
	}
	now, err := program.Build(ctx, broker.Dir)
	if err != nil {
		return err
	}
	contenders := []*contender{{name: "earlier", binary: earlier}, {name: "now", binary: now}}
	for n := range s.rounds {
		for at := range contenders {
			c := contenders[(n+at)%len(contenders)] // the order rotates, so that neither program is always the first
			r := round{broker: broker, binary: c.binary, app: fmt.Sprint(c.name, "-", n), settings: s}
			m, err := r.measure(ctx)
			if err != nil {
				return fmt.Errorf("%s, round %d: %w", c.name, n+1, err)
			}
			progress.Done("%s: %+v", c.name, m)
			c.rounds = append(c.rounds, m)
		}
	}
	return report(s, machine, contenders)
}
