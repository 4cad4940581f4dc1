package signature

import (
	"encoding/base64"
	"errors"
	"net/http"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"
)

// The targets below give each parser what strangers send: it returns an error of the
// package, or at least one signature, and the same for an equal request.

func FuzzStandardHeaders(f *testing.F) { fuzzParser(f, StandardWebhooks, Svix) }
func FuzzPairHeader(f *testing.F)      { fuzzParser(f, Stripe, Paddle) }
func FuzzSingleHeader(f *testing.F)    { fuzzParser(f, GitHub, Slack, Zoom, Square) }
func FuzzPublicHeaders(f *testing.F)   { fuzzParser(f, Discord, SendGrid) }
func FuzzPayPalHeaders(f *testing.F)   { fuzzParser(f, PayPal) }
func FuzzTwilioForm(f *testing.F)      { fuzzParser(f, Twilio) }
func FuzzHook0Header(f *testing.F)     { fuzzParser(f, Hook0) }
func FuzzAdyenBody(f *testing.F)       { fuzzParser(f, Adyen) }

// configOf returns a valid configuration of a scheme.
func configOf(scheme Scheme) Config {
	cfg := Config{Scheme: scheme}
	if scheme.SignsURL() {
		cfg.URL = "https://hooks.example.com/a"
	}
	return cfg
}

func fuzzParser(f *testing.F, schemes ...Scheme) {
	f.Helper()
	hexSum, textSum := strings.Repeat("ab", 32), base64.StdEncoding.EncodeToString(make([]byte, 32))
	for i := range schemes {
		for _, seed := range [][5]string{
			{"v1," + textSum + " v2,x", "msg_1", "1767225600", "", ""},
			{"t=1767225600,v1=" + hexSum + ",v0=x", "", "", "", ""},
			{"ts=1767225600;h1=" + hexSum, "", "", "", ""},
			{"t=1767225600,h=content-type,v1=" + hexSum, "", "", "", ""},
			{"sha256=" + hexSum, "", "", "", ""},
			{"v0=" + hexSum, "1767225600", "", "", ""},
			{textSum, "id-1", "2026-01-01T00:00:00Z", "SHA256withRSA", "https://api.paypal.com/v1/certs/1"},
			{hexSum + hexSum, "1767225600", "", "", ""},
			{base64.StdEncoding.EncodeToString(make([]byte, 20)), "", "", "", ""},
		} {
			f.Add(uint8(i), seed[0], seed[1], seed[2], seed[3], seed[4], "", []byte(`{"a":1}`))
		}
		f.Add(uint8(i), base64.StdEncoding.EncodeToString(make([]byte, 20)), "", "", "", "", "bodySHA256="+hexSum, []byte("a=1&a=%32&b"))
		f.Add(uint8(i), "", "", "", "", "", "", []byte(`{"notificationItems":[{"NotificationRequestItem":{"pspReference":"1","amount":{"value":-5},"additionalData":{"hmacSignature":"`+textSum+`"}}}]}`))
	}
	f.Fuzz(func(t *testing.T, n uint8, first, second, third, fourth, fifth, query string, body []byte) {
		scheme := schemes[int(n)%len(schemes)]
		v, err := New(configOf(scheme))
		if err != nil {
			t.Fatal(err)
		}
		r := Request{Header: http.Header{"Content-Type": {formType}}, Query: query, Body: body}
		if n > 127 {
			r.Header.Set("Content-Type", "application/json")
		}
		for i, name := range v.Headers() {
			r.Header[name] = []string{[]string{first, second, third, fourth, fifth}[i]}
		}
		u, err := v.read(r)
		if again, err2 := v.read(r); !reflect.DeepEqual(u, again) || (err == nil) != (err2 == nil) {
			t.Fatalf("%s: read %+v, then %+v", scheme, u, again)
		}
		switch {
		case err != nil:
			if !slices.ContainsFunc([]error{ErrMissing, ErrMalformed, ErrWrong}, func(e error) bool { return errors.Is(err, e) }) {
				t.Errorf("%s: the error %v is not one of the package's", scheme, err)
			}
		case len(u.signatures) == 0 || len(u.signatures) > signaturesMax:
			t.Errorf("%s: %d signatures", scheme, len(u.signatures))
		case v.tolerance > 0 && u.timestamp == "":
			t.Errorf("%s: no timestamp", scheme)
		}
	})
}

// FuzzToken gives the token's parsers what strangers send: they accept the secret alone.
func FuzzToken(f *testing.F) {
	const secret = "a-secret-of-the-tests"
	f.Add("token="+secret, "Basic "+secret)
	f.Add("token=%61&token="+secret, secret)
	f.Add("a=1&token=", "basic "+secret)
	f.Fuzz(func(t *testing.T, query, header string) {
		byQuery, err := New(Config{Scheme: Token, Query: "token"})
		if err != nil {
			t.Fatal(err)
		}
		byHeader, err := New(Config{Scheme: Token, Header: "Authorization", Prefix: "Basic "})
		if err != nil {
			t.Fatal(err)
		}
		r := Request{Header: http.Header{"Authorization": {header}}, Query: query}
		if byHeader.Verify(bytesOf(secret), r, time.Time{}) == nil && header != "Basic "+secret {
			t.Errorf("accepted the header %q", header)
		}
		if byQuery.Verify(bytesOf(secret), r, time.Time{}) == nil && byQuery.Verify(bytesOf("another-secret-of-tests"), r, time.Time{}) == nil {
			t.Errorf("accepted the query %q for two secrets", query)
		}
	})
}

// FuzzPublicKeys gives the readers of public keys any secret: what one accepts, it has a
// key for.
func FuzzPublicKeys(f *testing.F) {
	f.Add([]byte(strings.Repeat("ab", 32)))
	f.Add([]byte("MFkwEwYHKoZIzj0CAQYIKoZIzj0DAQcDQgAE"))
	f.Add([]byte("1JE4291016473214C\n-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"))
	f.Fuzz(func(t *testing.T, secret []byte) {
		for scheme, read := range publicKey {
			s, err := read(secret)
			if (err == nil) != (s != nil && s.key != nil) || err != nil && !errors.Is(err, ErrNoSecret) {
				t.Errorf("%s: %v with %v", scheme, s, err)
			}
		}
	})
}
