//go:build unix

package main

import (
	"math"
	"testing"

	dto "github.com/prometheus/client_model/go"
)

// TestQuantileOf: 50 values up to 1, 40 more up to 2, 10 above 4.
func TestQuantileOf(t *testing.T) {
	h := &dto.Histogram{SampleCount: new(uint64(100))}
	for _, b := range []struct {
		upper float64
		count uint64
	}{{1, 50}, {2, 90}, {4, 90}, {math.Inf(1), 100}} {
		h.Bucket = append(h.Bucket, &dto.Bucket{UpperBound: &b.upper, CumulativeCount: &b.count})
	}
	for q, want := range map[float64]float64{0.25: 0.5, 0.5: 1, 0.7: 1.5, 0.9: 2, 0.99: 4} {
		if got, err := quantileOf(h, q); err != nil || math.Abs(got-want) > 1e-9 {
			t.Errorf("quantile %v: %v, %v, want %v", q, got, err, want)
		}
	}
	if _, err := quantileOf(new(dto.Histogram), 0.5); err == nil {
		t.Error("an empty histogram has a quantile")
	}
}
