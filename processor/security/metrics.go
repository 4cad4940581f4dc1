package security

import (
	"errors"

	"github.com/prometheus/client_golang/prometheus"
)

// Values of the label credential.
const (
	credentialCertificates = "certificates"
	credentialPassword     = "password"
	credentialToken        = "token"
	credentialClientSecret = "client secret"
)

// securityMetrics show an operator whether a change of credentials has succeeded.
type securityMetrics struct {
	reloads *prometheus.CounterVec
	expiry  prometheus.Gauge
}

func newSecurityMetrics(reg prometheus.Registerer) *securityMetrics {
	m := &securityMetrics{
		reloads: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "oncebus_credential_reloads_total",
			Help: "Credentials read again from changed files, and tokens fetched, by credential and outcome. After a failure the old one stays in use; the log has the error."}, []string{"credential", "outcome"}),
		expiry: prometheus.NewGauge(prometheus.GaugeOpts{Name: "oncebus_client_certificate_expiry_timestamp_seconds",
			Help: "When the client certificate in use expires, in Unix time; 0 without one. Alert days before."}),
	}
	m.reloads, m.expiry = RegisterOnce(reg, m.reloads), RegisterOnce(reg, m.expiry)
	for _, c := range []string{credentialCertificates, credentialPassword, credentialToken, credentialClientSecret} {
		m.reloads.WithLabelValues(c, "loaded")
		m.reloads.WithLabelValues(c, "failed")
	}
	return m
}

// RegisterOnce registers a collector. If an equal one is registered already, it returns that one: the processor
// and the ingress of one process have the same credentials, and share their metrics.
func RegisterOnce[C prometheus.Collector](reg prometheus.Registerer, c C) C {
	err := reg.Register(c)
	if known, ok := errors.AsType[prometheus.AlreadyRegisteredError](err); ok {
		if same, ok := known.ExistingCollector.(C); ok {
			return same
		}
	}
	if err != nil {
		panic(err) // programming error: two different metrics have one name
	}
	return c
}

func (m *securityMetrics) reloaded(credential string) {
	m.reloads.WithLabelValues(credential, "loaded").Inc()
}

func (m *securityMetrics) failed(credential string) {
	m.reloads.WithLabelValues(credential, "failed").Inc()
}
