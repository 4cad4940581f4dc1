//go:build unix

package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"slices"
	"strings"
	"time"

	"oncebus/benchmarks/internal/bench"
	"oncebus/processor/kafkatest/program"
)

type settings struct {
	only                                    []string
	namespaces, routes, partitions, members []int
	rate, events, backlog                   int
	traffic, steady                         time.Duration
	results                                 string
}

// run is one run of the benchmark.
type run struct {
	settings
	broker   *bench.Broker
	binary   string
	registry string // URL of the schema registry; "" for none
	progress *bench.Progress
	results  []result
	memory   []sample
}

func main() {
	var s settings
	bench.Main("growth", s.parse, func(ctx context.Context) error { return measure(ctx, s) })
}

func (s *settings) parse() (err error) {
	var names []string
	for _, p := range parts {
		names = append(names, p.name)
	}
	all := strings.Join(names, ",")
	only := flag.String("only", all, "parts to measure, comma separated")
	lists := map[string]*[]int{"namespaces": &s.namespaces, "routes": &s.routes, "partitions": &s.partitions, "members": &s.members}
	texts := map[string]*string{
		"namespaces": flag.String("namespaces", "1,10,50,250", "numbers of namespaces of the part changelog, rising"),
		"routes":     flag.String("routes", "1,10,254", "numbers of routes of the part routes, rising"),
		"partitions": flag.String("partitions", "12,96,384,1000", "numbers of partitions of the part partitions, rising"),
		"members":    flag.String("members", "128,250,300,1000", "numbers of members of an event's JSON object of the part members, rising"),
	}
	flag.IntVar(&s.rate, "rate", 2000, "events a second of steady traffic")
	flag.IntVar(&s.events, "events", 500_000, "events of the parts routes and partitions; a fifth in members and collisions")
	flag.IntVar(&s.backlog, "backlog", 3_000_000, "events of the part backlog")
	flag.DurationVar(&s.traffic, "traffic", 30*time.Second, "how long the steady traffic of changelog and backlog is measured")
	flag.DurationVar(&s.steady, "steady", 10*time.Minute, "how long the part memory is measured")
	flag.StringVar(&s.results, "results", "", "directory for the report; none is written if empty")
	flag.Parse()
	for name, list := range lists {
		var wrong error
		*list, wrong = bench.Ints(name, *texts[name])
		err = errors.Join(err, wrong)
		if !slices.IsSorted(*list) {
			err = errors.Join(err, fmt.Errorf("-%s: %v do not rise", name, *list))
		}
	}
	s.only = strings.Split(*only, ",")
	for _, name := range s.only {
		if !slices.Contains(names, name) {
			err = errors.Join(err, fmt.Errorf("-only: unknown part %q, want some of %s", name, all))
		}
	}
	if s.rate < 1 || s.events < 10 || s.backlog < 1 || s.traffic <= 0 || s.steady < 3*sampleEvery {
		err = errors.Join(err, fmt.Errorf("want a rate, events and durations above 0, and -steady from %v", 3*sampleEvery))
	}
	return err
}

// measure measures the selected parts, and reports those before an error.
func measure(ctx context.Context, s settings) (err error) {
	selected := slices.DeleteFunc(slices.Clone(parts), func(p part) bool { return !slices.Contains(s.only, p.name) })
	var guesses []time.Duration
	for _, p := range selected {
		guesses = append(guesses, p.takes(&s)...)
	}
	progress, err := bench.StartRuns(guesses)
	if err != nil {
		return err
	}
	r := &run{settings: s, progress: progress}
	machine := bench.ThisMachine()
	if r.broker, err = bench.StartBroker(ctx, "growth"); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, r.broker.Close()) }()
	if r.binary, err = program.Build(ctx, r.broker.Dir); err != nil {
		return err
	}
	for _, p := range selected {
		if err := p.measure(r, ctx); err != nil {
			return errors.Join(fmt.Errorf("part %s: %w", p.name, err), r.report(machine))
		}
	}
	return r.report(machine)
}
