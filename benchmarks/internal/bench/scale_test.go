package bench

import (
	"slices"
	"testing"
)

func TestScaleTicks(t *testing.T) {
	for _, c := range []struct {
		scale scale
		want  []float64
	}{
		{scale{low: 3, high: 1234}, []float64{0, 500, 1000, 1500}},
		{scale{low: 0, high: 6}, []float64{0, 1, 2, 3, 4, 5, 6}},
		{scale{low: -2, high: 2}, []float64{-2, -1, 0, 1, 2}},
		{scale{log: true, low: 20, high: 3000, held: true}, []float64{10, 100, 1000, 10_000}},
	} {
		s := c.scale
		s.round()
		if got := s.ticks(); !slices.Equal(got, c.want) {
			t.Errorf("the ticks of %+v are %v, want %v", c.scale, got, c.want)
		}
	}
}
