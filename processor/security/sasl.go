package security

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"strings"

	"github.com/twmb/franz-go/pkg/sasl"
	"github.com/twmb/franz-go/pkg/sasl/oauth"
	"github.com/twmb/franz-go/pkg/sasl/plain"
	"github.com/twmb/franz-go/pkg/sasl/scram"
)

// mechanism returns the SASL mechanism of the settings. Every authentication reads the
// secret again, also the repeated ones of KIP-368.
func (s *credentials) mechanism(c Config) (sasl.Mechanism, error) {
	auth := c.SASL
	password := s.secret(credentialPassword, auth.Password, auth.PasswordFile)
	scramAuth := func(context.Context) (scram.Auth, error) {
		return scram.Auth{User: auth.Username, Pass: password()}, nil
	}
	var m sasl.Mechanism
	switch auth.Mechanism {
	case SASLPlain:
		m = plain.Plain(func(context.Context) (plain.Auth, error) {
			return plain.Auth{User: auth.Username, Pass: password()}, nil
		})
	case SASLScramSHA256:
		m = scram.Sha256(scramAuth)
	case SASLScramSHA512:
		m = scram.Sha512(scramAuth)
	case SASLOAuthBearer:
		bearer, err := s.bearer(auth)
		if err != nil {
			return nil, err
		}
		m = bearer
	default:
		return nil, fmt.Errorf("ONCEBUS_SASL_MECHANISM: %q is unknown", auth.Mechanism)
	}
	return guarded{Mechanism: m, settings: auth, encrypted: c.TLS.Enabled}, nil
}

// guarded is a mechanism that sends no secret in the clear, and names the settings in
// its errors. Validate checks only the seed brokers; the metadata may name others.
type guarded struct {
	sasl.Mechanism
	settings  SASL
	encrypted bool
}

// Authenticate begins a session with the broker at addr.
func (g guarded) Authenticate(ctx context.Context, addr string) (sasl.Session, []byte, error) {
	if host, _, err := net.SplitHostPort(addr); !g.encrypted && g.settings.sendsSecret() && (err != nil || !isLoopback(host)) {
		return nil, nil, fmt.Errorf("%w: broker %s is not on this machine, and %s would send the %s in the clear: set ONCEBUS_TLS_ENABLED=true",
			ErrCredentials, addr, g.settings.Mechanism, g.settings.secretName())
	}
	session, first, err := g.Mechanism.Authenticate(ctx, addr)
	if err != nil {
		return nil, nil, fmt.Errorf("authentication with broker %s by %s: %w", addr, g.settings.Mechanism, err)
	}
	return session, first, nil
}

// secret returns a function that returns a secret as it is now. It reads the
// secret's file at every call; without a path the secret is a fixed value.
func (s *credentials) secret(what string, value Secret, path SecretPath) func() string {
	s.redact.learn(what, string(value))
	if path == "" {
		return func() string { return string(value) }
	}
	r := &Reloaded[string]{
		Load:  func() (string, error) { return ReadSecret(string(path)) },
		Equal: func(a, b string) bool { return a == b },
		Changed: func(value string) {
			s.redact.learn(what, value)
			s.metrics.reloaded(what)
			s.log.Info("secret reloaded", "secret", what)
		},
		Failed: func(err error) {
			s.metrics.failed(what)
			s.log.Error("secret reload failed", "secret", what, "error", err)
		},
		value: string(value),
	}
	return func() string {
		current, _ := r.Current()
		return current
	}
}

// ReadSecret returns the secret in a file, without the line break that editors and echo
// append.
func ReadSecret(path string) (string, error) {
	content, err := readFile(path)
	if err != nil {
		return "", err
	}
	value := strings.TrimSuffix(strings.TrimSuffix(content, "\n"), "\r")
	if value == "" {
		return "", fmt.Errorf("%s is empty", path)
	}
	return value, nil
}

// bearer is OAUTHBEARER with a token from the settings or a token endpoint.
func (s *credentials) bearer(auth SASL) (sasl.Mechanism, error) {
	extensions, err := parseExtensions(auth.Extensions)
	if err != nil {
		return nil, err
	}
	fixed := s.secret(credentialToken, auth.Token, auth.TokenFile)
	var source *tokenSource
	if auth.OAuth.TokenURL != "" {
		if source, err = s.tokenSource(auth.OAuth); err != nil {
			return nil, err
		}
	}
	return bearerMechanism{oauth.Oauth(func(ctx context.Context) (oauth.Auth, error) {
		t := fixed()
		if source != nil {
			var err error
			if t, err = source.get(ctx); err != nil {
				return oauth.Auth{}, err
			}
		}
		if i := strings.IndexFunc(t, func(r rune) bool { return r <= ' ' || r > '~' }); i >= 0 {
			return oauth.Auth{}, fmt.Errorf("%w: byte %d of the token is one that no bearer token has", ErrCredentials, i)
		}
		return oauth.Auth{Token: t, Extensions: extensions}, nil
	})}, nil
}

// parseExtensions reads name=value pairs. The alphabets are those of RFC 7628,
// section 3.1: anything else would break the message apart.
func parseExtensions(settings []string) (map[string]string, error) {
	extensions := map[string]string{}
	for _, s := range settings {
		name, value, ok := strings.Cut(strings.TrimSpace(s), "=")
		letters := func(r rune) bool { return r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' }
		printable := func(r rune) bool { return r >= ' ' && r <= '~' || r == '\t' || r == '\r' || r == '\n' }
		if !ok || name == "" || name == "auth" || strings.ContainsFunc(name, func(r rune) bool { return !letters(r) }) ||
			strings.ContainsFunc(value, func(r rune) bool { return !printable(r) }) {
			return nil, fmt.Errorf("ONCEBUS_SASL_EXTENSIONS: %q is no name=value with a name of letters other than auth", s)
		}
		extensions[name] = value
	}
	return extensions, nil
}

// bearerMechanism handles a refusal as RFC 7628 defines it. The broker first sends a
// JSON object, which the client acknowledges, and then its error. franz-go's own
// session ends at the object, without a reason.
type bearerMechanism struct{ sasl.Mechanism }

// Authenticate begins a session.
func (m bearerMechanism) Authenticate(ctx context.Context, addr string) (sasl.Session, []byte, error) {
	session, first, err := m.Mechanism.Authenticate(ctx, addr)
	return &bearerSession{Session: session}, first, err
}

type bearerSession struct {
	sasl.Session
	refused bool
}

// Challenge acknowledges a refusal with the one byte of the RFC.
func (s *bearerSession) Challenge(answer []byte) (done bool, reply []byte, err error) {
	var refusal struct {
		Status string `json:"status"`
	}
	switch {
	case s.refused:
		return false, nil, fmt.Errorf("%w: the broker refuses the token", ErrCredentials)
	case len(answer) == 0:
		return s.Session.Challenge(answer)
	case json.Unmarshal(answer, &refusal) != nil:
		return false, nil, errors.New("the broker's answer to the token is not JSON")
	}
	s.refused = true
	return false, []byte{1}, nil
}
