package security

import (
	"encoding/base64"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
)

type secretive struct{ inner map[string]string }

// TestLogShowsNoSecret: the handler replaces a secret in every form and every part
// of a log line.
func TestLogShowsNoSecret(t *testing.T) {
	const secret = `pass "word" & ü/1`
	c := goodSecurity()
	c.SASL.Password, c.KeySecret, c.SASL.Token, c.SASL.OAuth.ClientSecret = secret, "key secret of sixteen", "token-token", "client-secret"
	s, out := newSecurity(c)
	log := s.log.With("with", secret).WithGroup("group").With("more", errors.New(secret))
	for _, text := range []string{secret, fmt.Sprintf("%q", secret), url.QueryEscape(secret), url.PathEscape(secret), base64.StdEncoding.EncodeToString([]byte(secret)),
		fmt.Sprintf("%x", secret), "key secret of sixteen", "token-token", "client-secret"} {
		if err := log.Handler().Handle(t.Context(), slog.NewRecord(time.Now(), slog.LevelInfo, "message "+text, 0)); err != nil {
			t.Fatal(err)
		}
		log.Info("message", "text", "a "+text, "error", fmt.Errorf("wrapped: %w", errors.New(text)), "list", []string{"x", text},
			"struct", secretive{map[string]string{"k": text}}, slog.Group("inner", "text", text), "number", 7)
	}
	shown := out.String()
	for _, part := range []string{`pass "word`, `pass \"word`, `pass \\\"word`, "pass+", "pass%20", "cGFzcy", fmt.Sprintf("%x", "pass"), "sixteen", "token-token", "client-secret"} {
		if strings.Contains(shown, part) {
			t.Errorf("%q is shown in\n%s", part, shown)
		}
	}
	if !strings.Contains(shown, "number=7") || !strings.Contains(shown, "group.inner.text=***") {
		t.Errorf("other attributes are missing:\n%s", shown)
	}
}

func TestRedactedErrorKeepsWhatItWraps(t *testing.T) {
	c := goodSecurity()
	c.SASL.Password = hidden
	s, _ := newSecurity(c)
	var changed *redactedError
	if got := s.redact.Err(fmt.Errorf("no secret: %w", kerr.NotController)); errors.As(got, &changed) || got.Error() != "no secret: "+kerr.NotController.Error() {
		t.Errorf("an error without a secret changed to %v", got)
	}
	err := s.redact.Err(fmt.Errorf("sent %s: %w", hidden, kerr.SaslAuthenticationFailed))
	var code *kerr.Error
	if !errors.Is(err, kerr.SaslAuthenticationFailed) || !errors.As(err, &code) || !strings.HasPrefix(err.Error(), "sent ***: ") {
		t.Errorf("got %v", err)
	}
	if s.redact.Err(nil) != nil {
		t.Error("Err returned an error for nil")
	}
}

// TestRedactorRemovesOldSecrets: a process gets new tokens all the time. It keeps
// the last two, because new texts may still show those.
func TestRedactorRemovesOldSecrets(t *testing.T) {
	s, _ := newSecurity(Config{})
	for i := range 100 {
		s.redact.learn(credentialToken, fmt.Sprintf("token-%03d", i))
	}
	if got := s.redact.text("token-097 token-098 token-099"); got != "token-097 *** ***" {
		t.Errorf("got %s", got)
	}
	s.redact.learn("short", "a")
	if got := s.redact.text("a banana"); got != "a banana" {
		t.Errorf("got %s", got)
	}
}
