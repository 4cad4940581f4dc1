package bench

import (
	"math"
	"testing"
)

func TestPercentile(t *testing.T) {
	for _, c := range []struct {
		values  []float64
		p, want float64
	}{
		{[]float64{7}, 99, 7},
		{[]float64{1, 2, 3}, 50, 2},
		{[]float64{1, 2, 3, 4}, 50, 2.5},
		{[]float64{0, 10}, 99, 9.9},
		{[]float64{1, 2, 3}, 0, 1},
		{[]float64{1, 2, 3}, 100, 3},
	} {
		if got := Percentile(c.values, c.p); math.Abs(got-c.want) > 1e-9 {
			t.Errorf("percentile %v of %v is %v, want %v", c.p, c.values, got, c.want)
		}
	}
	if got := Percentile(nil, 50); !math.IsNaN(got) {
		t.Errorf("percentile of nothing is %v, want NaN", got)
	}
	if got, want := SpreadOf([]float64{3, 1, 2}), (Spread{Median: 2, Low: 1, High: 3}); got != want {
		t.Errorf("spread is %v, want %v", got, want)
	}
}
