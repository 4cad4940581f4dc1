//go:build unix

package main

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"oncebus/benchmarks/internal/bench"
)

type settings struct {
	seed       uint64
	rate       int
	partitions int
	duplicates int // percent
	commit     time.Duration
	counts     map[kind]int
	only       string
	results    string

	events int // by rate and plan

	histories []shape // of -history; nil without it
	ids       int     // of each
}

func main() {
	var s settings
	bench.Main("peers", s.parse, func(ctx context.Context) error {
		if s.histories != nil {
			return runHistories(ctx, s)
		}
		return run(ctx, s)
	})
}

func (s *settings) parse() error {
	flag.Uint64Var(&s.seed, "seed", 1, "draws the moments of the faults")
	flag.IntVar(&s.rate, "rate", 5000, "events a second")
	flag.IntVar(&s.partitions, "partitions", 0, "partitions of every topic; 0 for 4, and 6 with -history")
	flag.IntVar(&s.duplicates, "duplicates", 10, "duplicates among the events, in percent")
	flag.DurationVar(&s.commit, "commit-interval", 100*time.Millisecond, "commit interval of each system")
	kills := flag.Int("kills", 4, "times that a process is killed with SIGKILL")
	pauses := flag.Int("pauses", 1, "times that a process is paused past its session timeout")
	restarts := flag.Int("broker-restarts", 1, "times that the broker is killed and started again")
	flag.StringVar(&s.only, "only", "", "run only the systems whose name contains one of these, comma separated")
	flag.StringVar(&s.results, "results", "", "directory for the report; none is written if empty")
	history := flag.Bool("history", false, "no faults: start each system for the first time on topics with history")
	shapes := flag.String("histories", "168h/1h,168h/24h,72m/5m,168h/1h/equal", "with -history: spans and windows, comma separated; /equal for equal partitions")
	flag.IntVar(&s.ids, "ids", 200_000, "with -history: ids of each")
	flag.Parse()
	if *history {
		return s.parseHistory(*shapes)
	}
	s.partitions = cmp.Or(s.partitions, 4)
	if s.rate < 1000 || s.partitions < 1 || s.duplicates < 0 || s.duplicates > 50 {
		return errors.New("need -rate from 1000, -partitions from 1, -duplicates from 0 to 50")
	}
	if *kills < 0 || *pauses < 0 || *restarts < 0 {
		return errors.New("-kills, -pauses and -broker-restarts must not be negative")
	}
	s.counts = map[kind]int{kill: *kills, pause: *pauses, restart: *restarts}
	return nil
}

// parseHistory reads the flags that belong to -history.
func (s *settings) parseHistory(shapes string) (err error) {
	s.partitions = cmp.Or(s.partitions, 6)
	if s.partitions < 1 || s.partitions > 30 || s.ids < 1 || s.commit < time.Millisecond {
		return errors.New("need -partitions from 1 to 30, -ids from 1, and -commit-interval from 1ms")
	}
	s.histories, err = parseShapes(shapes)
	return err
}

// startAndEnd is about what a system takes in addition to the load.
const startAndEnd = 15 * time.Second

func run(ctx context.Context, s settings) (err error) {
	machine := bench.ThisMachine()
	all, err := systems(ctx, s.only)
	if err != nil {
		return err
	}
	strikes, load := plan(s.seed, s.counts)
	s.events = s.rate + int(load*time.Duration(s.rate)/time.Second)
	progress, err := bench.StartProgress(len(all), load+startAndEnd)
	if err != nil {
		return err
	}
	for _, strike := range strikes {
		fmt.Fprintf(os.Stderr, "plan: %s at %v\n", strike.Kind, strike.At.Round(time.Millisecond))
	}
	broker, err := bench.StartBroker(ctx, "peers")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, broker.Close()) }()
	var results []result
	for _, system := range all {
		app := strings.ToLower(strings.NewReplacer(" ", "-", "(", "", ")", "").Replace(system.name))
		t := &trial{settings: s, system: system, broker: broker, task: bench.Task{
			App: app, Brokers: broker.Seeds(), Input: app + "-input", Partitions: s.partitions, Workers: 1, Commit: s.commit,
			StateDir: filepath.Join(broker.Dir, app),
		}}
		r, err := t.run(ctx, strikes)
		if err != nil {
			return fmt.Errorf("%s: %w", system.name, err)
		}
		progress.Done("%-28s %d of %d events lost, %d doubled, %d unplanned ends", r.System, r.Lost, r.Events, r.Doubled, r.Unplanned)
		results = append(results, r)
	}
	return report(s, machine, results)
}
