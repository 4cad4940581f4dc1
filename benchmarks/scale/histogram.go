//go:build unix

package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
)

// quantile estimates a quantile of one of the process's histograms, of all it
// has seen since its start, in the histogram's unit.
func (s *service) quantile(ctx context.Context, name string, q float64) (float64, error) {
	body, err := s.get(ctx, "/metrics")
	if err != nil {
		return 0, err
	}
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(bytes.NewReader(body))
	if err != nil {
		return 0, fmt.Errorf("/metrics: %w", err)
	}
	for _, m := range families[name].GetMetric() {
		return quantileOf(m.GetHistogram(), q)
	}
	return 0, fmt.Errorf("/metrics has no %s", name)
}

// quantileOf takes values to be spread evenly within a bucket, as Prometheus'
// histogram_quantile does.
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
