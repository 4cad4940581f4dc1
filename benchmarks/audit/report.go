//go:build unix

package main

import (
	"fmt"
	"strings"

	"oncebus/benchmarks/internal/bench"
)

// result is one contender.
type result struct {
	Contender string
	Rounds    []measurement
}

// median returns the median of one figure over the rounds.
func (r result) median(figure func(measurement) float64) float64 {
	return bench.SpreadBy(r.Rounds, figure).Median
}

// report prints the table of medians and, with -results, writes the files.
func report(s settings, machine bench.Machine, results []result) error {
	var b strings.Builder
	fmt.Fprintf(&b, "%d events of about 230 bytes in %d partitions, %d %% duplicates; medians of %d round(s).\n\n", s.events, s.partitions, s.duplicates, s.rounds)
	b.WriteString("| | k events/s | relative to the limit | CPU µs per event | memory MiB | disk MiB | keys |\n| --- | ---: | ---: | ---: | ---: | ---: | ---: |\n")
	rate := func(m measurement) float64 { return m.Rate / 1e3 }
	limit := results[0].median(rate)
	chart := bench.Chart{Title: "Rate of an audit", Y: "k events/s", Series: []bench.Series{{Name: "rate"}}}
	for _, r := range results {
		keys := "-"
		if n := r.median(func(m measurement) float64 { return m.Keys }); n > 0 {
			keys = fmt.Sprintf("%.0f", n)
			if deviation := r.median(func(m measurement) float64 { return m.KeysError }); deviation > 0 {
				keys += fmt.Sprintf(" ± %.0f", deviation)
			}
		}
		fmt.Fprintf(&b, "| %s | %.0f | %s | %.2f | %.0f | %s | %s |\n", r.Contender, r.median(rate), bench.Ratio(r.median(rate), limit),
			r.median(func(m measurement) float64 { return m.CPUMicros }), r.median(func(m measurement) float64 { return m.RSSMaxMiB }),
			bench.Figure("%.0f", r.median(func(m measurement) float64 { return m.DiskMiB })), keys)
		chart.Groups = append(chart.Groups, r.Contender)
		spread := bench.SpreadBy(r.Rounds, rate)
		chart.Series[0].Points = append(chart.Series[0].Points, bench.Point{Y: spread.Median, Low: spread.Low, High: spread.High})
	}
	return machine.Publish(s.results, bench.Report{Title: "Audit", Name: "audit", Text: b.String(), Charts: map[string]bench.Chart{"": chart}, Result: results})
}
