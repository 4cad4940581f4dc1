package ingress

import (
	"crypto/tls"
	"log/slog"

	"oncebus/processor/security"
)

// loadCertificates reads the certificate files that the settings name.
func loadCertificates(c Config) (*security.Certificates, error) {
	const prefix = "ONCEBUS_INGRESS_TLS_"
	return security.LoadCertificates(security.File{Variable: prefix + "CERT_FILE", Path: c.TLSCertFile},
		security.File{Variable: prefix + "KEY_FILE", Path: c.TLSKeyFile}, security.File{Variable: prefix + "CLIENT_CA_FILE", Path: c.TLSClientCAFile})
}

// newCertificates returns the TLS configuration of the ingress.
func newCertificates(cfg Config, m *metrics, log *slog.Logger) (*security.ServerCertificates, error) {
	c := &security.ServerCertificates{}
	if cfg.TLSClientCAFile != "" {
		c.ClientAuth = tls.RequireAndVerifyClientCert
	}
	reloads := m.reloadCounters(reloadCertificates)
	c.Reloaded = security.Reloaded[*security.Certificates]{
		Load:     func() (*security.Certificates, error) { return loadCertificates(cfg) },
		Equal:    (*security.Certificates).Equal,
		Interval: reloadInterval,
		Changed: func(files *security.Certificates) {
			reloads.succeeded()
			log.Info("certificates reloaded")
			files.ShowExpiry(m.expiry)
		},
		Failed: func(err error) {
			reloads.failed()
			log.Error("certificates reload failed", "error", err)
		},
	}
	files, err := c.Start()
	if err != nil {
		return nil, err
	}
	files.ShowExpiry(m.expiry)
	return c, nil
}
