package security

import (
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"net/url"
	"strings"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/twmb/franz-go/pkg/kgo"
)

// TLS has the settings of encrypted connections to the brokers. Without Enabled the other fields must be empty,
// because an operator who sets a certificate expects encryption. A running process reads the files again, see
// certificates.
type TLS struct {
	// Enabled turns on TLS, version 1.2 or 1.3. The client always verifies the broker's certificate and the name
	// in it.
	Enabled bool `env:"ENABLED" envDefault:"false" help:"connect to the brokers over TLS 1.2 or newer; files named below are read again when they change"`
	// CAFile contains the PEM certificates of the authorities that may sign the brokers' certificates. They
	// replace the system's authorities.
	CAFile string `env:"CA_FILE" help:"PEM file of trusted certificate authorities; default: the system's"`
	// CertFile and KeyFile contain this client's certificate and its private key in PEM; both or neither must be
	// set.
	CertFile string `env:"CERT_FILE" help:"PEM file of the client certificate, with ONCEBUS_TLS_KEY_FILE"`
	KeyFile  string `env:"KEY_FILE" help:"PEM file of the client certificate's private key"`
	// ServerName is the name that every broker's certificate must have. The default is the host to which the
	// client connects.
	ServerName string `env:"SERVER_NAME" help:"name that the brokers' certificates must have; default: the host of the connection"`
}

// SASL has the settings of authentication. With an empty Mechanism the client does not authenticate.
type SASL struct {
	// Mechanism is one of the SASL constants. PLAIN and OAUTHBEARER send the secret itself, and therefore
	// require TLS, unless all brokers are on this machine.
	Mechanism string `env:"MECHANISM" help:"PLAIN, SCRAM-SHA-256, SCRAM-SHA-512 or OAUTHBEARER; default: no authentication"`
	// Username and Password are required with PLAIN and SCRAM. With other mechanisms they are a mistake.
	Username     string `env:"USERNAME" help:"user name, for PLAIN and SCRAM"`
	Password     Secret `env:"PASSWORD" file:"PasswordFile" help:"password, for PLAIN and SCRAM; a file is read again for every authentication"`
	PasswordFile SecretPath
	// Token is the bearer token of OAUTHBEARER, unless OAuth names a token endpoint.
	Token     Secret `env:"TOKEN" file:"TokenFile" help:"bearer token, for OAUTHBEARER; a file is read again for every authentication"`
	TokenFile SecretPath
	// Extensions are the SASL extensions of OAUTHBEARER.
	Extensions []string `env:"EXTENSIONS" help:"SASL extensions of OAUTHBEARER, comma separated name=value (Confluent Cloud: logicalCluster, identityPoolId)"`

	OAuth OAuth `envPrefix:"OAUTH_"`
}

// OAuth has the settings of a token endpoint. The grant is client credentials (RFC 6749), with the secret in
// HTTP basic authentication, as in Kafka's own client. The client renews a token after four fifths of its
// lifetime.
type OAuth struct {
	// TokenURL is the URL of the token endpoint: https, or http on this machine.
	TokenURL string `env:"TOKEN_URL" help:"token endpoint of the OAuth client credentials grant, for OAUTHBEARER in place of ONCEBUS_SASL_TOKEN"`
	// ClientID and ClientSecret are required with TokenURL.
	ClientID         string `env:"CLIENT_ID" help:"client id, with ONCEBUS_SASL_OAUTH_TOKEN_URL"`
	ClientSecret     Secret `env:"CLIENT_SECRET" file:"ClientSecretFile" help:"client secret, with ONCEBUS_SASL_OAUTH_TOKEN_URL; a file is read again for every token"`
	ClientSecretFile SecretPath
	// Scopes and Audience are optional parameters of the request.
	Scopes   []string `env:"SCOPES" help:"requested scopes, comma separated"`
	Audience string   `env:"AUDIENCE" help:"requested audience, where the token endpoint requires one"`
	// CAFile has the same meaning as TLS.CAFile, for the token endpoint.
	CAFile string `env:"CA_FILE" help:"PEM file of the authorities trusted to sign the token endpoint's certificate; default: the system's"`
}

// Values of SASL.Mechanism.
const (
	SASLPlain       = "PLAIN"
	SASLScramSHA256 = "SCRAM-SHA-256"
	SASLScramSHA512 = "SCRAM-SHA-512"
	SASLOAuthBearer = "OAUTHBEARER"
)

// credentials makes TLS and authentication for all Kafka clients of a process. All clients share one
// credentials value, so that files and tokens are read once for all of them.
type credentials struct {
	log     *slog.Logger
	metrics *securityMetrics
	redact  *Redactor
}

// options returns the options that every client needs: seed brokers, client id, TLS and SASL. It returns only
// errors that Validate reports, too, unless a certificate file has changed after Validate.
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

// ClientOptions returns the options of a client without log and metrics, such as the producer of the demo. It
// has the same brokers and the same credentials as the other clients.
func (c Config) ClientOptions() ([]kgo.Opt, error) {
	s := &credentials{log: slog.New(slog.DiscardHandler), metrics: newSecurityMetrics(prometheus.NewRegistry()), redact: NewRedactor(c)}
	return s.options(c)
}

// validateSecurity checks TLS and SASL, and reads the files that they name.
func (c Config) validateSecurity(m *Mistakes) {
	c.TLS.validate(m)
	c.SASL.validate(m)
	if c.SASL.sendsSecret() && !c.TLS.Enabled && !allLoopback(c.Brokers) {
		m.Addf("ONCEBUS_SASL_MECHANISM: %s would send the %s unencrypted, set ONCEBUS_TLS_ENABLED=true or use %s",
			c.SASL.Mechanism, c.SASL.secretName(), SASLScramSHA512)
	}
}

func (t TLS) validate(m *Mistakes) {
	if !t.Enabled {
		for _, f := range []struct{ name, value string }{
			{"CA_FILE", t.CAFile}, {"CERT_FILE", t.CertFile}, {"KEY_FILE", t.KeyFile}, {"SERVER_NAME", t.ServerName},
		} {
			if f.value != "" {
				m.Addf("ONCEBUS_TLS_%s: set, but TLS is off; set ONCEBUS_TLS_ENABLED=true too", f.name)
			}
		}
		return
	}
	_, err := t.load("ONCEBUS_TLS_")
	m.Add(err)
}

// sendsSecret reports whether the mechanism sends a secret in a form that an eavesdropper could use.
func (s SASL) sendsSecret() bool { return s.Mechanism == SASLPlain || s.Mechanism == SASLOAuthBearer }

func (s SASL) secretName() string {
	if s.Mechanism == SASLOAuthBearer {
		return "token"
	}
	return "password"
}

// field is a setting of SASL. name is the end of its environment variable.
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
		rejectSet(m, append(user, bearer...), "set, but ONCEBUS_SASL_MECHANISM is not; set both or neither")
	case SASLPlain, SASLScramSHA256, SASLScramSHA512:
		require(m, user, "empty, but ONCEBUS_SASL_MECHANISM requires it")
		rejectSet(m, bearer, "set, but requires ONCEBUS_SASL_MECHANISM="+SASLOAuthBearer)
	case SASLOAuthBearer:
		rejectSet(m, user, "set, but "+SASLOAuthBearer+" requires a token instead")
		s.validateBearer(m)
	default:
		m.Addf("ONCEBUS_SASL_MECHANISM: %q is unknown, want %s", s.Mechanism,
			strings.Join([]string{SASLPlain, SASLScramSHA256, SASLScramSHA512, SASLOAuthBearer}, ", "))
	}
}

// rejectSet adds a mistake for each field that is set but must not be.
func rejectSet(m *Mistakes, fields []field, why string) {
	for _, f := range fields {
		if f.set {
			m.Addf("ONCEBUS_SASL_%s: %s", f.name, why)
		}
	}
}

// require adds a mistake for each required field that is empty.
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
		m.Addf("ONCEBUS_SASL_TOKEN: empty, but %s requires it; set it, ONCEBUS_SASL_TOKEN_FILE or ONCEBUS_SASL_OAUTH_TOKEN_URL", SASLOAuthBearer)
	case s.OAuth.TokenURL == "":
		rejectSet(m, s.OAuth.fields(), "set, but ONCEBUS_SASL_OAUTH_TOKEN_URL is not; set both or neither")
	case s.Token != "":
		m.Addf("ONCEBUS_SASL_TOKEN: set together with ONCEBUS_SASL_OAUTH_TOKEN_URL, want one of them")
	default:
		s.OAuth.validate(m)
	}
	if _, err := parseExtensions(s.Extensions); err != nil {
		m.Add(err)
	}
}

// fields returns the settings of a token endpoint.
func (o OAuth) fields() []field {
	return []field{
		{"OAUTH_TOKEN_URL", o.TokenURL != ""}, {"OAUTH_CLIENT_ID", o.ClientID != ""}, {"OAUTH_CLIENT_SECRET", o.ClientSecret != ""},
		{"OAUTH_SCOPES", len(o.Scopes) > 0}, {"OAUTH_AUDIENCE", o.Audience != ""}, {"OAUTH_CA_FILE", o.CAFile != ""},
	}
}

func (o OAuth) validate(m *Mistakes) {
	require(m, o.fields()[1:3], "empty, but ONCEBUS_SASL_OAUTH_TOKEN_URL requires it")
	u, err := url.Parse(o.TokenURL)
	switch {
	case err != nil || u.Host == "":
		// The parser's error would show the URL, which may contain a password.
		m.Addf("ONCEBUS_SASL_OAUTH_TOKEN_URL: malformed, want a URL such as https://login.example.com/oauth2/token")
		return
	case u.User != nil:
		m.Addf("ONCEBUS_SASL_OAUTH_TOKEN_URL: contains a user or password, use ONCEBUS_SASL_OAUTH_CLIENT_ID and ONCEBUS_SASL_OAUTH_CLIENT_SECRET")
	case u.Scheme != "https" && (u.Scheme != "http" || !IsLoopback(u.Hostname())):
		m.Addf("ONCEBUS_SASL_OAUTH_TOKEN_URL: %q would send the client secret unencrypted, want https", u.Scheme)
	}
	if u.Scheme == "http" && o.CAFile != "" {
		m.Addf("ONCEBUS_SASL_OAUTH_CA_FILE: set, but ONCEBUS_SASL_OAUTH_TOKEN_URL is http, want https")
		return
	}
	_, err = TLS{CAFile: o.CAFile}.load("ONCEBUS_SASL_OAUTH_")
	m.Add(err)
}

// allLoopback reports whether all brokers are on this machine.
func allLoopback(brokers []string) bool {
	for _, b := range brokers {
		host, _, err := splitBroker(b)
		if err != nil || !IsLoopback(host) {
			return false
		}
	}
	return true
}

// IsLoopback reports whether a host is a loopback address or localhost.
func IsLoopback(host string) bool {
	addr, err := netip.ParseAddr(host)
	return host == "localhost" || err == nil && addr.IsLoopback()
}
