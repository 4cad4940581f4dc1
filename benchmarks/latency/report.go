//go:build unix

package main

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"oncebus/benchmarks/internal/bench"
	"oncebus/benchmarks/internal/openloop"
)

const (
	// lateShare: the report marks a row if the generator was late by more than this share of the latency, at the
	// median or at p99. Such a row also measures the generator.
	lateShare = 0.1
	// backlogDrain: the report marks a row if the last event arrived later than this after its due time. The
	// latencies of such a row depend on the length of the measurement.
	backlogDrain = time.Second
)

// row is one contender at one point, over all rounds. Times are milliseconds.
type row struct {
	Contender, Limit string
	point
	Events                 int          // measured in a round
	P50                    bench.Spread `json:"P50Millis"`
	P90                    bench.Spread `json:"P90Millis"`
	P99                    bench.Spread `json:"P99Millis"`
	P999                   bench.Spread `json:"P999Millis"`
	Max                    bench.Spread `json:"MaxMillis"`
	P50Ratio, P99Ratio     float64      // medians relative to the medians of the limit; 0 if the limit was not measured
	BehindP50              bench.Spread `json:"BehindP50Millis"`
	BehindP99              bench.Spread `json:"BehindP99Millis"`
	DrainMillis            bench.Spread
	CPUMicros              bench.Spread // an event
	BrokerCPUMicros        bench.Spread // an event
	RSSMiB                 bench.Spread
	GeneratorLate, Backlog bool

	latency openloop.Histogram // of all rounds
}

// rowsOf aggregates the measurements, in the order of the settings.
func rowsOf(s settings, measured []measurement) (rows []row) {
	for _, rate := range s.rates {
		for _, commit := range s.commits {
			for _, c := range s.contenders() {
				at := point{rate, commit}
				ms := slices.DeleteFunc(slices.Clone(measured), func(m measurement) bool { return m.Contender != c.name || m.point != at })
				if len(ms) > 0 {
					rows = append(rows, rowOf(c, at, ms))
				}
			}
		}
	}
	for i := range rows {
		r := &rows[i]
		if l := slices.IndexFunc(rows, func(l row) bool { return l.Contender == r.Limit && l.point == r.point }); l >= 0 {
			r.P50Ratio, r.P99Ratio = r.P50.Median/rows[l].P50.Median, r.P99.Median/rows[l].P99.Median
		}
	}
	return rows
}

func rowOf(c contender, at point, ms []measurement) row {
	spread := func(value func(measurement) float64) bench.Spread { return bench.SpreadBy(ms, value) }
	r := row{
		Contender: c.name, Limit: c.limit, point: at, Events: ms[0].Events,
		P50:             spread(func(m measurement) float64 { return m.Latency.P50 }),
		P90:             spread(func(m measurement) float64 { return m.Latency.P90 }),
		P99:             spread(func(m measurement) float64 { return m.Latency.P99 }),
		P999:            spread(func(m measurement) float64 { return m.Latency.P999 }),
		Max:             spread(func(m measurement) float64 { return m.Latency.Max }),
		BehindP50:       spread(func(m measurement) float64 { return m.Behind.P50 }),
		BehindP99:       spread(func(m measurement) float64 { return m.Behind.P99 }),
		DrainMillis:     spread(func(m measurement) float64 { return m.DrainMillis }),
		CPUMicros:       spread(func(m measurement) float64 { return m.CPUMicros }),
		BrokerCPUMicros: spread(func(m measurement) float64 { return m.BrokerCPUMicros }),
		RSSMiB:          spread(func(m measurement) float64 { return float64(m.RSSMaxBytes) / (1 << 20) }),
	}
	for _, m := range ms {
		r.latency.Add(m.latency)
	}
	r.GeneratorLate = r.BehindP50.Median > lateShare*r.P50.Median || r.BehindP99.Median > lateShare*r.P99.Median
	r.Backlog = r.DrainMillis.Median > openloop.Millis(backlogDrain)
	return r
}

// report prints the tables and writes them, with a chart for each point.
func report(machine bench.Machine, s settings, measured []measurement) error {
	rows := rowsOf(s, measured)
	return machine.Publish(s.results, bench.Report{Title: "Latency", Name: "latency", Text: markdown(s, rows), Goals: goals(rows), Charts: charts(rows), Result: struct {
		Rows         []row
		Measurements []measurement
	}{rows, measured}})
}

func markdown(s settings, rows []row) string {
	var b strings.Builder
	fmt.Fprintf(&b, `Milliseconds from when an event was due to be produced until a read_committed consumer had it, in an open loop: the
schedule is fixed, and an event that a stall delays counts with its whole wait. Events of about 250 bytes, %d %% duplicates, %d partitions,
%d worker(s) for each stage; %v of warm-up, %v measured, medians of %d round(s) with lowest and highest. Every event arrived exactly
once, and no duplicate where duplicates are to be dropped, or the run would have failed. The ratios are medians relative to those of the limit with
as many stages at the same commit interval: a transactional passthrough that writes a small changelog record for each event (Kafka
Streams is compared with the limit of one stage).

Generator late: how far after their due times the generator handed 99 %% of the events to its client, part of the latency.
CPU: microseconds an event of the contender's process and of the broker's, which also serves generator and consumer.
`, s.duplicates, s.partitions, s.workers, s.warmup, s.measured, s.rounds)
	for i, r := range rows {
		if i == 0 || r.Rate != rows[i-1].Rate {
			fmt.Fprintf(&b, "\n## %d events/s\n\n%d measured events a round.\n\n", r.Rate, r.Events)
			b.WriteString("| commit interval | contender | p50 | p90 | p99 | p99.9 | max | p50 ratio | p99 ratio | generator late | CPU, broker's | RSS MiB | |\n" +
				"| ---: | --- | --- | ---: | --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | --- |\n")
		}
		fmt.Fprintf(&b, "| %v | %s | %s | %s | %s | %s | %s | %s | %s | %s | %.1f, %.1f | %.0f | %s |\n", r.Commit, r.Contender,
			bench.WithSpread(r.P50), bench.Millis(r.P90.Median), bench.WithSpread(r.P99), bench.Millis(r.P999.Median), bench.Millis(r.Max.Median), bench.Figure("%.2f", r.P50Ratio), bench.Figure("%.2f", r.P99Ratio),
			bench.Millis(r.BehindP99.Median), r.CPUMicros.Median, r.BrokerCPUMicros.Median, r.RSSMiB.Median, r.marks())
	}
	return b.String() + marksMeaning(rows)
}

const (
	markLate    = "generator late"
	markBacklog = "backlog"
)

func (r row) marks() string {
	var marks []string
	if r.GeneratorLate {
		marks = append(marks, markLate)
	}
	if r.Backlog {
		marks = append(marks, markBacklog)
	}
	return strings.Join(marks, ", ")
}

// marksMeaning explains the marks of the table.
func marksMeaning(rows []row) string {
	var b strings.Builder
	if slices.ContainsFunc(rows, func(r row) bool { return r.GeneratorLate }) {
		fmt.Fprintf(&b, "\n%q: the generator could not keep its schedule to within %.0f %% of the latency, at p50 or p99; the row measures the generator too.\n", markLate, lateShare*100)
	}
	if slices.ContainsFunc(rows, func(r row) bool { return r.Backlog }) {
		fmt.Fprintf(&b, "\n%q: the last event arrived more than %v after it was due: the contender cannot keep up with the rate here, and its latency grows with the time measured.\n", markBacklog, backlogDrain)
	}
	return b.String()
}

// The goals of oncebus, by rate in events a second.
var (
	goalRatios = map[int]float64{20_000: 1.2}                           // of p50 relative to the limit's
	goalTails  = map[int]float64{20_000: 1.2, 100_000: 1.5}             // of p99 relative to the limit's
	goalMillis = map[point]float64{{20_000, 20 * time.Millisecond}: 60} // of p99
)

// goals compares the rows with the goals for their points.
func goals(rows []row) (goals []bench.Goal) {
	for _, r := range rows {
		if !strings.HasPrefix(r.Contender, "oncebus") {
			continue
		}
		add := func(what, format string, value, bound float64) {
			if value > 0 && bound > 0 {
				goals = append(goals, bench.AtMost(fmt.Sprintf("%d events/s, commit interval %v, %s: %s", r.Rate, r.Commit, r.Contender, what), format, value, bound))
			}
		}
		add("p50 relative to the limit's", "%.2f", r.P50Ratio, goalRatios[r.Rate])
		add("p99 relative to the limit's", "%.2f", r.P99Ratio, goalTails[r.Rate])
		add("p99", "%.0f ms", r.P99.Median, goalMillis[r.point])
	}
	return goals
}
