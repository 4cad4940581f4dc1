//go:build unix

package main

import (
	"slices"
	"testing"

	"oncebus/benchmarks/internal/bench"
)

func TestGoalsAreJudged(t *testing.T) {
	of := func(name string, cases map[float64]float64) (all results) {
		for x, value := range cases {
			all = append(all, result{Case: "case", X: x, Figures: []figure{{name, value}, {againStart, 3}}})
		}
		slices.SortFunc(all, func(a, b result) int { return int(a.X - b.X) })
		return all
	}
	for _, c := range []struct {
		part string
		of   results
		want string // of the first goal
	}{
		{"changelog", of(changelogBytes, map[float64]float64{1: 70, 250: 105}), bench.Met},
		{"changelog", of(changelogBytes, map[float64]float64{1: 70, 10: 106, 250: 80}), bench.Missed},
		{"changelog", of(changelogBytes, map[float64]float64{1: 70}), bench.NotMeasured},
		{"routes", of(cpuMicros, map[float64]float64{1: 3, 254: 4}), bench.Missed},
		{"partitions", of(firstStart, map[float64]float64{12: 9, 1000: 3.9}), bench.Met},
		{"partitions", of(firstStart, map[float64]float64{12: 1, 1000: 4.1}), bench.Missed},
		{"partitions", of(firstStart, map[float64]float64{12: 1}), bench.NotMeasured},
		{"backlog", of(p99, map[float64]float64{0: 100, 1: 299}), bench.Met},
		{"backlog", of(p99, map[float64]float64{0: 100, 1: 300}), bench.Missed},
		{"memory", of(rssHighest, map[float64]float64{0: 900, 1: 200, 2: 219}), bench.Met},
		{"memory", of(rssHighest, map[float64]float64{0: 900, 1: 200, 2: 222}), bench.Missed},
	} {
		p := parts[slices.IndexFunc(parts, func(p part) bool { return p.name == c.part })]
		if got := p.goals(c.of)[0]; got.Verdict != c.want {
			t.Errorf("%s: want %s, got %+v", c.part, c.want, got)
		}
	}
}

func TestThirdsHaveEverySample(t *testing.T) {
	for n := 3; n < 10; n++ {
		parts := thirds(make([]sample, n))
		if len(parts[0])+len(parts[1])+len(parts[2]) != n || len(parts[0]) == 0 {
			t.Errorf("%d samples become %d, %d and %d", n, len(parts[0]), len(parts[1]), len(parts[2]))
		}
	}
}
