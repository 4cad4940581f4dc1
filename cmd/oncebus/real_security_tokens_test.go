//go:build unix

package main_test

import (
	"crypto/tls"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"
)

// tokenLife is how long a token is valid: so short that a test needs several.
const tokenLife = 15 * time.Second

// tokenEndpoint grants tokens for client credentials, over TLS. They are unsecured JSON web tokens, of which Kafka's validator checks
// the expiry.
type tokenEndpoint struct {
	server *httptest.Server
	ca     string
}

func startTokenEndpoint(t *testing.T, ca *authority) *tokenEndpoint {
	t.Helper()
	e := &tokenEndpoint{ca: ca.file()}
	cert, key := ca.Issue("localhost", time.Now().Add(time.Hour))
	pair, err := tls.X509KeyPair(cert, key)
	if err != nil {
		t.Fatal(err)
	}
	e.server = httptest.NewUnstartedServer(http.HandlerFunc(e.serve))
	e.server.TLS = &tls.Config{Certificates: []tls.Certificate{pair}}
	e.server.StartTLS()
	t.Cleanup(e.server.Close)
	return e
}

func (e *tokenEndpoint) serve(w http.ResponseWriter, r *http.Request) {
	id, secret, _ := r.BasicAuth()
	var answer struct {
		Token       string  `json:"access_token,omitempty"`
		Type        string  `json:"token_type,omitempty"`
		Life        float64 `json:"expires_in,omitempty"` // seconds
		Error       string  `json:"error,omitempty"`
		Description string  `json:"error_description,omitempty"`
	}
	switch {
	case r.FormValue("grant_type") != "client_credentials" || r.FormValue("scope") != "kafka produce":
		w.WriteHeader(http.StatusBadRequest)
		answer.Error = "invalid_request"
	case id != "bearer" || secret != canaryClient:
		w.WriteHeader(http.StatusUnauthorized)
		// Like a careless endpoint, it repeats the request in its error.
		answer.Error, answer.Description = "invalid_client", fmt.Sprintf("no client %q with secret %q", id, secret)
	default:
		answer.Token, answer.Type, answer.Life = unsecuredToken(id, time.Now().Add(tokenLife)), "Bearer", tokenLife.Seconds()
	}
	if err := json.NewEncoder(w).Encode(answer); err != nil {
		w.WriteHeader(http.StatusInternalServerError)
	}
}

// settings returns the settings of a client with this secret.
func (e *tokenEndpoint) settings(secret string) []string {
	return []string{
		"SASL_MECHANISM=OAUTHBEARER", "SASL_OAUTH_TOKEN_URL=" + e.server.URL + "/token", "SASL_OAUTH_CLIENT_ID=bearer",
		"SASL_OAUTH_CLIENT_SECRET=" + secret, "SASL_OAUTH_SCOPES=kafka,produce", "SASL_OAUTH_CA_FILE=" + e.ca,
	}
}

// unsecuredToken returns a JSON web token without a signature.
func unsecuredToken(subject string, expires time.Time) string {
	part := func(v map[string]any) string {
		b, err := json.Marshal(v)
		if err != nil {
			panic(err) // maps of strings and numbers always marshal
		}
		return base64.RawURLEncoding.EncodeToString(b)
	}
	return part(map[string]any{"alg": "none"}) + "." +
		part(map[string]any{"sub": subject, "iat": time.Now().Add(-2 * time.Hour).Unix(), "exp": expires.Unix()}) + "."
}
