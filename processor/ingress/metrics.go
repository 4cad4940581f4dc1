package ingress

import (
	"errors"

	"github.com/prometheus/client_golang/prometheus"

	"oncebus/processor/front"
)

// Values of the label reason of oncebus_http_refused_total; limitReasons and signatureReasons have the other
// values.
const (
	reasonRequests = "requests"
	reasonRate     = "rate"
	reasonSource   = "rate_per_source"
	reasonAddress  = "source" // the address is not in allowed_sources
	reasonQuota    = "quota"  // the tenant is over its quota
)

// limitReasons has the value of the label and the detail of the problem for each limit: the limits of
// requestLimits, and the limit of the events that wait for Kafka.
var limitReasons = []struct {
	err            error
	reason, detail string
}{
	{errRequests, reasonRequests, ""},
	{errSourceRequests, "requests_per_source", ofSource},
	{errEndpointRequests, "requests_per_route", ofEndpoint},
	{errBodies, "bodies", ""},
	{errSourceBodies, "bodies_per_source", ofSource},
	{errEndpointBodies, "bodies_per_route", ofEndpoint},
	{front.ErrBuffered, "buffered_per_route", ofEndpoint},
}

const (
	ofSource   = "the limit is that of your address"
	ofEndpoint = "the limit is that of this path"
)

// isLimit reports whether err is one of the limits.
func isLimit(err error) bool {
	for _, l := range limitReasons {
		if errors.Is(err, l.err) {
			return true
		}
	}
	return false
}

// Values of the label what of oncebus_http_reloads_total.
const (
	reloadSecrets      = "secrets"
	reloadCertificates = "certificates"
)

// metrics has the Prometheus metrics of the server.
type metrics struct {
	requests *prometheus.CounterVec
	seconds  *prometheus.HistogramVec
	verdict  *prometheus.HistogramVec
	inFlight prometheus.Gauge
	bodies   prometheus.Gauge
	refused  *prometheus.CounterVec
	reload   *prometheus.CounterVec

	connections prometheus.Gauge
	followers   prometheus.Gauge
	replaced    prometheus.Counter

	expiry prometheus.Gauge
}

func newMetrics(reg prometheus.Registerer) *metrics {
	m := &metrics{
		requests: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "oncebus_http_requests_total",
			Help: "Responses, by route, status code and response: a verdict, the kind of an outcome, or the name of a problem. Before a route is known, route is the first of the path; it is empty for an unknown path. Code 499 is a client that disconnected."}, []string{"route", "code", "response"}),
		seconds: prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: "oncebus_http_request_seconds",
			Help:    "Time from a request's headers to its response, by route.",
			Buckets: prometheus.ExponentialBuckets(0.001, 2, 16)}, []string{"route"}),
		verdict: prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: "oncebus_http_verdict_seconds",
			Help:    "Time from producing the event to its verdict, by route; with while_in_progress: wait, to the outcome that a duplicate waits for; with answer: outcome, to that of every request that waits.",
			Buckets: prometheus.ExponentialBuckets(0.001, 2, 16)}, []string{"route"}),
		inFlight: prometheus.NewGauge(prometheus.GaugeOpts{Name: "oncebus_http_requests_in_flight",
			Help: "In-flight requests. ONCEBUS_INGRESS_MAX_REQUESTS limits events, outcomes and questions for outcomes separately."}),
		bodies: prometheus.NewGauge(prometheus.GaugeOpts{Name: "oncebus_http_body_bytes",
			Help: "Memory that bodies use. ONCEBUS_INGRESS_MAX_BODY_BYTES limits events, and outcomes separately."}),
		refused: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "oncebus_http_refused_total",
			Help: "Requests rejected by limits and signatures, by route and reason: requests or bodies, in sum, _per_source or _per_route; buffered_per_route (events that wait for Kafka); rate, rate_per_source; source (its address is not in allowed_sources); quota (of a tenant); or a missing, malformed, stale or wrong signature; question (the signed text of a GET as a body)."}, []string{"route", "reason"}),
		reload: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "oncebus_http_reloads_total",
			Help: "Changed secrets and certificates that were read again, by outcome. After a failure the old ones stay in use; the log has the error."}, []string{"what", "outcome"}),
		expiry: prometheus.NewGauge(prometheus.GaugeOpts{Name: "oncebus_http_certificate_expiry_timestamp_seconds",
			Help: "When the server certificate in use expires, in Unix time; 0 without one. Alert days before."}),
	}
	m.connections = prometheus.NewGauge(prometheus.GaugeOpts{Name: "oncebus_http_connections",
		Help: "Open connections. ONCEBUS_INGRESS_MAX_CONNECTIONS limits them."})
	m.followers = prometheus.NewGauge(prometheus.GaugeOpts{Name: "oncebus_http_followers",
		Help: "Connections that follow the outcomes of a path as server-sent events. max_connections of the route's events limits them."})
	m.replaced = prometheus.NewCounter(prometheus.CounterOpts{Name: "oncebus_http_connections_replaced_total",
		Help: "Connections without a request that the ingress closed because a new one came at ONCEBUS_INGRESS_MAX_CONNECTIONS."})
	reg.MustRegister(m.requests, m.seconds, m.verdict, m.inFlight, m.bodies, m.refused, m.reload, m.expiry, m.connections, m.followers, m.replaced)
	return m
}

// prepare creates the series of a route, so that each begins at 0 and not at its first increment.
func (m *metrics) prepare(route string) {
	m.seconds.WithLabelValues(route)
	m.verdict.WithLabelValues(route)
	for _, reason := range []string{reasonRate, reasonSource, reasonAddress, reasonQuota} {
		m.refused.WithLabelValues(route, reason)
	}
	for _, l := range limitReasons {
		m.refused.WithLabelValues(route, l.reason)
	}
	for _, r := range signatureReasons {
		m.refused.WithLabelValues(route, r.reason)
	}
}

// reloadCounters counts the successful and failed reloads of one kind of file.
type reloadCounters struct{ ok, bad prometheus.Counter }

func (m *metrics) reloadCounters(what string) reloadCounters {
	return reloadCounters{ok: m.reload.WithLabelValues(what, "ok"), bad: m.reload.WithLabelValues(what, "failed")}
}

func (r reloadCounters) succeeded() { r.ok.Inc() }
func (r reloadCounters) failed()    { r.bad.Inc() }
