package security

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"sync/atomic"
	"time"
)

const (
	// certificateCheckInterval is the least time between two loads of the certificate files.
	certificateCheckInterval = 5 * time.Second
	// dialTimeout limits connecting, including the TLS handshake. It is franz-go's own default.
	dialTimeout = 10 * time.Second
)

// load reads the files of the settings. prefix begins the names of their environment variables.
func (t TLS) load(prefix string) (*Certificates, error) {
	return LoadCertificates(File{prefix + "CERT_FILE", t.CertFile}, File{prefix + "KEY_FILE", t.KeyFile}, File{prefix + "CA_FILE", t.CAFile})
}

// certificates is a client's TLS configuration, made from files. The client loads the files when it opens a
// connection or writes to one. Files that have changed make a new version. A connection with an older version
// closes as soon as it has no in-flight request.
type certificates struct {
	Reloaded[*Certificates]
	serverName string
}

func (s *credentials) certificates(prefix string, settings TLS) (*certificates, error) {
	c := &certificates{serverName: settings.ServerName}
	c.Reloaded = Reloaded[*Certificates]{
		Load:     func() (*Certificates, error) { return settings.load(prefix) },
		Equal:    (*Certificates).Equal,
		Interval: certificateCheckInterval,
		Changed: func(files *Certificates) {
			s.metrics.reloaded(credentialCertificates)
			s.log.Info("certificates reloaded", "settings", prefix+"*")
			files.ShowExpiry(s.metrics.expiry)
		},
		Failed: func(err error) {
			s.metrics.failed(credentialCertificates)
			s.log.Error("certificates reload failed", "error", err)
		},
	}
	files, err := c.Start()
	if err != nil {
		return nil, err
	}
	files.ShowExpiry(s.metrics.expiry)
	return c, nil
}

// config returns the TLS configuration for a new connection, and its version.
func (c *certificates) config() (*tls.Config, uint64) {
	files, version := c.Current()
	config := &tls.Config{MinVersion: tls.VersionTLS12, ServerName: c.serverName, RootCAs: files.Pool}
	if files.Pair != nil {
		// Send the certificate whichever authorities the broker names. A broker that does not trust it then says
		// so, instead of reporting an anonymous client.
		config.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return files.Pair, nil }
	}
	return config, version
}

// dial opens a TLS connection to a broker with the current certificates.
func (c *certificates) dial(ctx context.Context, network, addr string) (net.Conn, error) {
	config, version := c.config()
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
		return nil, tlsBroker.explain(err, addr)
	}
	return &brokerConn{Conn: conn, addr: addr, certificates: c, version: version}, nil
}

// errReplaced ends a connection with older certificates. The client treats it as a network error: it opens a
// new connection and sends the request there. This is safe, because the broker has received no byte of the
// request.
var errReplaced = fmt.Errorf("connection with replaced certificates: %w", net.ErrClosed)

// brokerConn is a connection that ends after its certificates have changed. It relies on franz-go: a connection
// has one writer and one reader, and each request is written with a single Write.
type brokerConn struct {
	net.Conn
	addr         string
	certificates *certificates
	version      uint64

	inFlight atomic.Int64 // requests whose response is not complete yet

	// size, sizeLen and left describe the response that Read is reading; only Read uses them.
	size    [4]byte
	sizeLen int
	left    uint32
}

// Write sends a request. It returns errReplaced if the connection has older certificates and no in-flight
// request.
func (c *brokerConn) Write(p []byte) (int, error) {
	if c.inFlight.Load() == 0 {
		if _, now := c.certificates.Current(); now != c.version {
			return 0, errReplaced
		}
	}
	c.inFlight.Add(1)
	return c.Conn.Write(p)
}

// Read reads a part of a response. It counts complete responses by the length in front of each response.
func (c *brokerConn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	c.count(p[:n])
	if err != nil {
		// In TLS 1.3 the client's handshake ends before the broker checks the client's certificate, so the
		// broker's rejection arrives with a read.
		err = tlsBroker.explain(err, c.addr)
	}
	return n, err
}

// count follows the responses in the bytes that were read, each with its length in front, and counts complete
// ones.
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

// tlsPeer is the other side of a TLS connection, with what an operator can do after each kind of failed
// handshake.
type tlsPeer struct{ name, address, authorities, port, refusal string }

var (
	tlsBroker = tlsPeer{
		name:        "broker",
		address:     "correct the address that the broker advertises, or set ONCEBUS_TLS_SERVER_NAME",
		authorities: "ONCEBUS_TLS_CA_FILE",
		port:        "use another port, or set ONCEBUS_TLS_ENABLED=false",
		refusal:     "most likely because of our certificate: see ONCEBUS_TLS_CERT_FILE and the broker's ssl.truststore and ssl.client.auth",
	}
	tlsEndpoint = tlsPeer{
		name:        "token endpoint",
		address:     "correct ONCEBUS_SASL_OAUTH_TOKEN_URL",
		authorities: "ONCEBUS_SASL_OAUTH_CA_FILE",
		port:        "correct ONCEBUS_SASL_OAUTH_TOKEN_URL",
		refusal:     "oncebus sends it TLS 1.2 or newer without a client certificate",
	}
)

// explain adds to an error the cause of a failed handshake, and the setting to check.
func (p tlsPeer) explain(err error, addr string) error {
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
		why = "its certificate is for another name: " + p.address
	case errors.As(err, &unknown):
		why = "its certificate is signed by none of the authorities in " + p.authorities + " (or the system's)"
	case errors.As(err, &invalid) && invalid.Reason == x509.Expired:
		why = "its certificate is expired or not valid yet: renew it, or set this machine's clock"
	case errors.As(err, &invalid):
		why = "its certificate is invalid: renew it"
	case errors.As(err, &record):
		why = "this port has no TLS: " + p.port
	case errors.As(err, &network) && network.Op == "remote error":
		why = "it rejects the connection, " + p.refusal
	default:
		return err
	}
	return fmt.Errorf("%w: TLS with %s %s: %s: %w", ErrCredentials, p.name, addr, why, err)
}
