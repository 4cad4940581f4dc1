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

// mechanism returns the SASL mechanism of the settings. It reads the secret again for every authentication,
// including reauthentications (KIP-368).
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

// guarded is a mechanism that sends no secret unencrypted to another machine. Validate checks only the seed
// brokers, but the metadata may name other brokers.
type guarded struct {
	sasl.Mechanism
	settings  SASL
	encrypted bool
}

// Authenticate starts a session with the broker at addr, unless it would send a secret unencrypted.
func (g guarded) Authenticate(ctx context.Context, addr string) (sasl.Session, []byte, error) {
	if host, _, err := net.SplitHostPort(addr); !g.encrypted && g.settings.sendsSecret() && (err != nil || !IsLoopback(host)) {
		return nil, nil, fmt.Errorf("%w: broker %s is not on this machine, and %s would send the %s unencrypted: set ONCEBUS_TLS_ENABLED=true",
			ErrCredentials, addr, g.settings.Mechanism, g.settings.secretName())
	}
	session, first, err := g.Mechanism.Authenticate(ctx, addr)
	if err != nil {
		return nil, nil, fmt.Errorf("authentication with broker %s by %s: %w", addr, g.settings.Mechanism, err)
	}
	return session, first, nil
}

// bearer returns the mechanism OAUTHBEARER. The token comes from the settings or from a token endpoint.
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
			return oauth.Auth{}, fmt.Errorf("%w: byte %d of the token is not printable ASCII: correct the token", ErrCredentials, i)
		}
		return oauth.Auth{Token: t, Extensions: extensions}, nil
	})}, nil
}

// parseExtensions reads name=value pairs. It permits only the characters of RFC 7628, section 3.1, because
// other characters could end an extension early.
func parseExtensions(settings []string) (map[string]string, error) {
	extensions := map[string]string{}
	for _, s := range settings {
		name, value, ok := strings.Cut(strings.TrimSpace(s), "=")
		letters := func(r rune) bool { return r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' }
		printable := func(r rune) bool { return r >= ' ' && r <= '~' || r == '\t' || r == '\r' || r == '\n' }
		if !ok || name == "" || name == "auth" || strings.ContainsFunc(name, func(r rune) bool { return !letters(r) }) ||
			strings.ContainsFunc(value, func(r rune) bool { return !printable(r) }) {
			return nil, fmt.Errorf("ONCEBUS_SASL_EXTENSIONS: %q is malformed, want name=value with a name of letters, except auth", s)
		}
		extensions[name] = value
	}
	return extensions, nil
}

// bearerMechanism handles a rejected token as RFC 7628 defines it: the broker sends a JSON object, the client
// acknowledges the object, and the broker sends its error. franz-go's own session ends at the object, without
// the error.
type bearerMechanism struct{ sasl.Mechanism }

// Authenticate starts a session.
func (m bearerMechanism) Authenticate(ctx context.Context, addr string) (sasl.Session, []byte, error) {
	session, first, err := m.Mechanism.Authenticate(ctx, addr)
	return &bearerSession{Session: session}, first, err
}

// bearerSession is a session of bearerMechanism. rejected says that the broker has rejected the token.
type bearerSession struct {
	sasl.Session
	rejected bool
}

// Challenge acknowledges a rejection with the byte 1, as the RFC requires.
func (s *bearerSession) Challenge(response []byte) (done bool, reply []byte, err error) {
	var rejection struct {
		Status string `json:"status"`
	}
	switch {
	case s.rejected:
		return false, nil, fmt.Errorf("%w: the broker rejects the token", ErrCredentials)
	case len(response) == 0:
		return s.Session.Challenge(response)
	case json.Unmarshal(response, &rejection) != nil:
		return false, nil, errors.New("the broker's response to the token is not JSON")
	}
	s.rejected = true
	return false, []byte{1}, nil
}
