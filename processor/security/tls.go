package security

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

const (
	// certificateCheckInterval is how often the certificate files are read
	// again, when a connection is opened or a request written.
	certificateCheckInterval = 5 * time.Second
	// dialTimeout bounds connecting and the TLS handshake; franz-go's own.
	dialTimeout = 10 * time.Second
)

// tlsFiles is what the files of TLS hold.
type tlsFiles struct{ ca, cert, key string }

// load reads the files and builds the client's TLS configuration from them.
// Every mistake is in the error, under the variables that begin with prefix.
func (t TLS) load(prefix string) (*tls.Config, tlsFiles, error) {
	var files tlsFiles
	var m Mistakes
	for _, f := range []struct {
		variable, path string
		to             *string
	}{{"CA_FILE", t.CAFile, &files.ca}, {"CERT_FILE", t.CertFile, &files.cert}, {"KEY_FILE", t.KeyFile, &files.key}} {
		content, err := readSetting(prefix+f.variable, f.path)
		m.Add(err)
		*f.to = string(content)
	}
	switch {
	case t.CertFile != "" && t.KeyFile == "":
		m.Addf("%sCERT_FILE: set without %sKEY_FILE, want both or neither", prefix, prefix)
	case t.CertFile == "" && t.KeyFile != "":
		m.Addf("%sKEY_FILE: set without %sCERT_FILE, want both or neither", prefix, prefix)
	}
	if err := m.Err(); err != nil {
		return nil, files, err
	}
	config := &tls.Config{MinVersion: tls.VersionTLS12, ServerName: t.ServerName}
	if t.CAFile != "" {
		config.RootCAs = x509.NewCertPool()
		if !config.RootCAs.AppendCertsFromPEM([]byte(files.ca)) {
			m.Addf("%sCA_FILE: %s holds no PEM certificate", prefix, t.CAFile)
		}
	}
	if t.CertFile != "" {
		pair, err := t.pair(prefix, files)
		m.Add(err)
		// Sent for any authority the broker names: a broker that does not trust
		// the certificate then reports it, instead of an anonymous client.
		config.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return pair, nil }
		config.Certificates = []tls.Certificate{*pair}
	}
	return config, files, m.Err()
}

// pair is the client certificate with its key, and is never nil.
func (t TLS) pair(prefix string, files tlsFiles) (*tls.Certificate, error) {
	pair, err := tls.X509KeyPair([]byte(files.cert), []byte(files.key))
	if err != nil {
		return &pair, fmt.Errorf("%sCERT_FILE, %sKEY_FILE: %w", prefix, prefix, err)
	}
	if now := time.Now(); now.After(pair.Leaf.NotAfter) {
		return &pair, fmt.Errorf("%sCERT_FILE: %s expired at %s, no broker takes it", prefix, t.CertFile, pair.Leaf.NotAfter.UTC().Format(time.RFC3339))
	}
	return &pair, nil
}

// readSetting reads the file that a variable names; nothing if it names none.
func readSetting(variable, path string) ([]byte, error) {
	if strings.ContainsAny(path, "\n\r") || strings.Contains(path, "-----BEGIN") {
		// Not repeated: it may be a private key.
		return nil, fmt.Errorf("%s: holds what should be in a file, want the file's path", variable)
	}
	if path == "" {
		return nil, nil
	}
	content, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", variable, err)
	}
	return content, nil
}

// certificates is the TLS configuration that the files hold now, or held when
// it was last usable. Opening a connection or writing to one checks the files, so no
// goroutine is needed. A change makes a new generation. A connection of an older one is
// replaced when it has no in-flight request.
type certificates struct {
	settings TLS
	prefix   string // of the settings' variables
	log      *slog.Logger
	metrics  *securityMetrics

	generation atomic.Uint64

	mu      sync.Mutex
	checked time.Time
	files   tlsFiles
	config  *tls.Config
	refused string // why the files' present content is not used; "" if it is
}

func (s *credentials) certificates(prefix string, settings TLS) (*certificates, error) {
	config, files, err := settings.load(prefix)
	if err != nil {
		return nil, err
	}
	c := &certificates{settings: settings, prefix: prefix, log: s.log, metrics: s.metrics, checked: time.Now(), files: files, config: config}
	c.showExpiry()
	return c, nil
}

// current returns the configuration for a new connection and its generation.
func (c *certificates) current() (*tls.Config, uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if time.Since(c.checked) >= certificateCheckInterval {
		c.reload()
		c.checked = time.Now()
	}
	return c.config, c.generation.Load()
}

// reload reads the files again. Content that cannot be used is said once, and
// what was read before stays in use: half of a new pair may have been written.
func (c *certificates) reload() {
	config, files, err := c.settings.load(c.prefix)
	if err != nil {
		if err.Error() != c.refused {
			c.refused = err.Error()
			c.metrics.failed(credentialCertificates)
			c.log.Error("changed certificate files cannot be used, the old ones stay in use", "error", err)
		}
		return
	}
	c.refused = ""
	if files == c.files {
		return
	}
	c.config, c.files = config, files
	c.generation.Add(1)
	c.metrics.reloaded(credentialCertificates)
	c.log.Info("certificate files read again, connections will be replaced", "settings", c.prefix+"*")
	c.showExpiry()
}

func (c *certificates) showExpiry() {
	if len(c.config.Certificates) > 0 {
		c.metrics.expiry.Set(float64(c.config.Certificates[0].Leaf.NotAfter.Unix()))
	}
}

// dial opens a TLS connection to a broker with the certificates of the moment.
func (c *certificates) dial(ctx context.Context, network, addr string) (net.Conn, error) {
	config, generation := c.current()
	config = config.Clone()
	if config.ServerName == "" {
		host, _, err := net.SplitHostPort(addr)
		if err != nil {
			return nil, fmt.Errorf("broker %s: %w", addr, err)
		}
		config.ServerName = host
	}
	dialer := tls.Dialer{NetDialer: &net.Dialer{Timeout: dialTimeout}, Config: config}
	conn, err := dialer.DialContext(ctx, network, addr)
	if err != nil {
		return nil, explainTLS(err, addr)
	}
	return &brokerConn{Conn: conn, addr: addr, certificates: c, generation: generation}, nil
}

// errReplaced ends a connection of older certificates. It is one of the
// network's errors, after which the client opens a new connection and sends
// the request there: the broker has seen nothing of it.
var errReplaced = fmt.Errorf("connection with replaced certificates: %w", net.ErrClosed)

// brokerConn is a connection that makes way for a new one when certificates
// changed. The client has one writer and one reader for each connection and
// hands every request to Write whole.
type brokerConn struct {
	net.Conn
	addr         string
	certificates *certificates
	generation   uint64

	inFlight atomic.Int64 // requests written, without a response yet

	// Of the response being read.
	size    [4]byte
	sizeLen int
	left    uint32
}

// Write sends a request. It returns errReplaced if the connection is of older
// certificates and has no in-flight request.
func (c *brokerConn) Write(p []byte) (int, error) {
	if c.inFlight.Load() == 0 {
		if _, now := c.certificates.current(); now != c.generation {
			return 0, errReplaced
		}
	}
	c.inFlight.Add(1)
	return c.Conn.Write(p)
}

// Read reads a part of a response, and counts responses by their length, which
// stands in front of each.
func (c *brokerConn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	c.count(p[:n])
	if err != nil {
		// A broker that refuses our certificate says so only after the
		// handshake, which in TLS 1.3 is over for us by then.
		err = explainTLS(err, c.addr)
	}
	return n, err
}

func (c *brokerConn) count(b []byte) {
	for len(b) > 0 {
		if c.sizeLen < len(c.size) {
			n := copy(c.size[c.sizeLen:], b)
			c.sizeLen, b = c.sizeLen+n, b[n:]
			if c.sizeLen < len(c.size) {
				return
			}
			c.left = binary.BigEndian.Uint32(c.size[:])
		}
		n := min(c.left, uint32(len(b)))
		c.left, b = c.left-n, b[n:]
		if c.left == 0 {
			c.sizeLen = 0
			c.inFlight.Add(-1)
		}
	}
}

// explainTLS says what a failed handshake means and which setting is about it.
func explainTLS(err error, addr string) error {
	var (
		unknown  x509.UnknownAuthorityError
		hostname x509.HostnameError
		invalid  x509.CertificateInvalidError
		record   tls.RecordHeaderError
		network  *net.OpError
		why      string
	)
	switch {
	case errors.As(err, &hostname):
		why = "its certificate is for another name: correct the address the broker advertises, or set ONCEBUS_TLS_SERVER_NAME"
	case errors.As(err, &unknown):
		why = "its certificate is signed by none of the authorities in ONCEBUS_TLS_CA_FILE (or the system's)"
	case errors.As(err, &invalid) && invalid.Reason == x509.Expired:
		why = "its certificate is expired or not valid yet: renew it, or set this machine's clock"
	case errors.As(err, &invalid):
		why = "its certificate cannot be used"
	case errors.As(err, &record):
		why = "it does not speak TLS on this port: use another port, or set ONCEBUS_TLS_ENABLED=false"
	case errors.As(err, &network) && network.Op == "remote error":
		why = "it refuses the connection, most likely our certificate: see ONCEBUS_TLS_CERT_FILE and the broker's ssl.truststore and ssl.client.auth"
	default:
		return err
	}
	return fmt.Errorf("%w: TLS with broker %s: %s: %w", ErrCredentials, addr, why, err)
}
