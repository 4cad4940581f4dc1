package registry

import "github.com/prometheus/client_golang/prometheus"

// Values of the label result; the metric's help text says what they mean.
const (
	resultRead    = "read"
	resultInvalid = "invalid"
	resultFailed  = "failed"
)

type metrics struct {
	requests *prometheus.CounterVec
	schemas  prometheus.Gauge
}

func newMetrics() metrics {
	m := metrics{
		requests: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "oncebus_registry_requests_total",
			Help: "Schemas that were asked for, by result: read, invalid (the registry has no such schema, or it is of another format: records that name it are invalid) or failed (records that name it wait, and it is asked for again).",
		}, []string{"result"}),
		schemas: prometheus.NewGauge(prometheus.GaugeOpts{Name: "oncebus_registry_schemas", Help: "Schemas that the process has read."}),
	}
	for _, result := range []string{resultRead, resultInvalid, resultFailed} {
		m.requests.WithLabelValues(result)
	}
	return m
}

// Describe implements prometheus.Collector.
func (r *Registry) Describe(to chan<- *prometheus.Desc) {
	r.metrics.requests.Describe(to)
	r.metrics.schemas.Describe(to)
}

// Collect implements prometheus.Collector.
func (r *Registry) Collect(to chan<- prometheus.Metric) {
	r.metrics.requests.Collect(to)
	r.metrics.schemas.Collect(to)
}
