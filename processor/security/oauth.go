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
	// tokenTimeout bounds one request to the token endpoint.
	tokenTimeout = 10 * time.Second
	// tokenRetryPause is how long a failed request stands for those that
	// wait for a token, so that many connections do not each try in turn.
	tokenRetryPause = time.Second
	// tokenAnswerMax bounds the endpoint's answer.
	tokenAnswerMax = 1 << 20
	// tokenRenewAt is the part of a token's life after which the next one is
	// fetched, as Kafka's own client does it. A connection authenticates
	// again when 95 % of its token's life are over (KIP-368), and must not
	// get the same one then.
	tokenRenewAt = 0.8
	// tokenWordsMax bounds what is shown of an endpoint's refusal.
	tokenWordsMax = 300
)

// tokenSource fetches bearer tokens by the client credentials grant and keeps
// the current one for all connections of the process.
type tokenSource struct {
	settings OAuth
	secret   func() string
	certs    *certificates // nil for an endpoint on this machine without TLS
	log      *slog.Logger
	metrics  *securityMetrics
	redact   *Redactor
	timeout  time.Duration // of one request

	mu             sync.Mutex // held while a token is fetched
	token          string
	renew, expires time.Time // zero if the endpoint did not say
	failed         time.Time
	failure        error
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

// get returns the current token, or a new one once that is due. If none can
// be fetched, the current one is used up to its end.
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

func (s *tokenSource) fetch(ctx context.Context) error {
	answer, err := s.request(ctx)
	if err != nil {
		err = s.redact.Err(fmt.Errorf("get a token from %s: %w", s.settings.TokenURL, err))
		s.failed, s.failure = time.Now(), err
		s.metrics.failed(credentialToken)
		s.log.Warn("no new token", "error", err, "current_expires", s.expires)
		return err
	}
	s.failure = nil
	s.token, s.renew, s.expires = answer.AccessToken, time.Time{}, time.Time{}
	if life := answer.life(); life > 0 {
		now := time.Now()
		s.renew, s.expires = now.Add(time.Duration(float64(life)*tokenRenewAt)), now.Add(life)
	}
	s.redact.learn(credentialToken, s.token)
	s.metrics.reloaded(credentialToken)
	s.log.Debug("new token", "expires", s.expires)
	return nil
}

// tokenAnswer is a token endpoint's answer (RFC 6749, sections 5.1 and 5.2).
type tokenAnswer struct {
	AccessToken      string      `json:"access_token"`
	TokenType        string      `json:"token_type"`
	ExpiresIn        json.Number `json:"expires_in"` // seconds; some endpoints quote it
	Error            string      `json:"error"`
	ErrorDescription string      `json:"error_description"`
}

// life is how long the token holds, 0 if the endpoint did not say.
func (a *tokenAnswer) life() time.Duration {
	const day = 24 * 60 * 60
	seconds, err := a.ExpiresIn.Float64()
	if err != nil || seconds <= 0 {
		return 0
	}
	return time.Duration(min(seconds, 365*day) * float64(time.Second))
}

// request asks once. Errors that only a person can resolve wrap errCredentials.
func (s *tokenSource) request(ctx context.Context) (*tokenAnswer, error) {
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
		return nil, explainTLS(unwrapURL(err), req.URL.Host)
	}
	defer resp.Body.Close() //nolint:errcheck // all of it was read, or it is of no use.
	body, err := io.ReadAll(io.LimitReader(resp.Body, tokenAnswerMax))
	if err != nil {
		return nil, fmt.Errorf("read the answer: %w", err)
	}
	return s.parse(resp.StatusCode, body)
}

func (s *tokenSource) parse(status int, body []byte) (*tokenAnswer, error) {
	answer := new(tokenAnswer)
	parseErr := json.Unmarshal(body, answer)
	refused := status >= 400 && status < 500 && status != http.StatusRequestTimeout && status != http.StatusTooManyRequests
	switch {
	case refused:
		return nil, fmt.Errorf("%w: the token endpoint refuses, see ONCEBUS_SASL_OAUTH_CLIENT_ID and ONCEBUS_SASL_OAUTH_CLIENT_SECRET: %d %s",
			ErrCredentials, status, s.quote(answer.Error+" "+answer.ErrorDescription))
	case status != http.StatusOK:
		return nil, fmt.Errorf("the token endpoint fails: %d %s", status, s.quote(answer.Error+" "+answer.ErrorDescription))
	case parseErr != nil:
		// Not the parser's error: it may repeat a part of the token.
		return nil, errors.New("the token endpoint's answer is not a JSON object with a token")
	case answer.AccessToken == "":
		return nil, errors.New("the token endpoint's answer has no access_token")
	case answer.TokenType != "" && !strings.EqualFold(answer.TokenType, "bearer"):
		return nil, fmt.Errorf("%w: the token endpoint gave a token of type %s, want bearer", ErrCredentials, s.quote(answer.TokenType))
	}
	return answer, nil
}

// quote returns the endpoint's words without secrets, and at most tokenWordsMax of
// them. It redacts before it cuts, because a part of a secret is not found.
func (s *tokenSource) quote(words string) string {
	return fmt.Sprintf("%.*q", tokenWordsMax, s.redact.text(strings.TrimSpace(words)))
}

// client is made for one request, which are far between: no idle connection
// outlives it, and changed authorities count at once.
func (s *tokenSource) client() *http.Client {
	transport := &http.Transport{Proxy: http.ProxyFromEnvironment, DisableKeepAlives: true, TLSHandshakeTimeout: tokenTimeout}
	if s.certs != nil {
		transport.TLSClientConfig, _ = s.certs.config()
	}
	return &http.Client{
		Transport: transport,
		// The request carries the client secret, which is for this URL only.
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
}

// unwrapURL drops the URL, which the caller's words have already.
func unwrapURL(err error) error {
	var e *url.Error
	if errors.As(err, &e) {
		return e.Err
	}
	return err
}
