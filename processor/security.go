package processor

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"strings"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/sasl"
	"github.com/twmb/franz-go/pkg/sasl/plain"
	"github.com/twmb/franz-go/pkg/sasl/scram"
)

// Secret is a value that must not be shown. Every way of printing it yields
// ***, or nothing when it is empty, so that an unset secret can be told from a
// set one.
type Secret string

// Bytes returns the value itself; nil when it is not set.
func (s Secret) Bytes() []byte {
	if s == "" {
		return nil
	}
	return []byte(s)
}

// String returns *** for any secret that is set.
func (s Secret) String() string {
	if s == "" {
		return ""
	}
	return "***"
}

// Format implements fmt.Formatter. Without it a verb that does not fit, such as
// %d, would print the value inside fmt's complaint.
func (s Secret) Format(f fmt.State, _ rune) { _, _ = fmt.Fprint(f, s.String()) }

// MarshalText implements encoding.TextMarshaler, and so covers JSON.
func (s Secret) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// LogValue implements slog.LogValuer.
func (s Secret) LogValue() slog.Value { return slog.StringValue(s.String()) }

// TLS is how the connections to the brokers are encrypted. The other fields
// take effect with Enabled only; setting one without it is refused, because
// whoever names a certificate believes to be encrypted.
type TLS struct {
	// Enabled turns TLS (1.2 or newer) on.
	Enabled bool `env:"ENABLED" envDefault:"false" help:"connect to the brokers over TLS"`
	// CAFile holds the PEM certificates trusted to sign the brokers' in
	// place of the system's.
	CAFile string `env:"CA_FILE" help:"PEM file of trusted certificate authorities; default: the system's"`
	// CertFile and KeyFile are this client's certificate and private key in
	// PEM; both or neither.
	CertFile string `env:"CERT_FILE" help:"PEM file of the client certificate, with ONCEBUS_TLS_KEY_FILE"`
	KeyFile  string `env:"KEY_FILE" help:"PEM file of the client certificate's private key"`
	// ServerName is the name a broker's certificate must have; by default
	// the host each broker is dialled at.
	ServerName string `env:"SERVER_NAME" help:"name the brokers' certificates must have; default: the host dialled"`
}

// SASL is how this client proves who it is; an empty Mechanism means it does not.
type SASL struct {
	// Mechanism is one of the SASL constants. PLAIN sends the password as it
	// is, so it asks for TLS unless every broker is on this machine.
	Mechanism string `env:"MECHANISM" help:"PLAIN, SCRAM-SHA-256 or SCRAM-SHA-512; default: no authentication"`
	// Username and Password are required with a Mechanism and refused
	// without.
	Username string `env:"USERNAME" help:"user name, with ONCEBUS_SASL_MECHANISM"`
	Password Secret `env:"PASSWORD" help:"password, with ONCEBUS_SASL_MECHANISM"`
}

// The values of SASL.Mechanism.
const (
	SASLPlain       = "PLAIN"
	SASLScramSHA256 = "SCRAM-SHA-256"
	SASLScramSHA512 = "SCRAM-SHA-512"
)

// clientOptions returns the options every client to the brokers starts from:
// seeds, client id, TLS and SASL. The error is one Validate reports too, unless
// a certificate file changed in between.
func (c Config) clientOptions() ([]kgo.Opt, error) {
	seeds := make([]string, len(c.Brokers))
	for i, b := range c.Brokers {
		host, port, err := splitBroker(b)
		if err != nil {
			return nil, fmt.Errorf("ONCEBUS_BROKERS: %q: %w", b, err)
		}
		seeds[i] = net.JoinHostPort(host, port)
	}
	opts := []kgo.Opt{kgo.SeedBrokers(seeds...), kgo.ClientID(c.AppID + "-" + c.InstanceID)}
	if c.TLS.Enabled {
		config, err := c.TLS.client()
		if err != nil {
			return nil, err
		}
		opts = append(opts, kgo.DialTLSConfig(config))
	}
	if c.SASL.Mechanism != "" {
		mechanism, err := c.SASL.mechanism()
		if err != nil {
			return nil, err
		}
		opts = append(opts, kgo.SASL(mechanism))
	}
	return opts, nil
}

// ClientOptions is clientOptions for clients beside the processor, such as the
// demo's producer and readers: the same brokers, reached in the same way.
func (c Config) ClientOptions() ([]kgo.Opt, error) { return c.clientOptions() }

// validateSecurity checks TLS and SASL, reading the files they name.
func (c Config) validateSecurity(m *mistakes) {
	c.TLS.validate(m)
	c.SASL.validate(m)
	if c.SASL.Mechanism == SASLPlain && !c.TLS.Enabled && !allLoopback(c.Brokers) {
		m.addf("ONCEBUS_SASL_MECHANISM: PLAIN would send the password in the clear, set ONCEBUS_TLS_ENABLED=true or use %s", SASLScramSHA512)
	}
}

func (t TLS) validate(m *mistakes) {
	if !t.Enabled {
		for _, f := range []struct{ name, value string }{
			{"CA_FILE", t.CAFile}, {"CERT_FILE", t.CertFile}, {"KEY_FILE", t.KeyFile}, {"SERVER_NAME", t.ServerName},
		} {
			if f.value != "" {
				m.addf("ONCEBUS_TLS_%s: set, but TLS is off; set ONCEBUS_TLS_ENABLED=true as well", f.name)
			}
		}
		return
	}
	_, err := t.client()
	m.add(err)
}

// client builds the client's TLS configuration; every mistake is in the error.
func (t TLS) client() (*tls.Config, error) {
	config := &tls.Config{MinVersion: tls.VersionTLS12, ServerName: t.ServerName}
	var m mistakes
	if t.CAFile != "" {
		pem, err := os.ReadFile(t.CAFile)
		config.RootCAs = x509.NewCertPool()
		switch {
		case err != nil:
			m.addf("ONCEBUS_TLS_CA_FILE: %w", err)
		case !config.RootCAs.AppendCertsFromPEM(pem):
			m.addf("ONCEBUS_TLS_CA_FILE: %s holds no PEM certificate", t.CAFile)
		}
	}
	switch {
	case t.CertFile != "" && t.KeyFile != "":
		pair, err := tls.LoadX509KeyPair(t.CertFile, t.KeyFile)
		if err != nil {
			m.addf("ONCEBUS_TLS_CERT_FILE, ONCEBUS_TLS_KEY_FILE: %w", err)
		}
		config.Certificates = []tls.Certificate{pair}
	case t.CertFile != "":
		m.addf("ONCEBUS_TLS_CERT_FILE: set without ONCEBUS_TLS_KEY_FILE, want both or neither")
	case t.KeyFile != "":
		m.addf("ONCEBUS_TLS_KEY_FILE: set without ONCEBUS_TLS_CERT_FILE, want both or neither")
	}
	return config, m.err()
}

func (s SASL) validate(m *mistakes) {
	if s.Mechanism == "" {
		if s.Username != "" {
			m.addf("ONCEBUS_SASL_USERNAME: set, but ONCEBUS_SASL_MECHANISM is not")
		}
		if s.Password != "" {
			m.addf("ONCEBUS_SASL_PASSWORD: set, but ONCEBUS_SASL_MECHANISM is not")
		}
		return
	}
	_, err := s.mechanism()
	m.add(err)
	if s.Username == "" {
		m.addf("ONCEBUS_SASL_USERNAME: empty, but ONCEBUS_SASL_MECHANISM asks for one")
	}
	if s.Password == "" {
		m.addf("ONCEBUS_SASL_PASSWORD: empty, but ONCEBUS_SASL_MECHANISM asks for one")
	}
}

func (s SASL) mechanism() (sasl.Mechanism, error) {
	user, password := s.Username, string(s.Password)
	switch s.Mechanism {
	case SASLPlain:
		return plain.Auth{User: user, Pass: password}.AsMechanism(), nil
	case SASLScramSHA256:
		return scram.Auth{User: user, Pass: password}.AsSha256Mechanism(), nil
	case SASLScramSHA512:
		return scram.Auth{User: user, Pass: password}.AsSha512Mechanism(), nil
	}
	return nil, fmt.Errorf("ONCEBUS_SASL_MECHANISM: %q is unknown, want %s", s.Mechanism,
		strings.Join([]string{SASLPlain, SASLScramSHA256, SASLScramSHA512}, ", "))
}

// allLoopback reports whether every broker is on this machine by its address.
func allLoopback(brokers []string) bool {
	for _, b := range brokers {
		host, _, err := splitBroker(b)
		if err != nil {
			return false
		}
		addr, err := netip.ParseAddr(host)
		if host != "localhost" && (err != nil || !addr.IsLoopback()) {
			return false
		}
	}
	return true
}

// CheckSecret returns an error when the routes ask for a key secret and c has
// none. It is apart from Validate because it takes the routes to know.
func (c Config) CheckSecret(needed bool) error {
	if needed && c.KeySecret == "" {
		return errors.New("ONCEBUS_KEY_SECRET: not set, but a route asks for one; set it or ONCEBUS_KEY_SECRET_FILE")
	}
	return nil
}
