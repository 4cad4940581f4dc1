//go:build unix

package program

import (
	"fmt"
	"strings"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
)

// Metrics has the metrics of a process by name.
type Metrics map[string]*dto.MetricFamily

// ParseMetrics reads Prometheus' text format.
func ParseMetrics(text string) (Metrics, error) {
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(strings.NewReader(text))
	if err != nil {
		return nil, fmt.Errorf("parse /metrics: %w", err)
	}
	return families, nil
}

// Sum returns the sum of all series of a counter or gauge; 0 if there are none.
func (m Metrics) Sum(name string) float64 {
	sum := 0.0
	for _, series := range m[name].GetMetric() {
		sum += value(series)
	}
	return sum
}

// Counts returns the values of a counter or gauge. The keys are the values of each series' labels, in the order of
// the text, joined by slashes.
func (m Metrics) Counts(name string) map[string]int {
	counts := map[string]int{}
	for _, series := range m[name].GetMetric() {
		var labels []string
		for _, l := range series.GetLabel() {
			labels = append(labels, l.GetValue())
		}
		counts[strings.Join(labels, "/")] = int(value(series))
	}
	return counts
}

func value(series *dto.Metric) float64 {
	return series.GetCounter().GetValue() + series.GetGauge().GetValue() + series.GetUntyped().GetValue()
}
