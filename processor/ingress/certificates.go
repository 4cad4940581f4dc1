package ingress

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"time"
)

// certificateFiles is the content of the TLS files and the configuration made
// from it.
type certificateFiles struct {
	cert, key, clientCA string
	config              *tls.Config
}

// loadCertificates reads the files and builds the server's configuration.
func loadCertificates(c Config) (*certificateFiles, error) {
	var files certificateFiles
	var errs []error
	for _, f := range []struct {
		variable, path string
		to             *string
	}{{"TLS_CERT_FILE", c.TLSCertFile, &files.cert}, {"TLS_KEY_FILE", c.TLSKeyFile, &files.key}, {"TLS_CLIENT_CA_FILE", c.TLSClientCAFile, &files.clientCA}} {
		content, err := readPEM(f.path)
		if err != nil {
			errs = append(errs, fmt.Errorf("ONCEBUS_INGRESS_%s: %w", f.variable, err))
		}
		*f.to = content
	}
	if len(errs) > 0 {
		return nil, errors.Join(errs...)
	}
	pair, err := tls.X509KeyPair([]byte(files.cert), []byte(files.key))
	if err != nil {
		return nil, fmt.Errorf("ONCEBUS_INGRESS_TLS_CERT_FILE, ONCEBUS_INGRESS_TLS_KEY_FILE: %w", err)
	}
	if now := time.Now(); now.After(pair.Leaf.NotAfter) {
		return nil, fmt.Errorf("ONCEBUS_INGRESS_TLS_CERT_FILE: %s expired at %s, clients reject it: renew it", c.TLSCertFile, pair.Leaf.NotAfter.UTC().Format(time.RFC3339))
	}
	files.config = &tls.Config{MinVersion: tls.VersionTLS12, Certificates: []tls.Certificate{pair}, NextProtos: []string{"h2", "http/1.1"}}
	if c.TLSClientCAFile != "" {
		pool := x509.NewCertPool()
		if !pool.AppendCertsFromPEM([]byte(files.clientCA)) {
			return nil, fmt.Errorf("ONCEBUS_INGRESS_TLS_CLIENT_CA_FILE: %s contains no PEM certificate", c.TLSClientCAFile)
		}
		files.config.ClientCAs, files.config.ClientAuth = pool, tls.RequireAndVerifyClientCert
		// A resumed session was verified against the authorities of its time.
		files.config.SessionTicketsDisabled = true
	}
	return &files, nil
}

// readPEM reads the file at path; "" if path is "".
func readPEM(path string) (string, error) {
	if strings.ContainsAny(path, "\n\r") || strings.Contains(path, "-----BEGIN") {
		return "", errors.New("contains the file's content, want its path") // not repeated: it may be a private key
	}
	if path == "" {
		return "", nil
	}
	content, err := os.ReadFile(path)
	return string(content), err
}

// certificates is the server's TLS configuration, made from files. A new
// connection gets the current one; open connections keep theirs.
type certificates struct {
	Reloaded[*certificateFiles]
	clientAuth bool
}

func newCertificates(cfg Config, m *metrics, log *slog.Logger) (*certificates, error) {
	c := &certificates{clientAuth: cfg.TLSClientCAFile != ""}
	reloads := m.reloadCounters(reloadCertificates)
	c.Reloaded = Reloaded[*certificateFiles]{
		Load: func() (*certificateFiles, error) { return loadCertificates(cfg) },
		Equal: func(a, b *certificateFiles) bool {
			return a.cert == b.cert && a.key == b.key && a.clientCA == b.clientCA
		},
		Interval: reloadInterval,
		Changed: func(files *certificateFiles) {
			reloads.succeeded()
			log.Info("certificates reloaded")
			m.showExpiry(files)
		},
		Failed: func(err error) {
			reloads.failed()
			log.Error("certificates reload failed", "error", err)
		},
	}
	if err := c.Start(); err != nil {
		return nil, err
	}
	files, _ := c.Current()
	m.showExpiry(files)
	return c, nil
}

// config returns the configuration for a listener.
func (c *certificates) config() *tls.Config {
	return &tls.Config{
		MinVersion: tls.VersionTLS12, SessionTicketsDisabled: c.clientAuth,
		GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) {
			files, _ := c.Current()
			return files.config, nil
		},
	}
}
