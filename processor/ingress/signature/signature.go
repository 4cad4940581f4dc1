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

// What Verify returns, wrapped with the name of the header at fault. No text
// contains a secret, a signature or a part of the body. A sender needs no more
// than that it was refused; the difference is for the operator's log.
var (
	// ErrMissing: the request has no signature of the scheme, or lacks a
	// header that the signature covers.
	ErrMissing = errors.New("signature is missing")

	// ErrMalformed: a header of the scheme cannot be read, is too long or
	// comes twice.
	ErrMalformed = errors.New("signature is malformed")

	// ErrStale: the timestamp is further from the clock than may be, in either
	// direction. A captured request that is sent again, or a clock that is
	// wrong.
	ErrStale = errors.New("signature is stale")

	// ErrWrong: no secret gives the signature that was sent.
	ErrWrong = errors.New("signature is wrong")

	// ErrNoSecret: there is no secret to verify with, so everything is
	// refused. The operator's mistake and not the sender's.
	ErrNoSecret = errors.New("no usable secret")
)

const (
	// headerBytesMax bounds the value of each header that is read, and so the
	// length of a bearer token.
	headerBytesMax = 4096

	// signaturesMax bounds the entries of a header that is a list, those of
	// other versions included. Senders have one per active secret and version.
	signaturesMax = 16

	// timestampDigitsMax is enough for seconds of the next 30,000 years, and
	// too few for today's milliseconds.
	timestampDigitsMax = 12
)

// Verifier verifies the requests of one scheme. It is made by New; the zero
// value refuses everything. It does not change, so that any number of
// goroutines may use it.
type Verifier struct {
	scheme          Scheme
	header          string           // with the signature; canonical; of GitHub, Slack and HMAC
	prefix          string           // before the signature in its header
	timestampHeader string           // canonical; "" if there is none
	version         string           // signed before the timestamp
	separator       string           // signed between timestamp and body
	encoding        string           // of a signature: hex or base64
	newHash         func() hash.Hash // below the HMAC
	size            int              // bytes of a signature
	tolerance       time.Duration    // 0 if the scheme has no timestamp
	ahead           time.Duration    // at most tolerance
}

// claim is what a request says of itself and nobody has verified yet.
type claim struct {
	timestamp  string   // "" if the scheme has none
	before     string   // what is signed before the body
	signatures [][]byte // one of them has to be right
}

// Verify tells whether the request with these headers and this raw body, as it
// came over the wire, was made by somebody who knows one of the secrets, and is
// as young as the tolerance asks. now is the clock. nil means genuine; every
// error means that the request must not be taken, and is one of those above.
//
// Several secrets are active while one is replaced by another. Each is tried,
// whether an earlier one was right or not, and all comparisons take constant
// time, so the time taken says nothing about secrets or signatures. Secrets are
// taken byte for byte: the newline at the end of a file is the caller's to cut.
// One that CheckSecret refuses counts as absent.
//
// The work is that of one HMAC per secret over the body, and only if the
// headers are well-formed and the timestamp is fresh.
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
	c, err := v.read(header)
	if err != nil {
		return err
	}
	if v.tolerance > 0 {
		if err := v.fresh(c.timestamp, now); err != nil {
			return err
		}
	}
	return v.match(keys, c, body)
}

// Headers returns the names of the headers that a request must have: the one
// with the signature first, then those that it covers. Nothing for None.
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
	}
	if v.timestampHeader == "" {
		return []string{v.header}
	}
	return []string{v.header, v.timestampHeader}
}

// CheckSecret returns why secret can never verify a request, for the start of
// the process and for a new secret. It says nothing about how hard the secret
// is to guess. The error is an ErrNoSecret.
func (v *Verifier) CheckSecret(secret []byte) error {
	if v.scheme == None {
		return nil
	}
	_, err := v.key(secret)
	return err
}

// key returns the key that secret stands for.
func (v *Verifier) key(secret []byte) ([]byte, error) {
	key := secret
	switch v.scheme {
	case StandardWebhooks:
		// The prefix marks what the text is and is no part of the key. The
		// specification's own libraries take secrets without it as well.
		text := strings.TrimPrefix(string(secret), "whsec_")
		decoded, err := base64.StdEncoding.DecodeString(text)
		if err != nil {
			return nil, fmt.Errorf("%w: want whsec_ and base64, and it is not base64", ErrNoSecret)
		}
		key = decoded
	case Bearer:
		if !isVisible(string(secret)) {
			return nil, fmt.Errorf("%w: a bearer token cannot have spaces, line ends or anything but visible ASCII", ErrNoSecret)
		}
	case GitHub, Stripe, Slack, HMAC:
	case None:
		return nil, nil
	default:
		return nil, fmt.Errorf("%w: the verifier was not made by New", ErrNoSecret)
	}
	// HMAC fills keys up with zeros, so one of zeros only is the empty one.
	if len(bytes.Trim(key, "\x00")) == 0 {
		return nil, fmt.Errorf("%w: it is empty", ErrNoSecret)
	}
	return key, nil
}

// fresh checks that timestamp is Unix seconds in plain digits, and no further
// from now than may be.
func (v *Verifier) fresh(timestamp string, now time.Time) error {
	// ParseInt alone would take signs as well.
	seconds, err := strconv.ParseInt(timestamp, 10, 64)
	if err != nil || !isDigits(timestamp) || len(timestamp) > timestampDigitsMax {
		return fmt.Errorf("%w: the timestamp is not Unix seconds in plain digits", ErrMalformed)
	}
	if age := now.Sub(time.Unix(seconds, 0)); age > v.tolerance || age < -v.ahead {
		return fmt.Errorf("%w: the timestamp is %s old (less than 0: ahead), and the tolerance is %s, ahead %s",
			ErrStale, age.Round(time.Millisecond), v.tolerance, v.ahead)
	}
	return nil
}

// match computes the signature of what c claims to be signed with every key,
// and compares each with every signature of c.
func (v *Verifier) match(keys [][]byte, c claim, body []byte) error {
	matched := 0
	sum := make([]byte, 0, v.size)
	for _, key := range keys {
		mac := hmac.New(v.newHash, key)
		mac.Write([]byte(c.before))
		mac.Write(body)
		sum = mac.Sum(sum[:0])
		for _, signature := range c.signatures {
			matched |= subtle.ConstantTimeCompare(sum, signature)
		}
	}
	if matched != 1 {
		return ErrWrong
	}
	return nil
}

// verifyBearer checks the token of the Authorization header against keys. It
// compares digests, so that not even the length of a secret can be measured.
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
