package ingress

import (
	"crypto/tls"
	"log/slog"

	"oncebus/processor/security"
)

// loadCertificates reads the files that the settings name.
func loadCertificates(c Config) (*security.Certificates, error) {
	const prefix = "ONCEBUS_INGRESS_TLS_"
	return security.LoadCertificates(security.File{Variable: prefix + "CERT_FILE", Path: c.TLSCertFile},
		security.File{Variable: prefix + "KEY_FILE", Path: c.TLSKeyFile}, security.File{Variable: prefix + "CLIENT_CA_FILE", Path: c.TLSClientCAFile})
}

// certificates is the server's TLS configuration, made from files. A new
// connection gets the current one; open connections keep theirs.
type certificates struct {
	security.Reloaded[*security.Certificates]
	clientAuth bool
}

func newCertificates(cfg Config, m *metrics, log *slog.Logger) (*certificates, error) {
	c := &certificates{clientAuth: cfg.TLSClientCAFile != ""}
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

// config returns the configuration for a listener.
func (c *certificates) config() *tls.Config {
	return &tls.Config{
		MinVersion: tls.VersionTLS12, SessionTicketsDisabled: c.clientAuth,
		GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) {
			files, _ := c.Current()
			return c.configFor(files), nil
		},
	}
}

// configFor returns the configuration for a new connection.
func (c *certificates) configFor(files *security.Certificates) *tls.Config {
	config := &tls.Config{MinVersion: tls.VersionTLS12, Certificates: []tls.Certificate{*files.Pair}, NextProtos: []string{"h2", "http/1.1"}}
	if c.clientAuth {
		config.ClientCAs, config.ClientAuth = files.Pool, tls.RequireAndVerifyClientCert
		// A resumed session was verified against the authorities of its time.
		config.SessionTicketsDisabled = true
	}
	return config
}
