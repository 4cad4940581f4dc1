package signature

import (
	"encoding/base64"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"
)

func TestWrongSecret(t *testing.T) {
	everyVector(t, func(t *testing.T, v vector) {
		wantError(t, "another secret", v.verifyWith(t, v.at, otherSecret), ErrWrong, v)
		wantError(t, "two others", v.verifyWith(t, v.at, otherSecret, otherSecret), ErrWrong, v)
	})
}

// During a rotation both secrets are valid, in any order. Before and after it one
// may be empty.
func TestRotation(t *testing.T) {
	everyVector(t, func(t *testing.T, v vector) {
		for _, secrets := range [][]string{{v.secret, otherSecret}, {otherSecret, v.secret}, {v.secret, ""}, {"", v.secret}, {v.secret, v.secret}} {
			if err := v.verifyWith(t, v.at, secrets...); err != nil {
				t.Errorf("with %q: %v", secrets, err)
			}
		}
	})
}

func TestWithoutSecretEverythingIsRefused(t *testing.T) {
	everyVector(t, func(t *testing.T, v vector) {
		for _, secrets := range [][]string{nil, {""}, {"", ""}} {
			wantError(t, fmt.Sprintf("%q", secrets), v.verifyWith(t, v.at, secrets...), ErrNoSecret, v)
		}
		err := (&Verifier{}).Verify(bytesOf(v.secret), Request{Header: v.header, Body: v.body}, v.at)
		wantError(t, "the zero verifier", err, ErrNoSecret, v)
	})
}

// The signature is that of the empty key: Python's
// hmac.new(b"", b"Hello, World!", "sha256"). OpenSSL refuses an empty key.
func TestForgeryWithTheEmptySecret(t *testing.T) {
	v := vector{cfg: Config{Scheme: GitHub}, body: []byte("Hello, World!"), signed: "X-Hub-Signature-256", header: http.Header{
		"X-Hub-Signature-256": {"sha256=2bbcfa9524f3218c7a34b30e6936f8b1a4516cb097f1a85a1c7d98b5977ec769"},
	}}
	for _, secret := range []string{"", "\x00", strings.Repeat("\x00", 64)} {
		wantError(t, strconv.Quote(secret), v.verifyWith(t, v.at, secret), ErrNoSecret, v)
	}
}

func TestUnusableSecrets(t *testing.T) {
	for _, test := range []struct {
		scheme Scheme
		secret string
		ok     bool
	}{
		{StandardWebhooks, "whsec_", false},
		{StandardWebhooks, "whsec_%%%%", false},
		{StandardWebhooks, "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaS", false},
		{StandardWebhooks, "whsec_AAAA", false}, // zeros only
		{StandardWebhooks, "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw", true},
		{StandardWebhooks, "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLQ", true}, // without padding, as some senders show it
		{StandardWebhooks, "MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLQ==", true},
		{Svix, "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLR", false}, // the end of it is missing
		{Bearer, "token\n", false},
		{Bearer, "two words", false},
		{Bearer, "tokén", false},
		{Bearer, "a-token-of-many-bytes", true},
		{GitHub, "any bytes, 16 of \xff\n", true},
		{None, "", true},
	} {
		verifier, err := New(Config{Scheme: test.scheme})
		if err != nil {
			t.Fatal(err)
		}
		err = verifier.CheckSecret([]byte(test.secret))
		if (err == nil) != test.ok || (err != nil && !errors.Is(err, ErrNoSecret)) {
			t.Errorf("CheckSecret of %s, %q: %v, want ok %v", test.scheme, test.secret, err, test.ok)
		}
	}
}

// TestShortSecretsAreRefused: the key has at least 16 bytes, after decoding and without
// the zeros that HMAC ignores.
func TestShortSecretsAreRefused(t *testing.T) {
	const fifteen, sixteen = "fifteen-bytes..", "sixteen-bytes..."
	encoded := func(key string) string { return "whsec_" + base64.StdEncoding.EncodeToString([]byte(key)) }
	for _, test := range []struct {
		scheme        Scheme
		short, enough string
		bytes         int
	}{
		{GitHub, fifteen, sixteen, 15},
		{Stripe, "whsec_123456789", "whsec_1234567890", 15},
		{Slack, "s", sixteen, 1},
		{HMAC, fifteen + strings.Repeat("\x00", 40), "\x00" + fifteen, 15},
		{Bearer, fifteen, sixteen, 15},
		{StandardWebhooks, encoded(fifteen), encoded(sixteen), 15},
		{StandardWebhooks, base64.StdEncoding.EncodeToString([]byte(fifteen)), encoded(sixteen), 15},
	} {
		cfg := Config{Scheme: test.scheme}
		if test.scheme == HMAC {
			cfg.Header = "X-Signature"
		}
		verifier, err := New(cfg)
		if err != nil {
			t.Fatal(err)
		}
		err = verifier.CheckSecret([]byte(test.short))
		if !errors.Is(err, ErrNoSecret) || !strings.Contains(err.Error(), fmt.Sprintf("its key has %d bytes", test.bytes)) ||
			!strings.Contains(err.Error(), "want at least 16: ") || strings.Contains(err.Error(), "fifteen") {
			t.Errorf("%s, %q: %v", test.scheme, test.short, err)
		}
		if err := verifier.CheckSecret([]byte(test.enough)); err != nil {
			t.Errorf("%s, %q: %v", test.scheme, test.enough, err)
		}
	}
}

func TestNoneAcceptsEverything(t *testing.T) {
	verifier, err := New(Config{Scheme: None})
	if err != nil {
		t.Fatal(err)
	}
	for _, secrets := range [][][]byte{nil, bytesOf("secret")} {
		if err := verifier.Verify(secrets, Request{Body: []byte("body")}, time.Time{}); err != nil {
			t.Errorf("with %d secrets: %v", len(secrets), err)
		}
	}
}
