//go:build unix

package main

import (
	"fmt"
	"slices"

	"oncebus/benchmarks/internal/bench"
	"oncebus/benchmarks/internal/openloop"
)

// logFrom is the ratio of highest to lowest latency above which the axis of a chart
// is logarithmic. On a linear axis one contender that stalls would flatten the lines
// of the others.
const logFrom = 50

// charts draws the distributions, a file for each point. The x axis is 1/(1-q): each
// power of ten to the right shows ten times rarer events.
func charts(rows []row) map[string]bench.Chart {
	byPoint := map[point]*bench.Chart{}
	for _, r := range slices.Backward(rows) { // the limit is drawn last, above the others
		c := byPoint[r.point]
		if c == nil {
			c = &bench.Chart{
				Title: fmt.Sprintf("Latency at %d events/s, commit interval %v", r.Rate, r.Commit),
				X:     "one event in … waits longer (2 is the median, 10 is p90, 100 is p99, 1000 is p99.9)", Y: "milliseconds", LogX: true,
			}
			byPoint[r.point] = c
		}
		c.Series = append(c.Series, bench.Series{Name: r.Contender, Points: curve(&r.latency)})
	}
	all := map[string]bench.Chart{}
	for at, c := range byPoint {
		low, high := extent(c.Series)
		c.LogY = high > logFrom*low
		all[fmt.Sprintf("-%d-%v", at.Rate, at.Commit)] = *c
	}
	return all
}

// curve returns the distribution up to the quantile above which there are only ten
// values.
func curve(h *openloop.Histogram) (points []bench.Point) {
	for power := 1; ; power *= 10 {
		for _, step := range []int{1, 2, 3, 5, 7} {
			oneIn := power * step
			if uint64(oneIn)*10 > max(h.Total, 10) {
				return points
			}
			ms := openloop.Millis(h.Quantile(1 - 1/float64(oneIn)))
			points = append(points, bench.Point{X: float64(oneIn), Y: ms, Low: ms, High: ms})
		}
	}
}

// extent returns the lowest and the highest value of all series.
func extent(series []bench.Series) (low, high float64) {
	for _, s := range series {
		for _, p := range s.Points {
			if low == 0 || p.Y < low {
				low = p.Y
			}
			high = max(high, p.Y)
		}
	}
	return low, high
}
