package security

import (
	"bytes"
	"encoding/json"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus/testutil"
)

func TestSecretIsNeverPrinted(t *testing.T) {
	c := goodSecurity()
	c.KeySecret, c.SASL.Password = hidden, hidden
	var out bytes.Buffer
	for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q", "%x", "%X", "%d", "%t", "%10v", "%c"} {
		fmt.Fprintf(&out, verb+"\n", c.KeySecret)
		fmt.Fprintf(&out, verb+"\n", c)
		fmt.Fprintf(&out, verb+"\n", &c)
	}
	for _, h := range []slog.Handler{slog.NewTextHandler(&out, nil), slog.NewJSONHandler(&out, nil)} {
		slog.New(h).Info("settings", "config", c, "secret", c.KeySecret, "sasl", c.SASL)
	}
	if err := json.NewEncoder(&out).Encode(c); err != nil {
		t.Fatal(err)
	}
	hex := fmt.Sprintf("%x", hidden)
	for _, shown := range []string{hidden, hex, strings.ToUpper(hex), "correct"} {
		if strings.Contains(out.String(), shown) {
			t.Errorf("%q is visible in:\n%s", shown, out.String())
		}
	}
	if !strings.Contains(out.String(), `"KeySecret":"***"`) {
		t.Errorf("JSON does not show that a secret is set:\n%s", out.String())
	}
	if got := Secret("").String(); got != "" {
		t.Errorf("an empty secret prints %q, want nothing", got)
	}
}

func TestCheckSecret(t *testing.T) {
	c := goodSecurity()
	if err := c.CheckSecret(false); err != nil {
		t.Error(err)
	}
	if err := c.CheckSecret(true); err == nil || !strings.HasPrefix(err.Error(), "ONCEBUS_KEY_SECRET: not set") {
		t.Errorf("got %v", err)
	}
	c.KeySecret = "short"
	if err := c.CheckSecret(true); err == nil || err.Error() != "ONCEBUS_KEY_SECRET: 5 bytes are too few, want at least 16" {
		t.Errorf("got %v", err)
	}
	c.KeySecret = hidden
	if err := c.CheckSecret(true); err != nil {
		t.Error(err)
	}
}

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

func TestReadSecretShowsNoSecret(t *testing.T) {
	for _, path := range []string{"line\nline", "-----BEGIN PRIVATE KEY-----"} {
		if _, err := ReadSecret(path); err == nil || strings.Contains(err.Error(), path) {
			t.Errorf("%q: %v", path, err)
		}
	}
}
