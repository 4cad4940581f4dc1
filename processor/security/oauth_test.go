package security

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
)

// endpoint is a token endpoint with prepared responses.
type endpoint struct {
	respond  http.HandlerFunc
	requests []*http.Request
}

func startEndpoint(t *testing.T) (*endpoint, *tokenSource) {
	t.Helper()
	e := new(endpoint)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if err := r.ParseForm(); err != nil {
			t.Error(err)
		}
		e.requests = append(e.requests, r)
		e.respond(w, r)
	}))
	t.Cleanup(server.Close)
	s, _ := newSecurity(Config{})
	source, err := s.tokenSource(OAuth{TokenURL: server.URL + "/token", ClientID: "client:1", ClientSecret: hidden, Scopes: []string{"a", "b"}, Audience: "kafka"})
	if err != nil {
		t.Fatal(err)
	}
	return e, source
}

func grant(token, lifetime string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprintf(w, `{"access_token":%q,"token_type":"bearer","expires_in":%s}`, token, lifetime)
	}
}

func fail(status int, body string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(status)
		fmt.Fprint(w, body)
	}
}

// TestTokenIsSharedAndRenewed: all connections share one token. The source
// requests the next one before the connections need it at 95 % of its lifetime,
// and keeps the old one while the endpoint is down.
func TestTokenIsSharedAndRenewed(t *testing.T) {
	e, source := startEndpoint(t)
	want := func(token string, requests int) {
		t.Helper()
		got, err := source.get(t.Context())
		if err != nil || got != token || len(e.requests) != requests {
			t.Fatalf("got %q, %v after %d requests, want %q after %d", got, err, len(e.requests), token, requests)
		}
	}
	e.respond = grant("first", `"3600"`)
	want("first", 1)
	want("first", 1)
	if left := time.Until(source.renew); left < 47*time.Minute || left > 48*time.Minute {
		t.Errorf("a token for an hour is renewed in %v, want 48 minutes", left)
	}
	source.renew = time.Time{}
	e.respond = fail(http.StatusServiceUnavailable, "")
	want("first", 2)
	want("first", 2) // within tokenRetryPause
	source.failed = source.failed.Add(-tokenRetryPause)
	e.respond = grant("second", "60")
	want("second", 3)
	source.renew, source.expires = time.Time{}, time.Time{}
	e.respond = fail(http.StatusServiceUnavailable, "")
	if got, err := source.get(t.Context()); err == nil || CredentialsRefused(err) {
		t.Errorf("without a valid token: %q, %v, want an error that the client retries", got, err)
	}
	if n := testutil.ToFloat64(source.metrics.reloads.WithLabelValues(credentialToken, "failed")); n != 2 {
		t.Errorf("%v failures counted, want 2", n)
	}
}

func TestTokenRequest(t *testing.T) {
	e, source := startEndpoint(t)
	e.respond = grant("t", "60")
	if _, err := source.get(t.Context()); err != nil {
		t.Fatal(err)
	}
	r := e.requests[0]
	id, secret, _ := r.BasicAuth()
	if r.Method != http.MethodPost || id != "client%3A1" || secret != "correct+horse+battery" {
		t.Errorf("%s by %q with %q", r.Method, id, secret)
	}
	for name, want := range map[string]string{"grant_type": "client_credentials", "scope": "a b", "audience": "kafka"} {
		if got := r.PostForm.Get(name); got != want {
			t.Errorf("%s is %q, want %q", name, got, want)
		}
	}
}

// TestTokenIsRenewedAtFourFifths: the token is in use for 80 % of its lifetime.
func TestTokenIsRenewedAtFourFifths(t *testing.T) {
	e, source := startEndpoint(t)
	e.respond = grant("t", "100")
	elapse := func(d time.Duration) { source.renew, source.expires = source.renew.Add(-d), source.expires.Add(-d) }
	for step, tt := range []struct {
		after    time.Duration
		requests int
	}{{0, 1}, {79 * time.Second, 1}, {time.Second, 2}, {79 * time.Second, 2}, {time.Second, 3}} {
		elapse(tt.after)
		if _, err := source.get(t.Context()); err != nil || len(e.requests) != tt.requests {
			t.Errorf("step %d: %d requests, %v, want %d", step, len(e.requests), err, tt.requests)
		}
	}
	if got := source.expires.Sub(source.renew); got != 20*time.Second {
		t.Errorf("renewal is %v before the end, want 20 s", got)
	}
}

// TestTokenLifetimes: every connection requests a token if the last one has no
// lifetime.
func TestTokenLifetimes(t *testing.T) {
	for response, kept := range map[string]bool{
		`{"access_token":"t"}`:                         false,
		`{"access_token":"t","expires_in":null}`:       false,
		`{"access_token":"t","expires_in":0}`:          false,
		`{"access_token":"t","expires_in":-5}`:         false,
		`{"access_token":"t","expires_in":3600}`:       true,
		`{"access_token":"t","expires_in":"3600"}`:     true,
		`{"access_token":"t","expires_in":3599.7}`:     true,
		`{"access_token":"t","expires_in":1e30}`:       true,
		`{"access_token":"t","expires_in":9999999999}`: true,
	} {
		e, source := startEndpoint(t)
		e.respond = fail(http.StatusOK, response)
		for range 3 {
			if got, err := source.get(t.Context()); err != nil || got != "t" {
				t.Errorf("%s: token %q, %v", response, got, err)
			}
		}
		if want := map[bool]int{true: 1, false: 3}[kept]; len(e.requests) != want {
			t.Errorf("%s: %d requests for three connections, want %d", response, len(e.requests), want)
		}
		if kept && time.Until(source.expires) > 366*24*time.Hour {
			t.Errorf("%s: expires at %v", response, source.expires)
		}
	}
}

// TestTokenResponseTypes: some endpoints declare their JSON as text.
func TestTokenResponseTypes(t *testing.T) {
	for _, declared := range []string{"", "application/json", "application/json; charset=utf-8", "text/plain", "text/html"} {
		e, source := startEndpoint(t)
		e.respond = func(w http.ResponseWriter, r *http.Request) {
			w.Header()["Content-Type"] = []string{declared}
			grant("t", "60")(w, r)
		}
		if got, err := source.get(t.Context()); err != nil || got != "t" {
			t.Errorf("type %q: token %q, %v", declared, got, err)
		}
	}
}

// TestTokenRedirectIsRefused: the client secret is for the configured URL only.
func TestTokenRedirectIsRefused(t *testing.T) {
	requests := 0
	elsewhere := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { requests++ }))
	defer elsewhere.Close()
	for _, status := range []int{301, 302, 303, 307, 308} {
		e, source := startEndpoint(t)
		e.respond = func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, elsewhere.URL, status) }
		_, err := source.get(t.Context())
		if err == nil || !strings.Contains(err.Error(), fmt.Sprint(status)) || strings.Contains(err.Error(), elsewhere.URL) {
			t.Errorf("%d: got %v", status, err)
		}
		if len(e.requests) != 1 || requests != 0 {
			t.Errorf("%d: %d requests, %d elsewhere, want 1 and 0", status, len(e.requests), requests)
		}
	}
}

// TestTokenErrorShowsNoBody: a body may contain the request or a part of a token.
func TestTokenErrorShowsNoBody(t *testing.T) {
	const inBody = "body-of-the-endpoint"
	for _, status := range []int{200, 201, 307, 400, 401, 403, 429, 500, 503} {
		for _, body := range []string{
			inBody, "<html>" + inBody, `{"access":"` + inBody + `"}`, `{"access_token":{"` + inBody + `":1}}`, `{"access_token":"` + inBody,
			`{"error":["` + inBody + `"]}`, `{"error_uri":"` + inBody + `"}`, `{"expires_in":"` + inBody + `"}`, "access_token=" + inBody + "&error=" + inBody, "%" + inBody,
		} {
			for _, declared := range []string{"application/json", "text/plain", "application/x-www-form-urlencoded"} {
				e, source := startEndpoint(t)
				var out bytes.Buffer
				source.log = slog.New(slog.NewTextHandler(&out, nil))
				e.respond = func(w http.ResponseWriter, _ *http.Request) {
					w.Header().Set("Content-Type", declared)
					w.WriteHeader(status)
					fmt.Fprint(w, body)
				}
				got, err := source.get(t.Context())
				if err == nil || strings.Contains(fmt.Sprintf("%v %+v %#v %q", err, err, err.Error(), err), inBody) || strings.Contains(out.String(), inBody) {
					t.Errorf("%d %s %s: token %q, error %v, log %s", status, declared, body, got, err, &out)
				}
			}
		}
	}
}

// TestTokenErrorIsRedactedBeforeItIsCut: a long description may be cut inside a
// secret.
func TestTokenErrorIsRedactedBeforeItIsCut(t *testing.T) {
	for n := range len(hidden) {
		e, source := startEndpoint(t)
		text := strings.Repeat("x", tokenWordsMax-n)
		e.respond = fail(http.StatusBadRequest, `{"error_description":"`+text+hidden+`"}`)
		if _, err := source.get(t.Context()); err == nil || n > 0 && strings.Contains(err.Error(), "x"+hidden[:n]) {
			t.Errorf("%d bytes of the secret are shown", n)
		}
	}
}

// TestSlowTokenEndpoint: the timeout ends a request with a late header or a late
// body.
func TestSlowTokenEndpoint(t *testing.T) {
	for _, head := range []string{"", `{"access_token":`} {
		e, source := startEndpoint(t)
		if source.timeout != tokenTimeout {
			t.Errorf("timeout %v, want %v", source.timeout, tokenTimeout)
		}
		source.timeout = 50 * time.Millisecond
		e.respond = func(w http.ResponseWriter, r *http.Request) {
			if head != "" {
				fmt.Fprint(w, head)
				_ = http.NewResponseController(w).Flush()
			}
			<-r.Context().Done()
		}
		if _, err := source.get(t.Context()); !errors.Is(err, context.DeadlineExceeded) || CredentialsRefused(err) {
			t.Errorf("after %q: got %v", head, err)
		}
	}
}

func TestTokenResponseHasASizeLimit(t *testing.T) {
	for size, fits := range map[int]bool{tokenResponseMax: true, tokenResponseMax + 1: false} {
		e, source := startEndpoint(t)
		const first, last = `{"access_token":"t"`, `}`
		e.respond = fail(http.StatusOK, first+strings.Repeat(" ", size-len(first)-len(last))+last)
		if got, err := source.get(t.Context()); fits != (err == nil) {
			t.Errorf("%d bytes: token %q, %v", size, got, err)
		}
	}
}

func TestTokenErrors(t *testing.T) {
	for name, tt := range map[string]struct {
		respond http.HandlerFunc
		final   bool // only the operator can resolve it
		want    string
	}{
		"wrong client": {fail(401, `{"error":"invalid_client","error_description":"secret correct horse battery is wrong"}`), true, `401 "invalid_client secret *** is wrong"`},
		"wrong scope":  {fail(400, `{"error":"invalid_scope"}`), true, `400 "invalid_scope"`},
		"proxy page":   {fail(403, "<html>"), true, `403 ""`},
		"too many":     {fail(429, ""), false, "the token endpoint failed: 429"},
		"down":         {fail(503, `{"error":"temporarily_unavailable"}`), false, `503 "temporarily_unavailable"`},
		"redirect": {func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, "/elsewhere", http.StatusTemporaryRedirect)
		}, false,
			"the token endpoint failed: 307"},
		"not JSON":   {fail(200, "access_token=abcdef"), false, "is not a JSON object with a token"},
		"no token":   {fail(200, `{"token":"abcdef"}`), false, "has no access_token"},
		"other type": {fail(200, `{"access_token":"abcdef","token_type":"mac"}`), true, `of type "mac"`},
		"cut off": {func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Length", "100")
			fmt.Fprint(w, `{"access_token":"abcdef"`)
		}, false, "read the response"},
	} {
		t.Run(name, func(t *testing.T) {
			e, source := startEndpoint(t)
			e.respond = tt.respond
			_, err := source.get(t.Context())
			if err == nil || CredentialsRefused(err) != tt.final || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("got %v, want %q in it, final: %v", err, tt.want, tt.final)
			}
			for _, secret := range []string{hidden, "correct+horse", "abcdef"} {
				if err != nil && strings.Contains(err.Error(), secret) {
					t.Errorf("the error shows %q: %v", secret, err)
				}
			}
			if len(e.requests) != 1 {
				t.Errorf("%d requests, want 1", len(e.requests))
			}
		})
	}
}

// TestTokenEndpointIsVerified: the client sends no secret to an endpoint without a
// trusted certificate.
func TestTokenEndpointIsVerified(t *testing.T) {
	requested := false
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { requested = true }))
	server.Config.ErrorLog = nil
	server.StartTLS()
	defer server.Close()
	s, _ := newSecurity(Config{})
	source, err := s.tokenSource(OAuth{TokenURL: server.URL, ClientID: "c", ClientSecret: hidden})
	if err != nil {
		t.Fatal(err)
	}
	if _, err = source.get(t.Context()); !errors.Is(err, ErrCredentials) || !strings.Contains(err.Error(), "authorities in ONCEBUS_SASL_OAUTH_CA_FILE") || requested {
		t.Errorf("requested: %v, error %v", requested, err)
	}
}
