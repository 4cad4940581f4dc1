//go:build unix

package main

import (
	"slices"
	"strings"
	"testing"
	"time"

	"oncebus/benchmarks/internal/peers"
	"oncebus/processor/kafkatest/program"
)

// TestProgress counts an event between two stages half.
func TestProgress(t *testing.T) {
	for _, c := range []struct {
		input, output int64
		want          float64
	}{
		{0, 0, 0}, {100, 90, 1}, {100, 0, 0.5}, {50, 45, 0.5}, {100, 95, 1}, // the last has markers after the records
	} {
		if got := (moment{input: c.input, output: c.output}).progress(100, 90); got != c.want {
			t.Errorf("%d of 100 read, %d of 90 emitted: progress %v, want %v", c.input, c.output, got, c.want)
		}
	}
}

func TestBetween(t *testing.T) {
	start := time.Unix(1000, 0)
	first := moment{at: start, contender: program.Usage{CPU: time.Second}, broker: program.Usage{CPU: 5 * time.Second}}
	last := moment{at: start.Add(2 * time.Second), contender: program.Usage{CPU: 2 * time.Second, RSSMax: 64 << 20}, broker: program.Usage{CPU: 9 * time.Second}}
	got, err := between(first, last, 0.5, 2_000_000)
	if want := (measurement{Rate: 500_000, CPUMicros: 1, BrokerCPUMicros: 4, RSSMaxMiB: 64}); err != nil || got != want {
		t.Errorf("measured %+v (%v), want %+v", got, err, want)
	}
	if _, err := between(last, last, 1, 2_000_000); err == nil {
		t.Error("a measurement of no time has no error")
	}
}

// TestSpan ends with the last output, not with offsets that are committed later.
func TestSpan(t *testing.T) {
	at := func(second, input, output int64) moment {
		return moment{at: time.Unix(second, 0), input: input, output: output}
	}
	var s span
	for _, sample := range []struct {
		now            moment
		warm, progress bool
	}{
		{at(1, 10, 10), false, true},
		{at(2, 20, 20), true, true},
		{at(3, 20, 20), true, false},
		{at(4, 40, 50), true, true},
		{at(9, 50, 50), true, true},
	} {
		if got := s.add(sample.now, sample.warm); got != sample.progress {
			t.Errorf("at %v: progress %v, want %v", sample.now.at, got, sample.progress)
		}
	}
	if s.first.at.Unix() != 2 || s.end.at.Unix() != 4 || s.last.at.Unix() != 9 {
		t.Errorf("the span is %v to %v, the last progress at %v", s.first.at, s.end.at, s.last.at)
	}
}

// TestTable compares only at equal numbers of workers.
func TestTable(t *testing.T) {
	var results []result
	for workers, rates := range map[int][]float64{1: {1000, 500, 250, 50}, 2: {800, 400, 300, 100}} {
		for i, c := range []contender{{name: passthrough}, {name: withChangelog}, {name: "oncebus keyed", limit: withChangelog}, {name: peers.StreamsKeyValue}} {
			results = append(results, result{Contender: c.name, Workers: workers, contender: c, Rounds: []measurement{{Rate: rates[i] * 1e3}, {Rate: rates[i] * 2e3}, {Rate: rates[i] * 0.5e3}}})
		}
	}
	text := table(settings{}, results)
	for _, want := range []string{
		"| oncebus keyed | 1 | 250 | 125, 500 | 0.25 | 0.50 | 5.00 |",
		"| oncebus keyed | 2 | 300 | 150, 600 | 0.38 | 0.75 | 3.00 |",
		"| passthrough | 2 | 800 | 400, 1600 | 1.00 | - | 8.00 |",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("no line %q in\n%s", want, text)
		}
	}
}

func TestGoalsAndRelativeRates(t *testing.T) {
	of := func(name, limit string, rate, cpu float64) result {
		return result{Contender: name, Workers: 1, Rounds: []measurement{{Rate: rate, CPUMicros: cpu}}, contender: contender{name: name, limit: limit}}
	}
	results := []result{
		of(withChangelog, "", 500_000, 1.8), of(keyed, withChangelog, 410_000, 2.5), of(routed, routedWithLog, 100, 1),
		of(peers.StreamsKeyValue, withChangelog, 100_000, 8),
	}
	var got []string
	for _, g := range goals(results) {
		got = append(got, g.Got+" "+g.Verdict)
	}
	if want := []string{"0.82 met", "4.10 missed", "1.39 missed"}; !slices.Equal(got, want) {
		t.Errorf("the goals are %v, want %v", got, want)
	}
	if c := relativeChart(results); !slices.Equal(c.Groups, []string{keyed, peers.StreamsKeyValue}) {
		t.Errorf("relative to a limit are %v", c.Groups)
	}
}
