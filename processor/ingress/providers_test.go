package ingress

import (
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"oncebus/dedup"
	"oncebus/dedup/rules"
	"oncebus/processor/ingress/signature"
	"oncebus/processor/security"
)

// providerRequest is a signed webhook, as testdata/providers/sign.py prints it.
type providerRequest struct {
	Provider  string
	Maker     string // of the signature: an SDK, published, or the rule
	Secret    string
	At        int64 // when it was signed, Unix seconds
	Headers   map[string]string
	Query     string
	Body      string
	Unsigned  string   // the header with an id that is not signed
	Changed   []string // a text of the body that is signed, and another one
	Handshake *struct {
		Status int
		Body   string
	}
}

// verifyToken is the token of Meta's handshake.
const verifyToken = "a-verify-token-of-the-tests"

func recordedRequests(tb testing.TB) []providerRequest {
	tb.Helper()
	text, err := os.ReadFile("testdata/providers/requests.json")
	if err != nil {
		tb.Fatal(err)
	}
	return parseRequests(tb, text)
}

func parseRequests(tb testing.TB, text []byte) []providerRequest {
	tb.Helper()
	var requests []providerRequest
	if err := json.Unmarshal(text, &requests); err != nil {
		tb.Fatal(err)
	}
	return requests
}

func (r *providerRequest) name() string {
	return fmt.Sprintf("%s by %s, %.20s", r.Provider, r.Maker, strings.TrimSpace(r.Body))
}

func (r *providerRequest) header() http.Header {
	h := http.Header{}
	for name, value := range r.Headers {
		h.Set(name, value)
	}
	return h
}

// receiver is the endpoint of one preset, without a server.
type receiver struct {
	t       *testing.T
	e       *endpoint
	deriver *rules.Deriver
}

// newReceiver returns the endpoint with a secret, and the one that follows it.
func newReceiver(t *testing.T, provider, secret, next string) *receiver {
	t.Helper()
	p := rules.ProviderOf(provider)
	if p == nil {
		t.Fatalf("no preset %s", provider)
	}
	routes := parseRoutes(t, p.ExampleText())
	cfg := testConfig()
	h := routes.Routes[0].HTTP
	cfg.Secrets = Secrets{
		h.Signature.Secret: {Value: security.Secret(secret)}, h.Signature.Secret + nextSuffix: {Value: security.Secret(next)}, "VERIFY": {Value: verifyToken},
	}
	es, err := newEndpoints(cfg, routes)
	if err != nil {
		t.Fatal(err)
	}
	return &receiver{t: t, e: es.events[h.Path], deriver: routes.NewDeriver(nil)}
}

// verify verifies a request some time after it was signed.
func (v *receiver) verify(r *providerRequest, header http.Header, body string, later time.Duration) error {
	return v.e.body.auth.verify(signature.Request{Header: header, Query: r.Query, Body: []byte(body)}, time.Unix(r.At, 0).Add(later))
}

// handshake answers a request if it is one.
func (v *receiver) handshake(r *providerRequest) *response {
	return v.e.answerHandshake(signature.Request{Header: r.header(), Query: r.Query, Body: []byte(r.Body)}, time.Unix(r.At, 0))
}

// derive derives the key of a request from its record, as the ingress produces it.
func (v *receiver) derive(r *providerRequest, header http.Header, body string) rules.Derived {
	v.t.Helper()
	headers, err := v.e.recordHeaders(header)
	if err != nil {
		v.t.Fatal(err)
	}
	return v.deriver.Derive(&rules.Input{Topic: v.e.Topic, Value: []byte(body), Headers: recordHeaders(headers), Timestamp: r.At * 1000})
}

// key returns the key of a request.
func (v *receiver) key(r *providerRequest, header http.Header, body string) string {
	v.t.Helper()
	d := v.derive(r, header, body)
	if d.Finding != rules.Keyed {
		v.t.Fatalf("%s: %v: %s", r.name(), d.Finding, d.Reason)
	}
	if r.At*1000 != d.Time {
		v.t.Errorf("%s: event time %d, want %d", r.name(), d.Time, r.At*1000)
	}
	return hex.EncodeToString(d.Key[:])
}

// recordHeaders are the headers of a record.
type recordHeaders []dedup.Header

func (h recordHeaders) Header(name string) ([]byte, bool) {
	i := slices.IndexFunc(h, func(x dedup.Header) bool { return x.Key == name })
	if i < 0 {
		return nil, false
	}
	return h[i].Value, true
}

// TestProviderPresets sends a recorded webhook of each provider through its preset: it is
// valid, and every altered one is refused, or has the key of the first.
func TestProviderPresets(t *testing.T) {
	requests := recordedRequests(t)
	for i := range rules.Providers {
		if !slices.ContainsFunc(requests, func(r providerRequest) bool { return r.Provider == rules.Providers[i].Name }) {
			t.Errorf("no request of %s", rules.Providers[i].Name)
		}
	}
	assertPresets(t, requests)
}

func assertPresets(t *testing.T, requests []providerRequest) {
	t.Helper()
	for _, r := range requests {
		t.Run(r.name(), func(t *testing.T) {
			v := newReceiver(t, r.Provider, r.Secret, "")
			if err := v.verify(&r, r.header(), r.Body, 0); err != nil {
				t.Fatal(err)
			}
			if got := v.handshake(&r); (got != nil) != (r.Handshake != nil) {
				t.Fatalf("answered as a handshake: %v", got != nil)
			}
			assertRefusals(t, v, &r)
			assertRotation(t, &r)
			if r.Handshake == nil {
				assertKeys(t, v, &r)
			}
		})
	}
}

// assertRefusals alters what is signed.
func assertRefusals(t *testing.T, v *receiver, r *providerRequest) {
	t.Helper()
	want := func(what string, err, want error) {
		t.Helper()
		if !errors.Is(err, want) {
			t.Errorf("%s: %v, want %v", what, err, want)
		}
	}
	scheme := v.e.Signature.Scheme
	other := strings.Replace(r.Body, r.Changed[0], r.Changed[1], 1)
	if other == r.Body {
		t.Fatalf("the body has no %q", r.Changed[0])
	}
	if scheme != rules.Token {
		want("altered body", v.verify(r, r.header(), other, 0), signature.ErrWrong)
	}
	if tolerance := v.e.Signature.Tolerance; tolerance > 0 {
		want("at the end of the tolerance", v.verify(r, r.header(), r.Body, tolerance), nil)
		want("old timestamp", v.verify(r, r.header(), r.Body, tolerance+time.Second), signature.ErrStale)
		want("timestamp ahead", v.verify(r, r.header(), r.Body, -tolerance-time.Second), signature.ErrStale)
	}
	want("wrong secret", newReceiver(t, r.Provider, otherSecret(t, r), "").verify(r, r.header(), r.Body, 0), signature.ErrWrong)
	for _, name := range v.e.body.auth.verifier.Headers() {
		header := r.header()
		header.Set(name, header.Get(name)+"1")
		if err := v.verify(r, header, r.Body, 0); err == nil && name != "Paypal-Cert-Url" { // which is neither signed nor used
			t.Errorf("another %s is accepted", name)
		}
		header = r.header()
		header.Del(name)
		want("without "+name, v.verify(r, header, r.Body, 0), signature.ErrMissing)
		header = r.header()
		header.Add(name, header.Get(name))
		want(name+" twice", v.verify(r, header, r.Body, 0), signature.ErrMalformed)
	}
	if v.e.body.auth.verifier.Query() != "" {
		without := *r
		without.Query = ""
		want("without a token", v.verify(&without, r.header(), r.Body, 0), signature.ErrMissing)
		without.Query = r.Query + "&" + r.Query
		want("two tokens", v.verify(&without, r.header(), r.Body, 0), signature.ErrMalformed)
	}
}

// assertRotation: during a rotation both secrets are valid, and a handshake is answered with
// that of its request.
func assertRotation(t *testing.T, r *providerRequest) {
	t.Helper()
	other := otherSecret(t, r)
	for what, v := range map[string]*receiver{
		"the next secret": newReceiver(t, r.Provider, other, r.Secret), "before the next secret": newReceiver(t, r.Provider, r.Secret, other),
	} {
		if err := v.verify(r, r.header(), r.Body, 0); err != nil {
			t.Errorf("%s: %v", what, err)
		}
		if got := v.handshake(r); r.Handshake != nil && string(got.body) != r.Handshake.Body {
			t.Errorf("%s: the handshake got %q, want %q", what, got.body, r.Handshake.Body)
		}
	}
}

// otherSecret returns a secret of the same form that has signed nothing.
func otherSecret(t *testing.T, r *providerRequest) string {
	t.Helper()
	switch {
	case r.Provider == "discord":
		return strings.Repeat("ab", 32)
	case r.Provider == "sendgrid":
		return "MFkwEwYHKoZIzj0CAQYIKoZIzj0DAQcDQgAE/4qrpjhhmd3KX9lLAR2f3FvezvaeyZ56ICMwwyps++lezsnHLTbKboUl/kNJfUhOiAifqJjaihs0Voxj7LHDhg=="
	case r.Provider == "paypal":
		return "2" + r.Secret[1:]
	case strings.HasPrefix(r.Secret, "whsec_") && r.Provider != "stripe":
		return "whsec_" + strings.Repeat("b3RoZXIg", 4)
	case r.Provider == "adyen":
		return strings.Repeat("1F", 32)
	}
	return "another-secret-of-the-tests"
}

// mediaTypes are those that a stranger may write on a captured body.
var mediaTypes = []string{
	"", "application/json", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x", "multipart/form-data", "text/plain", "application/cloudevents+json",
}

// assertKeys: the key follows from what is signed.
func assertKeys(t *testing.T, v *receiver, r *providerRequest) {
	t.Helper()
	first := v.key(r, r.header(), r.Body)
	for _, kind := range mediaTypes {
		header := r.header()
		header.Set("Content-Type", kind)
		if v.verify(r, header, r.Body, 0) != nil {
			continue // signed, as Twilio's is
		}
		if got := v.derive(r, header, r.Body); got.Finding == rules.Keyed && hex.EncodeToString(got.Key[:]) != first {
			t.Errorf("as %q it has another key", kind)
		}
	}
	if r.Unsigned == "" {
		return
	}
	for _, value := range []string{"", "another-id"} {
		header := r.header()
		header.Set(r.Unsigned, value)
		if value == "" {
			header.Del(r.Unsigned)
		}
		if err := v.verify(r, header, r.Body, 0); err != nil {
			t.Fatalf("%s is signed: %v", r.Unsigned, err)
		}
		if got := v.key(r, header, r.Body); got != first {
			t.Errorf("%s %q makes another key", r.Unsigned, value)
		}
	}
}

// TestSignaturesOfTwoSecrets: while a provider rotates its secret, its header has a signature
// by each. One of them has to be right, in any place.
func TestSignaturesOfTwoSecrets(t *testing.T) {
	tested := map[string]bool{}
	for _, r := range recordedRequests(t) {
		v := newReceiver(t, r.Provider, r.Secret, "")
		name := v.e.body.auth.verifier.Headers()
		format, ok := map[rules.SignatureScheme]string{
			rules.Stripe: ",v1=", rules.Paddle: ";h1=", rules.Hook0: ",v1=", rules.StandardWebhooks: " v1,", rules.Svix: " v1,",
		}[v.e.Signature.Scheme]
		if !ok {
			continue
		}
		tested[r.Provider] = true
		whole := r.header().Get(name[0])
		before, right, ok := strings.Cut(" "+whole, format)
		if before = strings.TrimPrefix(before, " "); !ok || right == "" {
			t.Fatalf("%s: %q has no signature", r.Provider, whole)
		}
		wrong := strings.Map(func(c rune) rune { // a digest of the same length
			if c >= 'a' && c <= 'f' {
				return 'a' + 'f' - c
			}
			return c
		}, right)
		for _, c := range []struct {
			what, value string
			want        error
		}{
			{"the right one first", before + format + right + format + wrong, nil},
			{"the right one last", before + format + wrong + format + right, nil},
			{"two wrong ones", before + format + wrong + format + wrong, signature.ErrWrong},
		} {
			header := r.header()
			header.Set(name[0], strings.TrimPrefix(c.value, " "))
			if err := v.verify(&r, header, r.Body, 0); !errors.Is(err, c.want) {
				t.Errorf("%s, %s: %v, want %v", r.Provider, c.what, err, c.want)
			}
		}
	}
	if len(tested) != 6 {
		t.Errorf("tested %v, want 6 providers", tested)
	}
}

// TestFormsOfOneSignatureAreOneEvent: Twilio's signature covers the joined fields, so each
// form with the same text has one key, and the unsigned media type makes no other.
func TestFormsOfOneSignatureAreOneEvent(t *testing.T) {
	for _, r := range recordedRequests(t) {
		if r.Provider != "twilio" || r.Query != "" {
			continue
		}
		v := newReceiver(t, r.Provider, r.Secret, "")
		first := v.key(&r, r.header(), r.Body)
		for _, body := range []string{
			"MessageStatus=sent&Body=first+%E2%82%AC&MessageSid=SM1&From=%2B14158675310", // another order
			strings.Replace(r.Body, "SM1", "%53M1", 1),
			r.Body + "&MessageSid=SM1",
			strings.Replace(r.Body, "MessageSid=SM1", "MessageSidS=M1", 1), // another border
			strings.Replace(r.Body, "MessageSid=SM1", "MessageSidSM1=", 1),
		} {
			if err := v.verify(&r, r.header(), body, 0); err != nil {
				t.Errorf("%s: %v", body, err)
			} else if got := v.key(&r, r.header(), body); got != first {
				t.Errorf("%s has another key", body)
			}
		}
		for _, kind := range []string{"application/json", "multipart/form-data; boundary=x", "text/plain", ""} {
			header := r.header()
			header.Set("Content-Type", kind)
			if err := v.verify(&r, header, r.Body, 0); !errors.Is(err, signature.ErrMissing) {
				t.Errorf("as %q: %v", kind, err)
			}
		}
		return
	}
	t.Fatal("no form")
}
