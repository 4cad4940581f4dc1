package app

import (
	"github.com/prometheus/client_golang/prometheus"

	"oncebus/processor/security"
)

// KeySeconds registers the histogram of the times that key derivations take, in seconds. The workers of a
// process and its ingress share it.
func KeySeconds(reg prometheus.Registerer) prometheus.Histogram {
	return security.RegisterOnce(reg, prometheus.NewHistogram(prometheus.HistogramOpts{Name: "oncebus_key_derivation_seconds",
		Help:    "Time to derive the dedup key of one event. Of the records of topics one in 64 is timed, of the events by HTTP each.",
		Buckets: prometheus.ExponentialBuckets(0.0000005, 2, 16)}))
}
