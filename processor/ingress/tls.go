package ingress

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"sync"
	"time"
)

// certificateFiles is what the files of TLS hold.
type certificateFiles struct {
	cert, key, clientCA string
	config              *tls.Config
}

// loadCertificates reads the files and makes the server's configuration of them.
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
		return nil, fmt.Errorf("ONCEBUS_INGRESS_TLS_CERT_FILE: %s expired at %s, no client takes it", c.TLSCertFile, pair.Leaf.NotAfter.UTC().Format(time.RFC3339))
	}
	files.config = &tls.Config{MinVersion: tls.VersionTLS12, Certificates: []tls.Certificate{pair}, NextProtos: []string{"h2", "http/1.1"}}
	if c.TLSClientCAFile != "" {
		pool := x509.NewCertPool()
		if !pool.AppendCertsFromPEM([]byte(files.clientCA)) {
			return nil, fmt.Errorf("ONCEBUS_INGRESS_TLS_CLIENT_CA_FILE: %s holds no PEM certificate", c.TLSClientCAFile)
		}
		files.config.ClientCAs, files.config.ClientAuth = pool, tls.RequireAndVerifyClientCert
		// A resumed session was verified against the authorities of its time.
		files.config.SessionTicketsDisabled = true
	}
	return &files, nil
}

// readPEM reads a file that may be named; "" if none is.
func readPEM(path string) (string, error) {
	if strings.ContainsAny(path, "\n\r") || strings.Contains(path, "-----BEGIN") {
		return "", errors.New("holds what should be in a file, want the file's path") // not repeated: it may be a private key
	}
	if path == "" {
		return "", nil
	}
	content, err := os.ReadFile(path)
	return string(content), err
}

// certificates is the TLS configuration that the files hold now, or held when
// it was last usable. They are looked at when a connection is opened; open ones
// keep what they were opened with.
type certificates struct {
	cfg     Config
	now     func() time.Time
	log     *slog.Logger
	metrics *metrics
	count   reloads

	mu      sync.Mutex
	checked time.Time
	files   *certificateFiles
	refused string // why the files' present content is not used; "" if it is
}

func newCertificates(cfg Config, m *metrics, log *slog.Logger) (*certificates, error) {
	files, err := loadCertificates(cfg)
	if err != nil {
		return nil, err
	}
	c := &certificates{cfg: cfg, now: time.Now, log: log, metrics: m, count: m.reloads(reloadCertificates), files: files}
	c.checked = c.now()
	c.showExpiry()
	return c, nil
}

// config is what a listener takes.
func (c *certificates) config() *tls.Config {
	return &tls.Config{
		MinVersion: tls.VersionTLS12, SessionTicketsDisabled: c.cfg.TLSClientCAFile != "",
		GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) { return c.current(), nil },
	}
}

func (c *certificates) current() *tls.Config {
	c.mu.Lock()
	defer c.mu.Unlock()
	if now := c.now(); now.Sub(c.checked) >= reloadInterval {
		c.reload()
		c.checked = now
	}
	return c.files.config
}

// reload reads the files again. Content that cannot be used is said once, and
// what was read before stays in use: half of a new pair may have been written.
func (c *certificates) reload() {
	files, err := loadCertificates(c.cfg)
	if err != nil {
		if err.Error() != c.refused {
			c.refused = err.Error()
			c.count.failed()
			c.log.Error("changed certificate files cannot be used, the old ones stay in use", "error", err)
		}
		return
	}
	c.refused = ""
	if files.cert == c.files.cert && files.key == c.files.key && files.clientCA == c.files.clientCA {
		return
	}
	c.files = files
	c.count.reloaded()
	c.log.Info("certificate files read again, for new connections")
	c.showExpiry()
}

func (c *certificates) showExpiry() {
	c.metrics.expiry.Set(float64(c.files.config.Certificates[0].Leaf.NotAfter.Unix()))
}
