//go:build unix

package main

import (
	"fmt"
	"math"
	"slices"
	"strings"

	"oncebus/benchmarks/internal/bench"
	"oncebus/benchmarks/internal/peers"
)

// result is one contender at one number of workers.
type result struct {
	Contender string
	Workers   int
	Rounds    []measurement

	contender contender
}

// spread returns the spread of one figure over the rounds.
func (r result) spread(figure func(measurement) float64) bench.Spread {
	return bench.SpreadBy(r.Rounds, figure)
}

func rate(m measurement) float64      { return m.Rate / 1e3 }
func cpu(m measurement) float64       { return m.CPUMicros }
func brokerCPU(m measurement) float64 { return m.BrokerCPUMicros }
func memory(m measurement) float64    { return m.RSSMaxMiB + m.ServerMiB }
func serverCPU(m measurement) float64 { return m.ServerCPUMicros }
func disk(m measurement) float64      { return m.DiskMiB }

// relativeTo returns the median rate of r divided by the median rate of the named contender with the same number of
// workers; NaN if that contender was not measured.
func (r result) relativeTo(name string, results []result) float64 {
	i := slices.IndexFunc(results, func(other result) bool { return other.Contender == name && other.Workers == r.Workers })
	if i < 0 {
		return math.NaN()
	}
	return r.spread(rate).Median / results[i].spread(rate).Median
}

// The goals of oncebus.
const (
	goalKeyed   = 0.80 // of the rate of the limit
	goalRouted  = 0.70 // of the rate of the limit with two stages
	goalStreams = 5.0  // times the rate of the key-value deduplicator on Kafka Streams
	goalCPU     = 1.33 // CPU time of the process per event, relative to the limit: 2.4 µs where the limit spends 1.8 µs
)

// goals compares oncebus with its limits and with Kafka Streams.
func goals(results []result) (goals []bench.Goal) {
	for _, r := range results {
		bound := map[string]float64{keyed: goalKeyed, routed: goalRouted}[r.Contender]
		if bound == 0 {
			continue
		}
		name := fmt.Sprintf("%s, %d worker(s): ", r.Contender, r.Workers)
		add := func(what string, got, bound float64, atLeast func(what, format string, value, bound float64) bench.Goal) {
			if !math.IsNaN(got) {
				goals = append(goals, atLeast(name+what, "%.2f", got, bound))
			}
		}
		add("rate relative to the limit", r.relativeTo(r.contender.limit, results), bound, bench.AtLeast)
		if r.Contender == keyed {
			add("rate relative to Kafka Streams, key-value", r.relativeTo(peers.StreamsKeyValue, results), goalStreams, bench.AtLeast)
			limit := slices.IndexFunc(results, func(other result) bool { return other.Contender == withChangelog && other.Workers == r.Workers })
			if limit >= 0 {
				add("CPU an event relative to the limit", r.spread(cpu).Median/results[limit].spread(cpu).Median, goalCPU, bench.AtMost)
			}
		}
	}
	return goals
}

// report prints the table of medians and, with -results, writes the files.
func report(s settings, machine bench.Machine, results []result) error {
	return machine.Publish(s.results, bench.Report{
		Title: "Throughput", Name: "throughput", Text: table(s, results), Goals: goals(results), Result: results,
		Charts: map[string]bench.Chart{
			"":          chart(results, "Throughput: median of the rounds, lowest to highest", "k events/s", rate),
			"-relative": relativeChart(results),
			"-cpu":      chart(results, "CPU time of the contender, its server and the broker together, an event", "µs", func(m measurement) float64 { return m.CPUMicros + m.ServerCPUMicros + m.BrokerCPUMicros }),
		},
	})
}

func table(s settings, results []result) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%d events of about 230 bytes, %d %% duplicates, %d partitions, commit interval %v; medians of %d rounds, after the first %d %% of the work. "+
		"Each output was read back and is correct. Its limit is the passthrough with as many stages and a changelog; all ratios are at equal workers (threads, for Kafka Streams). Memory and disk include the server of a peer's keys, if it has one.\n\n",
		s.events, s.duplicates, s.partitions, s.commit, s.rounds, s.warmUp)
	b.WriteString("| contender | workers | k events/s | lowest, highest | ratio to the passthrough | ratio to its limit | times Streams key-value | CPU us an event | its server's | the broker's | memory MiB | disk MiB |\n" +
		"| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |\n")
	for _, r := range results {
		ratio := func(name string) string {
			if x := r.relativeTo(name, results); !math.IsNaN(x) {
				return fmt.Sprintf("%.2f", x)
			}
			return "-"
		}
		fmt.Fprintf(&b, "| %s | %d | %.0f | %.0f, %.0f | %s | %s | %s | %.2f | %.2f | %.2f | %.0f | %.0f |\n", r.Contender, r.Workers,
			r.spread(rate).Median, r.spread(rate).Low, r.spread(rate).High, ratio(passthrough), ratio(r.contender.limit), ratio(peers.StreamsKeyValue),
			r.spread(cpu).Median, r.spread(serverCPU).Median, r.spread(brokerCPU).Median, r.spread(memory).Median, r.spread(disk).Median)
	}
	return b.String()
}

// chart has a group of bars for each contender and a colour for each number of
// workers.
func chart(results []result, title, unit string, figure func(measurement) float64) bench.Chart {
	return barChart(results, title, unit, func(r result) bench.Spread { return r.spread(figure) })
}

// relativeChart has the contenders that have a limit. Ratios are of medians.
func relativeChart(results []result) bench.Chart {
	limited := slices.DeleteFunc(slices.Clone(results), func(r result) bool { return math.IsNaN(r.relativeTo(r.contender.limit, results)) })
	return barChart(limited, "Throughput relative to the limit with as many stages", "", func(r result) bench.Spread {
		x := r.relativeTo(r.contender.limit, results)
		return bench.Spread{Median: x, Low: x, High: x}
	})
}

func barChart(results []result, title, unit string, figure func(result) bench.Spread) bench.Chart {
	c := bench.Chart{Title: title, Y: unit}
	for _, r := range results {
		name := fmt.Sprintf("%d worker(s)", r.Workers)
		i := slices.IndexFunc(c.Series, func(s bench.Series) bool { return s.Name == name })
		if i < 0 {
			i = len(c.Series)
			c.Series = append(c.Series, bench.Series{Name: name})
		}
		if !slices.Contains(c.Groups, r.Contender) {
			c.Groups = append(c.Groups, r.Contender)
		}
		y := figure(r)
		c.Series[i].Points = append(c.Series[i].Points, bench.Point{X: math.NaN(), Y: y.Median, Low: y.Low, High: y.High})
	}
	return c
}
