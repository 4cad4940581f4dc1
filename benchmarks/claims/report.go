//go:build unix

package main

import (
	"fmt"
	"strings"
	"time"

	"oncebus/benchmarks/internal/bench"
)

// row is one figure of a measurement.
type row struct {
	name string
	of   func(m *measurement) float64
}

var rows = []row{
	{"events dispatched a second", func(m *measurement) float64 { return m.Dispatched }},
	{"µs of CPU for each event", func(m *measurement) float64 { return micros(m.DispatchCPU) }},
	{"outcomes answered a second", func(m *measurement) float64 { return m.Answered }},
	{"µs of CPU for each outcome", func(m *measurement) float64 { return micros(m.AnswerCPU) }},
	{"at rest with open claims: µs of CPU a second", func(m *measurement) float64 { return micros(m.OpenCPU) }},
	{"at rest with open claims: offsets of the repartition topic a second", func(m *measurement) float64 { return m.OpenRecords }},
	{"at rest without: µs of CPU a second", func(m *measurement) float64 { return micros(m.ClosedCPU) }},
	{"at rest without: offsets of the repartition topic a second", func(m *measurement) float64 { return m.ClosedRecords }},
}

func micros(d time.Duration) float64 { return float64(d) / float64(time.Microsecond) }

// median returns the median of the row's figure over the rounds.
func (r *row) median(rounds []measurement) float64 {
	return bench.SpreadBy(rounds, func(m measurement) float64 { return r.of(&m) }).Median
}

func report(s settings, machine bench.Machine, contenders []*contender) error {
	earlier, now := contenders[0], contenders[1]
	var b strings.Builder
	fmt.Fprintf(&b, "%d events of about 230 bytes in a round, %d partitions, one worker, medians of %d rounds in turns. Earlier is commit %s.\n\n", s.events, partitions, s.rounds, s.previous)
	b.WriteString("| what | earlier | now | ratio |\n| --- | ---: | ---: | ---: |\n")
	for _, r := range rows {
		was, is := r.median(earlier.rounds), r.median(now.rounds)
		fmt.Fprintf(&b, "| %s | %.1f | %.1f | %s |\n", r.name, was, is, bench.Ratio(is, was))
	}
	b.WriteString("\nOffsets count the control record that ends each transaction in a partition.\n")
	return machine.Publish(s.results, bench.Report{Title: "Claims", Name: "claims", Text: b.String(), Result: map[string][]measurement{earlier.name: earlier.rounds, now.name: now.rounds}})
}
