package security

import (
	"strings"
	"testing"
)

// TestNoUnencryptedSecret: Validate checks the seed brokers, but the metadata may
// name brokers on other machines.
func TestNoUnencryptedSecret(t *testing.T) {
	for _, auth := range []SASL{
		{Mechanism: SASLPlain, Username: "u", Password: hidden},
		{Mechanism: SASLOAuthBearer, Token: "token"},
	} {
		c := goodSecurity()
		c.SASL = auth
		s, _ := newSecurity(c)
		m, err := s.mechanism(c)
		if err != nil {
			t.Fatal(err)
		}
		for addr, allowed := range map[string]bool{"127.0.0.1:9092": true, "localhost:9092": true, "[::1]:9092": true, "10.0.0.1:9092": false, "kafka:9092": false, "kafka": false} {
			_, first, err := m.Authenticate(t.Context(), addr)
			if allowed != (err == nil) || !allowed && (len(first) > 0 || !CredentialsRefused(err)) {
				t.Errorf("%s with %s: %q, %v", auth.Mechanism, addr, first, err)
			}
		}
		c.TLS.Enabled = true
		if m, err = s.mechanism(c); err != nil {
			t.Fatal(err)
		}
		if _, _, err := m.Authenticate(t.Context(), "10.0.0.1:9092"); err != nil {
			t.Errorf("%s over TLS: %v", auth.Mechanism, err)
		}
	}
}

func TestBearerTokens(t *testing.T) {
	authenticate := func(auth SASL) (string, error) {
		c := goodSecurity()
		c.SASL, c.TLS.Enabled = auth, true
		auth.Mechanism = SASLOAuthBearer
		c.SASL = auth
		s, _ := newSecurity(c)
		m, err := s.mechanism(c)
		if err != nil {
			return "", err
		}
		_, first, err := m.Authenticate(t.Context(), "broker:9092")
		return string(first), err
	}
	got, err := authenticate(SASL{Token: "abc.def", Extensions: []string{"logicalCluster=lkc-1", " identityPoolId=pool=2"}})
	if want := "n,,\x01auth=Bearer abc.def\x01identityPoolId=pool=2\x01logicalCluster=lkc-1\x01\x01"; err != nil || got != want {
		t.Errorf("got %q, %v, want %q", got, err, want)
	}
	for _, token := range []string{"abc\x01auth=Bearer other", "abc def", "über"} {
		if got, err := authenticate(SASL{Token: Secret(token)}); !CredentialsRefused(err) || strings.Contains(err.Error(), token) {
			t.Errorf("token %q: %q, %v", token, got, err)
		}
	}
	for _, extension := range []string{"auth=x", "=x", "name", "a1=x", "name=\x01"} {
		if _, err := authenticate(SASL{Token: "t", Extensions: []string{extension}}); err == nil || !strings.HasPrefix(err.Error(), "ONCEBUS_SASL_EXTENSIONS: ") {
			t.Errorf("extension %q: %v", extension, err)
		}
	}
}

// TestRejectedBearerToken: the session acknowledges the broker's JSON with the
// byte 1, so that the broker sends its error (RFC 7628, section 3.2.3).
func TestRejectedBearerToken(t *testing.T) {
	c := goodSecurity()
	c.SASL = SASL{Mechanism: SASLOAuthBearer, Token: "t"}
	s, _ := newSecurity(c)
	m, err := s.mechanism(c)
	if err != nil {
		t.Fatal(err)
	}
	start := func() *bearerSession {
		session, _, err := m.Authenticate(t.Context(), "localhost:9092")
		if err != nil {
			t.Fatal(err)
		}
		return session.(*bearerSession)
	}
	if done, reply, err := start().Challenge(nil); !done || reply != nil || err != nil {
		t.Errorf("accepted: %v, %q, %v", done, reply, err)
	}
	session := start()
	if done, reply, err := session.Challenge([]byte(`{"status":"invalid_token"}`)); done || string(reply) != "\x01" || err != nil {
		t.Errorf("rejected: %v, %q, %v", done, reply, err)
	}
	if _, _, err := session.Challenge(nil); !CredentialsRefused(err) {
		t.Errorf("rejected without an error code: %v", err)
	}
	if _, _, err := start().Challenge([]byte("no JSON")); err == nil {
		t.Error("the session acknowledged a response that is not JSON")
	}
}
