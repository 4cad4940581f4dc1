package ingress

import (
	"bytes"
	"errors"
	"fmt"
	"net/http"
	"time"

	"oncebus/dedup/rules"
	"oncebus/processor/ingress/signature"
)

// authenticator verifies that a request was signed with one of the secrets.
type authenticator struct {
	verifier  *signature.Verifier
	keys      *keyring // nil for scheme none
	challenge string   // value of the header WWW-Authenticate
	signs     bool     // the scheme signs the body
}

// errQuestion: a captured GET was made an event, or an outcome.
var errQuestion = errors.New("the body is the text that a GET signs")

// verifyBody is verify for a request with a body, which must not be what a GET signs in its place: a
// captured GET would be an event.
func (a *authenticator) verifyBody(r signature.Request, now time.Time) error {
	if a.signs {
		for _, path := range a.keys.asked {
			rest, ok := bytes.CutPrefix(r.Body, []byte(path))
			if ok && (len(rest) == 0 || rest[0] == '\n' || rest[0] == '/') {
				return errQuestion
			}
		}
	}
	return a.verify(r, now)
}

// verify returns why a request must be rejected, or nil.
func (a *authenticator) verify(r signature.Request, now time.Time) error {
	return a.verifier.Verify(a.secrets(), r, now)
}

// verifyHead is verify before the body is read.
func (a *authenticator) verifyHead(r signature.Request, now time.Time) error {
	return a.verifier.VerifyHead(a.secrets(), r, now)
}

func (a *authenticator) secrets() [][]byte {
	if a.keys == nil {
		return nil
	}
	return a.keys.secrets()
}

// signedWith returns the secret that a valid request was signed with. During a rotation the
// sender has one of two. It returns the current one if neither verifies the request as it is
// now, decompressed.
func (a *authenticator) signedWith(r signature.Request, now time.Time) []byte {
	secrets := a.keys.secrets()
	for _, secret := range secrets {
		if a.verifier.Verify([][]byte{secret}, r, now) == nil {
			return secret
		}
	}
	return secrets[0]
}

// requestToVerify returns what a signature of a request without a body covers: target takes
// the place of the body, so a captured signature is good for this target only.
func requestToVerify(r *http.Request, target string) signature.Request {
	return signature.Request{Header: r.Header, Query: r.URL.RawQuery, Body: []byte(target)}
}

func newVerifier(s *rules.Signature, window time.Duration) (*signature.Verifier, error) {
	return signature.New(signature.Config{
		Scheme: signature.Scheme(s.Scheme.String()), Tolerance: s.Tolerance, Ahead: aheadOf(s, window),
		Header: s.Header, Algorithm: s.Algorithm, Encoding: s.Encoding, Prefix: s.Prefix, TimestampHeader: s.TimestampHeader, Separator: s.Separator,
		URL: s.URL, Query: s.Query,
	})
}

// aheadOf returns how far a timestamp may be ahead of the clock. A request
// signed in the future stays valid for that much longer, and as long as it is
// valid the window must cover its first event.
func aheadOf(s *rules.Signature, window time.Duration) time.Duration {
	return min(s.Tolerance, window-s.Tolerance)
}

// challenge returns the WWW-Authenticate of a 401 (RFC 9110, section 11.6.1).
func challenge(s *rules.Signature) string {
	if s.Scheme == rules.Bearer {
		return "Bearer"
	}
	return fmt.Sprintf("Signature scheme=%q", s.Scheme)
}

// signatureReasons are the values of the metric's label for a 401. They are for
// the operator; the sender learns only that the signature was rejected.
var signatureReasons = []struct {
	err    error
	reason string
}{
	{signature.ErrMissing, "missing"}, {signature.ErrMalformed, "malformed"}, {signature.ErrStale, "stale"}, {signature.ErrWrong, "wrong"}, {errQuestion, "question"},
}

func signatureReason(err error) string {
	for _, r := range signatureReasons {
		if errors.Is(err, r.err) {
			return r.reason
		}
	}
	return "secret" // ErrNoSecret, which keyring.load rules out
}
