package security

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/twmb/franz-go/pkg/kerr"

	"oncebus/processor/kafka"
)

func TestPasswordFileIsReadForEveryAuthentication(t *testing.T) {
	path := filepath.Join(t.TempDir(), "password")
	write := func(content string) {
		t.Helper()
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("first secret\n")
	c := goodSecurity()
	c.SASL = SASL{Mechanism: SASLPlain, Username: "u", Password: "first secret", PasswordFile: SecretPath(path)}
	s, out := newSecurity(c)
	m, err := s.mechanism(c)
	if err != nil {
		t.Fatal(err)
	}
	authenticate := func(want string) {
		t.Helper()
		_, first, err := m.Authenticate(t.Context(), "127.0.0.1:9092")
		if err != nil {
			t.Fatal(err)
		}
		if got := string(first); got != "\x00u\x00"+want {
			t.Errorf("got %q, want the password %q", got, want)
		}
	}
	authenticate("first secret")
	write("second secret\r\n")
	authenticate("second secret")
	write("\n")
	authenticate("second secret")
	authenticate("second secret")
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	authenticate("second secret")
	loaded, failed := s.metrics.reloads.WithLabelValues(credentialPassword, "loaded"), s.metrics.reloads.WithLabelValues(credentialPassword, "failed")
	if testutil.ToFloat64(loaded) != 1 || testutil.ToFloat64(failed) != 2 {
		t.Errorf("%v reloads and %v failures, want 1 and 2 (empty, missing)", testutil.ToFloat64(loaded), testutil.ToFloat64(failed))
	}
	s.log.Info("the new secret: second secret")
	if strings.Contains(out.String(), "second secret") {
		t.Errorf("the log shows a secret:\n%s", out)
	}
}

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

func TestReadSecretShowsNoSecret(t *testing.T) {
	for _, path := range []string{"line\nline", "-----BEGIN PRIVATE KEY-----"} {
		if _, err := ReadSecret(path); err == nil || strings.Contains(err.Error(), path) {
			t.Errorf("%q: %v", path, err)
		}
	}
}

// TestRejectedCredentialsEndTheProcess after CredentialsPatience, in which an
// operator may change them.
func TestRejectedCredentialsEndTheProcess(t *testing.T) {
	rejected := fmt.Errorf("dial: %w", ExplainCredentials(kerr.SaslAuthenticationFailed, SASL{Username: "u", Mechanism: SASLPlain}))
	synctest.Test(t, func(t *testing.T) {
		sleep := func(d time.Duration) { // by the bubble's clock
			if err := kafka.Pause(t.Context(), d); err != nil {
				t.Fatal(err)
			}
		}
		p := Patience{Limit: CredentialsPatience}
		for waited := time.Duration(0); waited < CredentialsPatience; waited += time.Second {
			if p.Stops(rejected, time.Now()) {
				t.Fatalf("the process ends after %v", waited)
			}
			sleep(time.Second)
		}
		if !p.Stops(rejected, time.Now()) {
			t.Errorf("the process runs after %v", CredentialsPatience)
		}
		if p.Stops(rejected, time.Now().Add(-time.Hour)) {
			t.Error("the process ends at once, although the broker accepted the client for an hour")
		}
		sleep(CredentialsPatience)
		if p.Stops(errors.New("connection reset"), time.Now()) || p.Stops(rejected, time.Now()) {
			t.Error("an error of another kind does not restart the time limit")
		}
		if p.Stops(nil, time.Now()) || !p.Stops(kafka.ErrIllegalState, time.Now()) {
			t.Error("other errors are not classified")
		}
	})
}
