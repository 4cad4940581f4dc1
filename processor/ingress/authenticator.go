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
	keys      *keyring // nil for scheme none, which has no secrets
	challenge string   // value of the header WWW-Authenticate
	signs     bool     // the signature covers the body
}

// errQuestion means that someone captured a GET and sends its signature with an event or an outcome.
var errQuestion = errors.New("the body is the text that a GET signs")

// verifyBody verifies a request with a body. The signature of a GET covers the requested path in place of a
// body, so a body that is such a path is rejected: otherwise anyone who has captured a GET could send the path
// as an event.
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

// verifyHead does the part of verify that is possible before the body is read.
func (a *authenticator) verifyHead(r signature.Request, now time.Time) error {
	return a.verifier.VerifyHead(a.secrets(), r, now)
}

func (a *authenticator) secrets() [][]byte {
	if a.keys == nil {
		return nil
	}
	return a.keys.secrets()
}

// signedWith returns the secret with which a valid request was signed: during a rotation the sender may use
// either of two secrets. If neither secret verifies the request in its present form, because the body was
// decompressed after the verification, signedWith returns the current secret.
func (a *authenticator) signedWith(r signature.Request, now time.Time) []byte {
	secrets := a.keys.secrets()
	for _, secret := range secrets {
		if a.verifier.Verify([][]byte{secret}, r, now) == nil {
			return secret
		}
	}
	return secrets[0]
}

// requestToVerify returns what the signature of a request without a body covers: target, in place of the body.
// A captured signature is therefore good for this target only.
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

// aheadOf returns how far a timestamp may be ahead of the server's clock. A request whose timestamp is in the
// future is valid for longer, by as much as the timestamp is ahead. For all that time a replay of the request
// must be a duplicate, so the window bounds how far ahead a timestamp may be.
func aheadOf(s *rules.Signature, window time.Duration) time.Duration {
	return min(s.Tolerance, window-s.Tolerance)
}

// challenge returns the value of WWW-Authenticate for a 401 (RFC 9110, section 11.6.1).
func challenge(s *rules.Signature) string {
	if s.Scheme == rules.Bearer {
		return "Bearer"
	}
	return fmt.Sprintf("Signature scheme=%q", s.Scheme)
}

// signatureReasons has, for each error that leads to a 401, the value of the metric's label. The reasons are
// for the operator; the sender learns only that the signature was rejected.
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
