package bench

import (
	"fmt"
	"math"
	"slices"
)

// Spread has the median and the extremes of several rounds.
type Spread struct {
	Median, Low, High float64
}

// SpreadOf returns the spread of the values. There must be at least one.
func SpreadOf(values []float64) Spread {
	sorted := slices.Sorted(slices.Values(values))
	return Spread{Median: Percentile(sorted, 50), Low: sorted[0], High: sorted[len(sorted)-1]}
}

// SpreadBy returns the spread of one figure over several runs; zeros if there are no runs.
func SpreadBy[R any](runs []R, figure func(R) float64) Spread {
	if len(runs) == 0 {
		return Spread{}
	}
	values := make([]float64, 0, len(runs))
	for _, r := range runs {
		values = append(values, figure(r))
	}
	return SpreadOf(values)
}

// Percentile returns the value below which p percent of the sorted values are. It interpolates between neighbouring
// values, and returns NaN if there are none.
func Percentile(sorted []float64, p float64) float64 {
	if len(sorted) == 0 {
		return math.NaN()
	}
	at := p / 100 * float64(len(sorted)-1)
	below := int(at)
	above := min(below+1, len(sorted)-1)
	return sorted[below] + (at-float64(below))*(sorted[above]-sorted[below])
}

// Ratio returns a / b as text. It returns a dash if b is 0, that is, not measured.
func Ratio(a, b float64) string {
	if b == 0 {
		return "-"
	}
	return fmt.Sprintf("%.2f", a/b)
}

// Figure formats a figure. It returns a dash if v is 0, that is, not measured.
func Figure(format string, v float64) string {
	if v == 0 {
		return "-"
	}
	return fmt.Sprintf(format, v)
}

// WithSpread formats the median in milliseconds, followed by the lowest and the highest value in brackets.
func WithSpread(s Spread) string {
	return fmt.Sprintf("%s (%s, %s)", Millis(s.Median), Millis(s.Low), Millis(s.High))
}

// Millis formats milliseconds with three digits, or whole ones.
func Millis(ms float64) string {
	switch {
	case ms < 10:
		return fmt.Sprintf("%.2f", ms)
	case ms < 100:
		return fmt.Sprintf("%.1f", ms)
	}
	return fmt.Sprintf("%.0f", ms)
}
