//go:build unix

package main

import (
	"errors"
	"fmt"
	"math"

	"oncebus/processor/kafkatest/program"

	dto "github.com/prometheus/client_model/go"
)

// quantile estimates a quantile of one of the process's histograms since the start of the process, in the unit of the
// histogram.
func quantile(m program.Metrics, name string, q float64) (float64, error) {
	all := m[name].GetMetric()
	if len(all) != 1 {
		return 0, fmt.Errorf("/metrics has %d series of %s, want one", len(all), name)
	}
	return quantileOf(all[0].GetHistogram(), q)
}

// quantileOf assumes, like Prometheus' histogram_quantile, that values are evenly distributed within a bucket.
func quantileOf(h *dto.Histogram, q float64) (float64, error) {
	rank := q * float64(h.GetSampleCount())
	var lower, below float64
	for _, b := range h.GetBucket() {
		upper, count := b.GetUpperBound(), float64(b.GetCumulativeCount())
		if count >= rank && count > below {
			if math.IsInf(upper, 1) {
				return lower, nil
			}
			return lower + (upper-lower)*(rank-below)/(count-below), nil
		}
		lower, below = upper, count
	}
	return 0, errors.New("an empty histogram has no quantiles")
}
