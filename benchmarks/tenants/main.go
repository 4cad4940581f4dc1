//go:build unix

package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"strings"
	"time"

	"oncebus/benchmarks/internal/bench"
	"oncebus/benchmarks/internal/openloop"
)

type settings struct {
	rate    int // events a second of the quiet tenant
	quota   int // quota of the noisy tenant, events a second
	noisy   int // events a second that the noisy tenant sends
	commit  time.Duration
	part    time.Duration
	rounds  int
	results string
}

func main() {
	var s settings
	bench.Main("tenants", s.parse, func(ctx context.Context) error { return run(ctx, s) })
}

func (s *settings) parse() error {
	flag.IntVar(&s.rate, "rate", 1000, "events a second of the quiet tenant")
	flag.IntVar(&s.quota, "quota", 500, "quota of the noisy tenant, in events a second")
	flag.IntVar(&s.noisy, "noisy", 5000, "events a second that the noisy tenant sends")
	flag.DurationVar(&s.commit, "commit-interval", 100*time.Millisecond, "commit interval")
	flag.DurationVar(&s.part, "part", 10*time.Second, "measured time of each part of a round")
	flag.IntVar(&s.rounds, "rounds", 7, "rounds; medians are reported")
	flag.StringVar(&s.results, "results", "", "directory for the report; none is written if empty")
	flag.Parse()
	if s.rate < 1 || s.quota < 1 || s.noisy <= s.quota || s.rounds < 1 || s.part < time.Second || s.commit < time.Millisecond {
		return errors.New("want rates and rounds from 1, more of the noisy tenant than its quota, and a part of 1s or more")
	}
	return nil
}

// warmup is how long traffic flows before each measured part. The burst that the noisy tenant's quota allows is over
// by then.
const warmup = 3 * time.Second

const partitions = 4

func run(ctx context.Context, s settings) (err error) {
	machine := bench.ThisMachine()
	progress, err := bench.StartProgress(2*s.rounds, warmup+s.part+openloop.Cooldown+time.Second)
	if err != nil {
		return err
	}
	broker, err := bench.StartBroker(ctx, "tenants")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, broker.Close()) }()
	t, err := start(ctx, broker, s)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, t.stop()) }()
	var parts [2][]part
	for round := range s.rounds {
		for i := range parts {
			at := (round + i) % 2 // the two parts alternate, so that neither is always the first
			p, err := t.measure(ctx, at == 1)
			if err != nil {
				return fmt.Errorf("round %d: %w", round+1, err)
			}
			progress.Done("round %d, noisy %v: p50 %.1f, p99 %.1f, max %.1f ms, %d dead letters", round+1, at == 1, p.Latency.P50, p.Latency.P99, p.Latency.Max, p.DeadLetters)
			parts[at] = append(parts[at], p)
		}
	}
	return report(machine, s, parts)
}

func report(machine bench.Machine, s settings, parts [2][]part) error {
	var b strings.Builder
	fmt.Fprintf(&b, "One route with the tenants quiet and noisy, %d partitions, one worker, commit interval %v. quiet sends %d events a second, each with a key of its own. noisy has a quota of %d events a second, and sends %d. Medians of %d rounds of %v, which alternate in one run; lowest and highest in brackets. A ratio is that of the two parts of a round. Times are from when an event of quiet is due until a read_committed consumer has it.\n\n",
		partitions, s.commit, s.rate, s.quota, s.noisy, s.rounds, s.part)
	b.WriteString("| ms | quiet alone | while noisy is over its quota | ratio |\n| --- | ---: | ---: | ---: |\n")
	var p99 float64
	for _, row := range []struct {
		name string
		of   func(p part) float64
	}{
		{"p50", func(p part) float64 { return p.Latency.P50 }},
		{"p99", func(p part) float64 { return p.Latency.P99 }},
		{"p99.9", func(p part) float64 { return p.Latency.P999 }},
		{"highest", func(p part) float64 { return p.Latency.Max }},
	} {
		var ratios []float64
		for round := range parts[0] {
			ratios = append(ratios, row.of(parts[1][round])/row.of(parts[0][round]))
		}
		ratio := bench.SpreadOf(ratios)
		if row.name == "p99" {
			p99 = ratio.Median
		}
		fmt.Fprintf(&b, "| %s | %s | %s | %.2f (%.2f, %.2f) |\n", row.name, spread(bench.SpreadBy(parts[0], row.of)), spread(bench.SpreadBy(parts[1], row.of)), ratio.Median, ratio.Low, ratio.High)
	}
	dead := bench.SpreadBy(parts[1], func(p part) float64 { return float64(p.DeadLetters) })
	fmt.Fprintf(&b, "\nAll events of quiet were emitted once, and none is a dead letter. Of noisy, %.0f events of a part became dead letters.\n", dead.Median)
	goals := []bench.Goal{bench.AtMost("p99 of a tenant while another one is over its quota, relative to alone", "%.2f", p99, 1.5)}
	return machine.Publish(s.results, bench.Report{Title: "Tenants", Name: "tenants", Text: b.String(), Goals: goals, Result: map[string][]part{"alone": parts[0], "noisy": parts[1]}})
}

func spread(s bench.Spread) string { return fmt.Sprintf("%.1f (%.1f, %.1f)", s.Median, s.Low, s.High) }
