package ingress

import (
	"github.com/prometheus/client_golang/prometheus"
)

// Reasons for which a request is refused before it is read as an event, as the
// metric's label has them. Those of signatures are in refusals.
const (
	reasonRequests = "requests"
	reasonBodies   = "bodies"
	reasonRate     = "rate"
	reasonSource   = "rate_per_source"
)

// What is read again when its files change, as the metric's label has it.
const (
	reloadSecrets      = "secrets"
	reloadCertificates = "certificates"
)

// metrics is every series of the server.
type metrics struct {
	requests *prometheus.CounterVec
	seconds  *prometheus.HistogramVec
	verdict  *prometheus.HistogramVec
	inFlight prometheus.Gauge
	bodies   prometheus.Gauge
	refused  *prometheus.CounterVec
	reload   *prometheus.CounterVec
	expiry   prometheus.Gauge
}

func newMetrics(reg prometheus.Registerer) *metrics {
	m := &metrics{
		requests: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "oncebus_http_requests_total",
			Help: "Requests answered, by route, status code and response: a verdict, an outcome, or the name of the problem. The route is the path's first where none was derived; empty without a path of ours; code 499 is a client that went away."}, []string{"route", "code", "response"}),
		seconds: prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: "oncebus_http_request_seconds",
			Help:    "Time from a request's headers to its answer, by route.",
			Buckets: prometheus.ExponentialBuckets(0.001, 2, 16)}, []string{"route"}),
		verdict: prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: "oncebus_http_verdict_seconds",
			Help:    "Part of it that was spent waiting for the bus and the verdict; with while_in_progress: wait, for the outcome that a copy gets.",
			Buckets: prometheus.ExponentialBuckets(0.001, 2, 16)}, []string{"route"}),
		inFlight: prometheus.NewGauge(prometheus.GaugeOpts{Name: "oncebus_http_requests_in_flight",
			Help: "Requests in hand; ONCEBUS_INGRESS_MAX_REQUESTS is the most of events, and as many again of outcomes."}),
		bodies: prometheus.NewGauge(prometheus.GaugeOpts{Name: "oncebus_http_body_bytes",
			Help: "Memory held for bodies; ONCEBUS_INGRESS_MAX_BODY_BYTES is the most of events, and as much again of outcomes."}),
		refused: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "oncebus_http_refused_total",
			Help: "Requests refused by limits and signatures, by route and reason: requests, bodies, rate, rate_per_source; missing, malformed, stale or wrong signatures."}, []string{"route", "reason"}),
		reload: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "oncebus_http_reloads_total",
			Help: "Secrets and certificates read again from changed files, by outcome. A failed one leaves the old one in use; the log says why."}, []string{"what", "outcome"}),
		expiry: prometheus.NewGauge(prometheus.GaugeOpts{Name: "oncebus_http_certificate_expiry_timestamp_seconds",
			Help: "When the server certificate in use ends, in Unix time; 0 without one. Alert well before."}),
	}
	reg.MustRegister(m.requests, m.seconds, m.verdict, m.inFlight, m.bodies, m.refused, m.reload, m.expiry)
	return m
}

// prepare makes the series of a route exist before the first request.
func (m *metrics) prepare(route string) {
	m.seconds.WithLabelValues(route)
	m.verdict.WithLabelValues(route)
	for _, reason := range []string{reasonRequests, reasonBodies, reasonRate, reasonSource} {
		m.refused.WithLabelValues(route, reason)
	}
	for _, r := range refusals {
		m.refused.WithLabelValues(route, r.reason)
	}
}

// reloads counts what became of files that were read again.
type reloads struct{ ok, bad prometheus.Counter }

func (m *metrics) reloads(what string) reloads {
	return reloads{ok: m.reload.WithLabelValues(what, "ok"), bad: m.reload.WithLabelValues(what, "failed")}
}

func (r reloads) reloaded() { r.ok.Inc() }
func (r reloads) failed()   { r.bad.Inc() }
