package security

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"net/url"
	"strings"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/twmb/franz-go/pkg/kgo"
)

// Secret is a value that must not be shown. Every way of printing it yields
// ***, or nothing when it is empty, so that an unset secret differs from a set one.
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

// SecretPath is the file a Secret came from; empty if it came from a variable.
// It has no variable of its own: cmd sets it for the secret whose tag `file` names it.
// Every use reads the file again, so that a secret can change without a restart.
type SecretPath string

// TLS has the settings of encrypted connections to the brokers. Without Enabled the
// other fields must be empty, because a certificate suggests encryption. The files are
// read again while the process runs: see certificates.
type TLS struct {
	// Enabled turns TLS on: 1.3 where the broker has it, 1.2 at least. The
	// broker's certificate and its name are always verified.
	Enabled bool `env:"ENABLED" envDefault:"false" help:"connect to the brokers over TLS 1.2 or newer; files named below are read again when they change"`
	// CAFile holds the PEM certificates trusted to sign the brokers' in
	// place of the system's.
	CAFile string `env:"CA_FILE" help:"PEM file of trusted certificate authorities; default: the system's"`
	// CertFile and KeyFile are this client's certificate and private key in
	// PEM; both or neither.
	CertFile string `env:"CERT_FILE" help:"PEM file of the client certificate, with ONCEBUS_TLS_KEY_FILE"`
	KeyFile  string `env:"KEY_FILE" help:"PEM file of the client certificate's private key"`
	// ServerName is the name a broker's certificate must have; by default
	// the host each broker is dialled at.
	ServerName string `env:"SERVER_NAME" help:"name that the brokers' certificates must have; default: the host of the connection"`
}

// SASL is how this client proves who it is; an empty Mechanism means it does
// not.
type SASL struct {
	// Mechanism is one of the SASL constants. PLAIN and OAUTHBEARER send the
	// secret as it is, so they ask for TLS unless a broker is on this machine.
	Mechanism string `env:"MECHANISM" help:"PLAIN, SCRAM-SHA-256, SCRAM-SHA-512 or OAUTHBEARER; default: no authentication"`
	// Username and Password are required with PLAIN and SCRAM and refused
	// without.
	Username     string `env:"USERNAME" help:"user name, for PLAIN and SCRAM"`
	Password     Secret `env:"PASSWORD" file:"PasswordFile" help:"password, for PLAIN and SCRAM; a file is read again for every authentication"`
	PasswordFile SecretPath
	// Token is the bearer token of OAUTHBEARER, unless OAuth says where to
	// get one.
	Token     Secret `env:"TOKEN" file:"TokenFile" help:"bearer token, for OAUTHBEARER; a file is read again for every authentication"`
	TokenFile SecretPath
	// Extensions are the SASL extensions of OAUTHBEARER.
	Extensions []string `env:"EXTENSIONS" help:"SASL extensions of OAUTHBEARER, comma separated name=value (Confluent Cloud: logicalCluster, identityPoolId)"`

	OAuth OAuth `envPrefix:"OAUTH_"`
}

// OAuth is where OAUTHBEARER gets tokens: the client credentials grant of
// RFC 6749 with the secret in HTTP basic authentication, as Kafka's own client
// does it. A token is renewed after four fifths of its life.
type OAuth struct {
	// TokenURL is the token endpoint; https, or http on this machine.
	TokenURL string `env:"TOKEN_URL" help:"token endpoint of the OAuth client credentials grant, for OAUTHBEARER in place of ONCEBUS_SASL_TOKEN"`
	// ClientID and ClientSecret are required with TokenURL.
	ClientID         string `env:"CLIENT_ID" help:"client id, with ONCEBUS_SASL_OAUTH_TOKEN_URL"`
	ClientSecret     Secret `env:"CLIENT_SECRET" file:"ClientSecretFile" help:"client secret, with ONCEBUS_SASL_OAUTH_TOKEN_URL; a file is read again for every token"`
	ClientSecretFile SecretPath
	// Scopes and Audience go into the request if set.
	Scopes   []string `env:"SCOPES" help:"requested scopes, comma separated"`
	Audience string   `env:"AUDIENCE" help:"requested audience, where the token endpoint requires one"`
	// CAFile is as TLS.CAFile, for the token endpoint.
	CAFile string `env:"CA_FILE" help:"PEM file of the authorities trusted to sign the token endpoint's certificate; default: the system's"`
}

// The values of SASL.Mechanism.
const (
	SASLPlain       = "PLAIN"
	SASLScramSHA256 = "SCRAM-SHA-256"
	SASLScramSHA512 = "SCRAM-SHA-512"
	SASLOAuthBearer = "OAUTHBEARER"
)

// credentials makes the authentication of all clients of a process. They share it, so
// that each file is read once and each token fetched once.
type credentials struct {
	log     *slog.Logger
	metrics *securityMetrics
	redact  *Redactor
}

// options returns the options every client to the brokers starts from: seeds,
// client id, TLS and SASL. The error is one Validate reports too, unless a
// certificate file changed in between.
func (s *credentials) options(c Config) ([]kgo.Opt, error) {
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
		certs, err := s.certificates("ONCEBUS_TLS_", c.TLS)
		if err != nil {
			return nil, err
		}
		opts = append(opts, kgo.Dialer(certs.dial))
	}
	if c.SASL.Mechanism != "" {
		mechanism, err := s.mechanism(c)
		if err != nil {
			return nil, err
		}
		opts = append(opts, kgo.SASL(mechanism))
	}
	return opts, nil
}

// ClientOptions returns the options of other clients, such as the demo's producer and
// readers: the same brokers with the same credentials.
func (c Config) ClientOptions() ([]kgo.Opt, error) {
	s := &credentials{log: slog.New(slog.DiscardHandler), metrics: newSecurityMetrics(prometheus.NewRegistry()), redact: NewRedactor(c)}
	return s.options(c)
}

// validateSecurity checks TLS and SASL, reading the files they name.
func (c Config) validateSecurity(m *Mistakes) {
	c.TLS.validate(m)
	c.SASL.validate(m)
	if c.SASL.sendsSecret() && !c.TLS.Enabled && !allLoopback(c.Brokers) {
		m.Addf("ONCEBUS_SASL_MECHANISM: %s would send the %s in the clear, set ONCEBUS_TLS_ENABLED=true or use %s",
			c.SASL.Mechanism, c.SASL.secretName(), SASLScramSHA512)
	}
}

func (t TLS) validate(m *Mistakes) {
	if !t.Enabled {
		for _, f := range []struct{ name, value string }{
			{"CA_FILE", t.CAFile}, {"CERT_FILE", t.CertFile}, {"KEY_FILE", t.KeyFile}, {"SERVER_NAME", t.ServerName},
		} {
			if f.value != "" {
				m.Addf("ONCEBUS_TLS_%s: set, but TLS is off; set ONCEBUS_TLS_ENABLED=true as well", f.name)
			}
		}
		return
	}
	_, err := t.load("ONCEBUS_TLS_")
	m.Add(err)
}

// sendsSecret reports whether the mechanism sends the broker a secret that an
// eavesdropper could use.
func (s SASL) sendsSecret() bool { return s.Mechanism == SASLPlain || s.Mechanism == SASLOAuthBearer }

func (s SASL) secretName() string {
	if s.Mechanism == SASLOAuthBearer {
		return "token"
	}
	return "password"
}

// field is a setting with the end of its variable's name.
type field struct {
	name string
	set  bool
}

func (s SASL) validate(m *Mistakes) {
	user := []field{{"USERNAME", s.Username != ""}, {"PASSWORD", s.Password != ""}}
	bearer := []field{{"TOKEN", s.Token != ""}, {"EXTENSIONS", len(s.Extensions) > 0}}
	bearer = append(bearer, s.OAuth.fields()...)
	switch s.Mechanism {
	case "":
		refuse(m, append(user, bearer...), "set, but ONCEBUS_SASL_MECHANISM is not")
	case SASLPlain, SASLScramSHA256, SASLScramSHA512:
		require(m, user, "empty, but ONCEBUS_SASL_MECHANISM asks for one")
		refuse(m, bearer, "set, but it takes ONCEBUS_SASL_MECHANISM="+SASLOAuthBearer)
	case SASLOAuthBearer:
		refuse(m, user, "set, but "+SASLOAuthBearer+" takes a token")
		s.validateBearer(m)
	default:
		m.Addf("ONCEBUS_SASL_MECHANISM: %q is unknown, want %s", s.Mechanism,
			strings.Join([]string{SASLPlain, SASLScramSHA256, SASLScramSHA512, SASLOAuthBearer}, ", "))
	}
}

func refuse(m *Mistakes, fields []field, why string) {
	for _, f := range fields {
		if f.set {
			m.Addf("ONCEBUS_SASL_%s: %s", f.name, why)
		}
	}
}

func require(m *Mistakes, fields []field, why string) {
	for _, f := range fields {
		if !f.set {
			m.Addf("ONCEBUS_SASL_%s: %s", f.name, why)
		}
	}
}

func (s SASL) validateBearer(m *Mistakes) {
	switch {
	case s.OAuth.TokenURL == "" && s.Token == "":
		m.Addf("ONCEBUS_SASL_TOKEN: empty, but %s asks for one; set it, ONCEBUS_SASL_TOKEN_FILE or ONCEBUS_SASL_OAUTH_TOKEN_URL", SASLOAuthBearer)
	case s.OAuth.TokenURL == "":
		refuse(m, s.OAuth.fields(), "set, but ONCEBUS_SASL_OAUTH_TOKEN_URL is not")
	case s.Token != "":
		m.Addf("ONCEBUS_SASL_TOKEN: set as well as ONCEBUS_SASL_OAUTH_TOKEN_URL, want one of them")
	default:
		s.OAuth.validate(m)
	}
	if _, err := parseExtensions(s.Extensions); err != nil {
		m.Add(err)
	}
}

// fields are the settings that go with a token endpoint.
func (o OAuth) fields() []field {
	return []field{
		{"OAUTH_TOKEN_URL", o.TokenURL != ""}, {"OAUTH_CLIENT_ID", o.ClientID != ""}, {"OAUTH_CLIENT_SECRET", o.ClientSecret != ""},
		{"OAUTH_SCOPES", len(o.Scopes) > 0}, {"OAUTH_AUDIENCE", o.Audience != ""}, {"OAUTH_CA_FILE", o.CAFile != ""},
	}
}

func (o OAuth) validate(m *Mistakes) {
	require(m, o.fields()[1:3], "empty, but ONCEBUS_SASL_OAUTH_TOKEN_URL asks for one")
	u, err := url.Parse(o.TokenURL)
	switch {
	case err != nil || u.Host == "":
		// Not the parser's error: it repeats the URL, with a password in it.
		m.Addf("ONCEBUS_SASL_OAUTH_TOKEN_URL: not a URL such as https://login.example.com/oauth2/token")
		return
	case u.User != nil:
		m.Addf("ONCEBUS_SASL_OAUTH_TOKEN_URL: has a user or password in it; use ONCEBUS_SASL_OAUTH_CLIENT_ID and ONCEBUS_SASL_OAUTH_CLIENT_SECRET")
	case u.Scheme != "https" && (u.Scheme != "http" || !isLoopback(u.Hostname())):
		m.Addf("ONCEBUS_SASL_OAUTH_TOKEN_URL: would send the client secret in the clear, want https")
	}
	if u.Scheme == "http" && o.CAFile != "" {
		m.Addf("ONCEBUS_SASL_OAUTH_CA_FILE: set, but ONCEBUS_SASL_OAUTH_TOKEN_URL is not https")
		return
	}
	_, err = TLS{CAFile: o.CAFile}.load("ONCEBUS_SASL_OAUTH_")
	m.Add(err)
}

// allLoopback reports whether every broker is on this machine by its address.
func allLoopback(brokers []string) bool {
	for _, b := range brokers {
		host, _, err := splitBroker(b)
		if err != nil || !isLoopback(host) {
			return false
		}
	}
	return true
}

// isLoopback reports whether a host is this machine by its address.
func isLoopback(host string) bool {
	addr, err := netip.ParseAddr(host)
	return host == "localhost" || err == nil && addr.IsLoopback()
}

// CheckSecret returns an error if the routes need a key secret and c has none. Validate
// cannot check it, because it does not have the routes.
func (c Config) CheckSecret(needed bool) error {
	if needed && c.KeySecret == "" {
		return errors.New("ONCEBUS_KEY_SECRET: not set, but a route asks for one; set it or ONCEBUS_KEY_SECRET_FILE")
	}
	return nil
}
