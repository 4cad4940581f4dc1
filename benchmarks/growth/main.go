//go:build unix

package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"oncebus/benchmarks/internal/bench"
	"oncebus/processor/kafkatest/program"
)

type settings struct {
	only                           []string
	namespaces, routes, partitions []int
	rate, events                   int
	traffic, steady                time.Duration
	results                        string
}

// run is one run of the benchmark.
type run struct {
	settings
	broker  *bench.Broker
	binary  string
	results []result
}

// part is one measurement. takes estimates its time.
type part struct {
	name, what string
	takes      func(s *settings) time.Duration
	measure    func(r *run, ctx context.Context) error
}

// caseTime is what it takes to create and delete topics, and to start and stop a process.
const caseTime = 20 * time.Second

var parts = []part{
	{
		"changelog", "Bytes of the changelog on the broker's disk for an event at a steady rate, 12 partitions, by namespaces",
		func(s *settings) time.Duration { return time.Duration(len(s.namespaces)) * (s.traffic + caseTime) }, (*run).changelog,
	},
	{
		"routes", "A backlog by routes on one topic, each with match, 12 partitions",
		func(s *settings) time.Duration { return time.Duration(len(s.routes)) * (s.loadTime() + caseTime) }, (*run).ofRoutes,
	},
	{
		"partitions", "A backlog, the first start and a start after kill -9, by partitions",
		func(s *settings) time.Duration { return time.Duration(len(s.partitions)) * (s.loadTime() + 3*caseTime) }, (*run).ofPartitions,
	},
	{
		"starts", "Starts to ready: the first, after kill -9 and after a stop, by partitions",
		func(s *settings) time.Duration {
			return time.Duration(len(s.partitions)) * (s.loadTime() + flushed + 5*caseTime)
		}, (*run).ofStarts,
	},
	{
		"backlog", "Latency of 100 events a second of one route, from their creation to a read_committed reader, in ms",
		func(s *settings) time.Duration { return s.traffic + s.loadTime() + 2*caseTime }, (*run).backlog,
	},
	{
		"memory", "Resident memory in steady traffic of 250 namespaces on 96 partitions",
		func(s *settings) time.Duration { return s.steady + 2*caseTime }, (*run).memory,
	},
	{
		"waiters", "Claims in progress whose duplicates wait for the outcome, 1 partition, by events of a key",
		func(s *settings) time.Duration { return 3*caseTime + s.loadTime() }, (*run).waiters,
	},
}

// loadTime is how long the events of a backlog take on a slow machine.
func (s *settings) loadTime() time.Duration {
	return time.Duration(s.events) * time.Second / 30_000
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
	lists := map[string]*[]int{"namespaces": &s.namespaces, "routes": &s.routes, "partitions": &s.partitions}
	texts := map[string]*string{
		"namespaces": flag.String("namespaces", "1,10,50,250", "numbers of namespaces of the part changelog"),
		"routes":     flag.String("routes", "1,10,254", "numbers of routes of the part routes"),
		"partitions": flag.String("partitions", "12,96,384,1000", "numbers of partitions of the part partitions"),
	}
	flag.IntVar(&s.rate, "rate", 2000, "events a second of steady traffic")
	flag.IntVar(&s.events, "events", 500_000, "events of a backlog")
	flag.DurationVar(&s.traffic, "traffic", 30*time.Second, "how long steady traffic is measured")
	flag.DurationVar(&s.steady, "steady", 2*time.Minute, "how long memory is measured")
	flag.StringVar(&s.results, "results", "", "directory for the report; none is written if empty")
	flag.Parse()
	for name, list := range lists {
		var wrong error
		*list, wrong = bench.Ints(name, *texts[name])
		err = errors.Join(err, wrong)
	}
	s.only = strings.Split(*only, ",")
	for _, name := range s.only {
		if !slices.Contains(names, name) {
			err = errors.Join(err, fmt.Errorf("-only: unknown part %q, want some of %s", name, all))
		}
	}
	if s.rate < 1 || s.events < 1 || s.traffic <= 0 || s.steady <= 0 {
		err = errors.Join(err, errors.New("want a rate, events and durations above 0"))
	}
	return err
}

func measure(ctx context.Context, s settings) (err error) {
	selected := slices.DeleteFunc(slices.Clone(parts), func(p part) bool { return !slices.Contains(s.only, p.name) })
	takes := caseTime
	for _, p := range selected {
		takes += p.takes(&s)
	}
	fmt.Fprintf(os.Stderr, "growth takes about %v\n", takes.Round(10*time.Second))
	r := &run{settings: s}
	machine := bench.ThisMachine()
	if r.broker, err = bench.StartBroker(ctx, "growth"); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, r.broker.Close()) }()
	if r.binary, err = program.Build(ctx, r.broker.Dir); err != nil {
		return err
	}
	for n, p := range selected {
		fmt.Fprintf(os.Stderr, "part %d of %d, %s: about %v\n", n+1, len(selected), p.name, p.takes(&s).Round(10*time.Second))
		if err := p.measure(r, ctx); err != nil {
			return fmt.Errorf("part %s: %w", p.name, err)
		}
	}
	return r.report(machine)
}

// add adds the figures of a case.
func (r *run) add(part, name string, figures ...figure) {
	one := result{Part: part, Case: name, Figures: figures}
	fmt.Fprintln(os.Stderr, one.String())
	r.results = append(r.results, one)
}
