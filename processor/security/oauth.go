package security

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"time"
)

const (
	// tokenTimeout limits a request to the token endpoint.
	tokenTimeout = 10 * time.Second
	// tokenRetryPause is how long all connections get the error of a failed request. Without this pause the
	// connections would repeat the failing request one after the other.
	tokenRetryPause = time.Second
	// tokenResponseMax limits the body of a response, in bytes.
	tokenResponseMax = 1 << 20
	// tokenRenewAt is the part of a token's lifetime after which the source requests the next token; Kafka's
	// own client uses the same share. A connection authenticates again at 95 % of the lifetime (KIP-368), and
	// needs a newer token by then.
	tokenRenewAt = 0.8
	// tokenWordsMax limits how much of an endpoint's error text an error repeats, in characters.
	tokenWordsMax = 300
)

// tokenSource requests bearer tokens by the client credentials grant of OAuth. All connections of the process
// share the current token.
type tokenSource struct {
	settings OAuth
	secret   func() string
	certs    *certificates // nil without TLS
	log      *slog.Logger
	metrics  *securityMetrics
	redact   *Redactor
	timeout  time.Duration // of one request

	mu             sync.Mutex // locked during a request
	token          string
	renew, expires time.Time // zero if the token has no lifetime
	// failed is when the last request failed, failure its error; nil after a success.
	failed  time.Time
	failure error
}

func (s *credentials) tokenSource(settings OAuth) (*tokenSource, error) {
	source := &tokenSource{
		settings: settings, secret: s.secret(credentialClientSecret, settings.ClientSecret, settings.ClientSecretFile),
		log: s.log, metrics: s.metrics, redact: s.redact, timeout: tokenTimeout,
	}
	if strings.HasPrefix(strings.ToLower(settings.TokenURL), "https:") {
		var err error
		if source.certs, err = s.certificates("ONCEBUS_SASL_OAUTH_", TLS{CAFile: settings.CAFile}); err != nil {
			return nil, err
		}
	}
	return source, nil
}

// get returns the current token until the time renew, and then a new one. If the request for a new token fails,
// get returns the current token until it expires.
func (s *tokenSource) get(ctx context.Context) (string, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	if now.Before(s.renew) {
		return s.token, nil
	}
	err := s.failure
	if err == nil || now.Sub(s.failed) >= tokenRetryPause {
		err = s.fetch(ctx)
	}
	if err == nil {
		return s.token, nil
	}
	if now.Before(s.expires) {
		return s.token, nil
	}
	return "", err
}

// fetch requests a token and makes it the current one.
func (s *tokenSource) fetch(ctx context.Context) error {
	response, err := s.request(ctx)
	if err != nil {
		err = s.redact.Err(fmt.Errorf("get a token from %s: %w", s.settings.TokenURL, err))
		s.failed, s.failure = time.Now(), err
		s.metrics.failed(credentialToken)
		s.log.Warn("token request failed", "error", err, "current_expires", s.expires)
		return err
	}
	s.failure = nil
	s.token, s.renew, s.expires = response.AccessToken, time.Time{}, time.Time{}
	if lifetime := response.lifetime(); lifetime > 0 {
		now := time.Now()
		s.renew, s.expires = now.Add(time.Duration(float64(lifetime)*tokenRenewAt)), now.Add(lifetime)
	}
	s.redact.learn(credentialToken, s.token)
	s.metrics.reloaded(credentialToken)
	s.log.Debug("token received", "expires", s.expires)
	return nil
}

// tokenResponse is the response of a token endpoint (RFC 6749, sections 5.1 and 5.2).
type tokenResponse struct {
	AccessToken      string      `json:"access_token"`
	TokenType        string      `json:"token_type"`
	ExpiresIn        json.Number `json:"expires_in"` // seconds; some endpoints quote it
	Error            string      `json:"error"`
	ErrorDescription string      `json:"error_description"`
}

// lifetime returns how long the token is valid; 0 if the response does not say it.
func (r *tokenResponse) lifetime() time.Duration {
	const day = 24 * 60 * 60
	seconds, err := r.ExpiresIn.Float64()
	if err != nil || seconds <= 0 {
		return 0
	}
	return time.Duration(min(seconds, 365*day) * float64(time.Second))
}

// request sends one request. Its error wraps ErrCredentials if only an operator can resolve the problem.
func (s *tokenSource) request(ctx context.Context) (*tokenResponse, error) {
	ctx, cancel := context.WithTimeout(ctx, s.timeout)
	defer cancel()
	form := url.Values{"grant_type": {"client_credentials"}}
	if len(s.settings.Scopes) > 0 {
		form.Set("scope", strings.Join(s.settings.Scopes, " "))
	}
	if s.settings.Audience != "" {
		form.Set("audience", s.settings.Audience)
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, s.settings.TokenURL, strings.NewReader(form.Encode()))
	if err != nil {
		return nil, err
	}
	req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	req.Header.Set("Accept", "application/json")
	req.SetBasicAuth(url.QueryEscape(s.settings.ClientID), url.QueryEscape(s.secret()))
	resp, err := s.client().Do(req)
	if err != nil {
		return nil, tlsEndpoint.explain(unwrapURL(err), req.URL.Host)
	}
	defer resp.Body.Close() //nolint:errcheck // a failed close loses nothing
	body, err := io.ReadAll(io.LimitReader(resp.Body, tokenResponseMax))
	if err != nil {
		return nil, fmt.Errorf("read the response: %w", err)
	}
	return s.parse(resp.StatusCode, body)
}

func (s *tokenSource) parse(status int, body []byte) (*tokenResponse, error) {
	response := new(tokenResponse)
	parseErr := json.Unmarshal(body, response)
	rejected := status >= 400 && status < 500 && status != http.StatusRequestTimeout && status != http.StatusTooManyRequests
	switch {
	case rejected:
		return nil, fmt.Errorf("%w: the token endpoint rejects the request, see ONCEBUS_SASL_OAUTH_CLIENT_ID and ONCEBUS_SASL_OAUTH_CLIENT_SECRET: %d %s",
			ErrCredentials, status, s.quote(response.Error+" "+response.ErrorDescription))
	case status != http.StatusOK:
		return nil, fmt.Errorf("the token endpoint failed: %d %s", status, s.quote(response.Error+" "+response.ErrorDescription))
	case parseErr != nil:
		// The parser's error may show a part of the token.
		return nil, errors.New("the token endpoint's response is not a JSON object with a token")
	case response.AccessToken == "":
		return nil, errors.New("the token endpoint's response has no access_token")
	case response.TokenType != "" && !strings.EqualFold(response.TokenType, "bearer"):
		return nil, fmt.Errorf("%w: the token endpoint issued a token of type %s, want bearer", ErrCredentials, s.quote(response.TokenType))
	}
	return response, nil
}

// quote returns at most tokenWordsMax characters of the endpoint's words, without secrets. It redacts before it
// cuts, because the Redactor does not find a part of a secret.
func (s *tokenSource) quote(words string) string {
	return fmt.Sprintf("%.*q", tokenWordsMax, s.redact.text(strings.TrimSpace(words)))
}

// client returns an HTTP client for one request. Because requests are rare, no connection stays open, and each
// request uses the certificate authorities that are current at that time.
func (s *tokenSource) client() *http.Client {
	transport := &http.Transport{Proxy: http.ProxyFromEnvironment, DisableKeepAlives: true, TLSHandshakeTimeout: tokenTimeout}
	if s.certs != nil {
		transport.TLSClientConfig, _ = s.certs.config()
	}
	return &http.Client{
		Transport: transport,
		// The request contains the client secret, which is for this URL only.
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
}

// unwrapURL removes the URL from an error of net/http, because the caller's error already names the URL.
func unwrapURL(err error) error {
	var e *url.Error
	if errors.As(err, &e) {
		return e.Err
	}
	return err
}
