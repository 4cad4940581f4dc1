package signature

import (
	"bytes"
	"crypto/hmac"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base64"
	"errors"
	"fmt"
	"hash"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// The errors of Verify, wrapped with the name of the header. No text contains a
// secret, a signature or a part of the body. The sender learns only that the
// signature was refused; the operator's log has the error.
var (
	// ErrMissing: the request lacks a signature of the scheme, or a header that
	// the signature covers.
	ErrMissing = errors.New("signature is missing")

	// ErrMalformed: a header of the scheme cannot be parsed, is too long or
	// comes twice.
	ErrMalformed = errors.New("signature is malformed")

	// ErrStale: the timestamp is too far from the clock, in either direction:
	// a replayed request, or a wrong clock.
	ErrStale = errors.New("signature is stale")

	// ErrWrong: no secret produces the signature that was sent.
	ErrWrong = errors.New("signature is wrong")

	// ErrNoSecret: there is no usable secret, so every request is refused. The
	// operator has to correct that.
	ErrNoSecret = errors.New("no usable secret")
)

const (
	// headerBytesMax is the longest value of a header, and so of a bearer
	// token.
	headerBytesMax = 4096

	// signaturesMax is the most entries of a list header, those of other
	// versions included. Senders have one per active secret and version.
	signaturesMax = 16

	// secretBytesMin is the shortest key that is hard to guess: one captured request
	// is enough to try guesses without sending any.
	secretBytesMin = 16

	// timestampDigitsMax allows seconds of the next 30,000 years, and no
	// milliseconds of today.
	timestampDigitsMax = 12
)

// Verifier verifies the requests of one scheme. New makes one; the zero value
// refuses every request. It is immutable, so concurrent use is safe.
type Verifier struct {
	scheme          Scheme
	header          string           // of the signature; canonical; for GitHub, Slack and HMAC
	prefix          string           // precedes the signature in its header
	timestampHeader string           // canonical; "" for none
	version         string           // signed before the timestamp
	separator       string           // signed between timestamp and body
	encoding        string           // of a signature: hex or base64
	newHash         func() hash.Hash // of the HMAC
	size            int              // bytes of a signature
	tolerance       time.Duration    // 0 if the scheme has no timestamp
	ahead           time.Duration    // at most tolerance
}

// unverified is the parsed headers of a request, before verification.
type unverified struct {
	timestamp  string   // "" if the scheme has none
	before     string   // signed before the body
	signatures [][]byte // one must be right
}

// Verify returns nil if the request was signed with one of the secrets and the
// timestamp is within the tolerance of now. body is the raw body as received. Every
// other request must be rejected; the error is one of those above.
//
// Several secrets are valid during a rotation. Verify tries each, even after a match,
// and compares in constant time, so that its duration reveals nothing about secrets
// or signatures. Secrets are used byte for byte: the caller removes the newline that
// ends a file. A secret without a key, such as an empty one, counts as absent. The
// caller has checked the others with CheckSecret.
//
// It computes one HMAC of the body per secret, and only if the headers are
// well-formed and the timestamp is fresh.
func (v *Verifier) Verify(secrets [][]byte, header http.Header, body []byte, now time.Time) error {
	if v.scheme == None {
		return nil
	}
	keys := make([][]byte, 0, len(secrets))
	for _, secret := range secrets {
		if key, err := v.key(secret); err == nil {
			keys = append(keys, key)
		}
	}
	if len(keys) == 0 {
		return ErrNoSecret
	}
	if v.scheme == Bearer {
		return verifyBearer(keys, header)
	}
	u, err := v.read(header)
	if err != nil {
		return err
	}
	if v.tolerance > 0 {
		if err := v.fresh(u.timestamp, now); err != nil {
			return err
		}
	}
	return v.match(keys, u, body)
}

// Headers returns the names of the headers that a request must have: the
// signature's first, then those that it covers. None has no header.
func (v *Verifier) Headers() []string {
	switch v.scheme {
	case None:
		return nil
	case Bearer:
		return []string{"Authorization"}
	case StandardWebhooks:
		return []string{standardList, standardID, standardTimestamp}
	case Stripe:
		return []string{stripeList}
	case GitHub, Slack, HMAC:
	}
	if v.timestampHeader == "" {
		return []string{v.header}
	}
	return []string{v.header, v.timestampHeader}
}

// CheckSecret returns why secret must not verify requests, for use at the start and
// at a rotation: it has no key, or a key of less than secretBytesMin bytes. The
// error is an ErrNoSecret.
func (v *Verifier) CheckSecret(secret []byte) error {
	if v.scheme == None {
		return nil
	}
	key, err := v.key(secret)
	if err != nil {
		return err
	}
	// HMAC pads keys with zeros, so those at the end make no key longer.
	if n := len(bytes.TrimRight(key, "\x00")); n < secretBytesMin {
		return fmt.Errorf("%w: its key has %d bytes and can be guessed, want at least %d: %s", ErrNoSecret, n, secretBytesMin, v.howToMakeSecret())
	}
	return nil
}

// howToMakeSecret returns what the operator can do about a secret.
func (v *Verifier) howToMakeSecret() string {
	if v.scheme == StandardWebhooks {
		return "give sender and ingress whsec_ and the output of: openssl rand -base64 32"
	}
	return "give sender and ingress the output of: openssl rand -hex 32"
}

// key returns the key of the HMAC, or the token, of a secret.
func (v *Verifier) key(secret []byte) ([]byte, error) {
	key := secret
	switch v.scheme {
	case StandardWebhooks:
		// The prefix is not part of the key. The specification's libraries
		// accept secrets without it, too.
		text := strings.TrimPrefix(string(secret), "whsec_")
		decoded, err := base64.StdEncoding.DecodeString(text)
		if err != nil {
			return nil, fmt.Errorf("%w: want whsec_ and base64, it is not base64", ErrNoSecret)
		}
		key = decoded
	case Bearer:
		if !isVisible(string(secret)) {
			return nil, fmt.Errorf("%w: a bearer token must be visible ASCII, without spaces and line ends", ErrNoSecret)
		}
	case GitHub, Stripe, Slack, HMAC:
	case None:
		return nil, nil
	default:
		return nil, fmt.Errorf("%w: the verifier was not made by New", ErrNoSecret)
	}
	// HMAC pads keys with zeros, so a key of zeros equals the empty key.
	if len(bytes.Trim(key, "\x00")) == 0 {
		return nil, fmt.Errorf("%w: it is empty", ErrNoSecret)
	}
	return key, nil
}

// fresh checks that timestamp is Unix seconds in plain digits, within the
// tolerance of now.
func (v *Verifier) fresh(timestamp string, now time.Time) error {
	// ParseInt alone would accept signs.
	seconds, err := strconv.ParseInt(timestamp, 10, 64)
	if err != nil || !isDigits(timestamp) || len(timestamp) > timestampDigitsMax {
		return fmt.Errorf("%w: want a timestamp of Unix seconds in plain digits", ErrMalformed)
	}
	if age := now.Sub(time.Unix(seconds, 0)); age > v.tolerance || age < -v.ahead {
		return fmt.Errorf("%w: the timestamp is %s old (negative: ahead), the tolerance is %s, ahead %s",
			ErrStale, age.Round(time.Millisecond), v.tolerance, v.ahead)
	}
	return nil
}

// match signs the request with every key and compares each result with every
// signature of u.
func (v *Verifier) match(keys [][]byte, u unverified, body []byte) error {
	matched := 0
	sum := make([]byte, 0, v.size)
	for _, key := range keys {
		mac := hmac.New(v.newHash, key)
		mac.Write([]byte(u.before))
		mac.Write(body)
		sum = mac.Sum(sum[:0])
		for _, signature := range u.signatures {
			matched |= subtle.ConstantTimeCompare(sum, signature)
		}
	}
	if matched != 1 {
		return ErrWrong
	}
	return nil
}

// verifyBearer compares the token of the Authorization header with keys. It
// compares digests, so that the duration does not reveal a secret's length.
func verifyBearer(keys [][]byte, header http.Header) error {
	value, err := one(header, "Authorization")
	if err != nil {
		return err
	}
	scheme, token, _ := strings.Cut(value, " ")
	if !strings.EqualFold(scheme, "Bearer") {
		return fmt.Errorf("header Authorization: %w: want Bearer and a token", ErrMissing)
	}
	token = strings.TrimLeft(token, " ")
	if token == "" || !isVisible(token) {
		return fmt.Errorf("header Authorization: %w: want Bearer and one token", ErrMalformed)
	}
	got := sha256.Sum256([]byte(token))
	matched := 0
	for _, key := range keys {
		want := sha256.Sum256(key)
		matched |= subtle.ConstantTimeCompare(got[:], want[:])
	}
	if matched != 1 {
		return fmt.Errorf("header Authorization: %w", ErrWrong)
	}
	return nil
}
