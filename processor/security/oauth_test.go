package security

import (
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
)

// endpoint is a token endpoint with prepared responses.
type endpoint struct {
	answer http.HandlerFunc
	asked  []*http.Request
}

func startEndpoint(t *testing.T) (*endpoint, *tokenSource) {
	t.Helper()
	e := new(endpoint)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if err := r.ParseForm(); err != nil {
			t.Error(err)
		}
		e.asked = append(e.asked, r)
		e.answer(w, r)
	}))
	t.Cleanup(server.Close)
	s, _ := newSecurity(Config{})
	source, err := s.tokenSource(OAuth{TokenURL: server.URL + "/token", ClientID: "client:1", ClientSecret: hidden, Scopes: []string{"a", "b"}, Audience: "kafka"})
	if err != nil {
		t.Fatal(err)
	}
	return e, source
}

func grant(token, life string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprintf(w, `{"access_token":%q,"token_type":"bearer","expires_in":%s}`, token, life)
	}
}

func fail(status int, body string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(status)
		fmt.Fprint(w, body)
	}
}

// TestTokenIsSharedAndRenewed: one token for all connections, the next one
// before the broker's 95 % of its life are over, and the old one as long as
// the endpoint is down.
func TestTokenIsSharedAndRenewed(t *testing.T) {
	e, source := startEndpoint(t)
	want := func(token string, asked int) {
		t.Helper()
		got, err := source.get(t.Context())
		if err != nil || got != token || len(e.asked) != asked {
			t.Fatalf("got %q, %v after %d requests, want %q after %d", got, err, len(e.asked), token, asked)
		}
	}
	e.answer = grant("first", `"3600"`)
	want("first", 1)
	want("first", 1)
	if left := time.Until(source.renew); left < 47*time.Minute || left > 48*time.Minute {
		t.Errorf("a token for an hour is renewed in %v, want 48 minutes", left)
	}
	source.renew = time.Time{}
	e.answer = fail(http.StatusServiceUnavailable, "")
	want("first", 2)
	want("first", 2) // asked a moment ago
	source.failed = source.failed.Add(-tokenRetryPause)
	e.answer = grant("second", "60")
	want("second", 3)
	source.renew, source.expires = time.Time{}, time.Time{}
	e.answer = fail(http.StatusServiceUnavailable, "")
	if got, err := source.get(t.Context()); err == nil || CredentialsRefused(err) {
		t.Errorf("without a token that holds: %q, %v, want an error that is tried again", got, err)
	}
	if n := testutil.ToFloat64(source.metrics.reloads.WithLabelValues(credentialToken, "failed")); n != 2 {
		t.Errorf("%v failures counted, want 2", n)
	}
}

func TestTokenRequest(t *testing.T) {
	e, source := startEndpoint(t)
	e.answer = grant("t", "60")
	if _, err := source.get(t.Context()); err != nil {
		t.Fatal(err)
	}
	r := e.asked[0]
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

func TestTokenWithoutALifeIsFetchedEveryTime(t *testing.T) {
	e, source := startEndpoint(t)
	e.answer = func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, `{"access_token":"t"}`) }
	for range 3 {
		if _, err := source.get(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if len(e.asked) != 3 {
		t.Errorf("asked %d times, want 3", len(e.asked))
	}
}

func TestTokenRefusals(t *testing.T) {
	for name, tt := range map[string]struct {
		answer http.HandlerFunc
		final  bool // only a person can resolve it
		want   string
	}{
		"wrong client":    {fail(401, `{"error":"invalid_client","error_description":"secret correct horse battery is wrong"}`), true, `401 "invalid_client secret *** is wrong"`},
		"wrong scope":     {fail(400, `{"error":"invalid_scope"}`), true, `400 "invalid_scope"`},
		"page in between": {fail(403, "<html>"), true, `403 ""`},
		"too many":        {fail(429, ""), false, "the token endpoint fails: 429"},
		"down":            {fail(503, `{"error":"temporarily_unavailable"}`), false, `503 "temporarily_unavailable"`},
		"redirect": {func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, "/elsewhere", http.StatusTemporaryRedirect)
		}, false,
			"the token endpoint fails: 307"},
		"not JSON":   {fail(200, "access_token=abcdef"), false, "is not a JSON object with a token"},
		"no token":   {fail(200, `{"token":"abcdef"}`), false, "has no access_token"},
		"other type": {fail(200, `{"access_token":"abcdef","token_type":"mac"}`), true, `of type "mac"`},
		"cut off": {func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Length", "100")
			fmt.Fprint(w, `{"access_token":"abcdef"`)
		}, false, "read the answer"},
	} {
		t.Run(name, func(t *testing.T) {
			e, source := startEndpoint(t)
			e.answer = tt.answer
			_, err := source.get(t.Context())
			if err == nil || CredentialsRefused(err) != tt.final || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("got %v, want %q in it, final: %v", err, tt.want, tt.final)
			}
			for _, secret := range []string{hidden, "correct+horse", "abcdef"} {
				if err != nil && strings.Contains(err.Error(), secret) {
					t.Errorf("the error shows %q: %v", secret, err)
				}
			}
			if len(e.asked) != 1 {
				t.Errorf("%d requests, want 1", len(e.asked))
			}
		})
	}
}

// TestTokenEndpointIsVerified: an endpoint without a trusted certificate gets no
// secret.
func TestTokenEndpointIsVerified(t *testing.T) {
	asked := false
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { asked = true }))
	server.Config.ErrorLog = nil
	server.StartTLS()
	defer server.Close()
	s, _ := newSecurity(Config{})
	source, err := s.tokenSource(OAuth{TokenURL: server.URL, ClientID: "c", ClientSecret: hidden})
	if err != nil {
		t.Fatal(err)
	}
	if _, err = source.get(t.Context()); !errors.Is(err, ErrCredentials) || asked {
		t.Errorf("asked: %v, %v", asked, err)
	}
}
