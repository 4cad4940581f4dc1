package signature

import (
	"crypto/hmac"
	"crypto/subtle"
	"errors"
	"hash"
	"net/http"
	"time"
)

// The errors of Verify. Verify wraps them with the name of the header. No error text contains a secret, a
// signature or a part of the body. The sender learns only that the signature was refused; the operator's log
// has the error.
var (
	// ErrMissing: the request lacks a signature of the scheme, or a header that the signature covers.
	ErrMissing = errors.New("signature is missing")

	// ErrMalformed: a header of the scheme cannot be parsed, is too long, or comes twice.
	ErrMalformed = errors.New("signature is malformed")

	// ErrStale: the timestamp is too far in the past or in the future: the request is a replay, or a clock is
	// wrong.
	ErrStale = errors.New("signature is stale")

	// ErrWrong: no secret produces the signature that the request has.
	ErrWrong = errors.New("signature is wrong")

	// ErrNoSecret: there is no usable secret, so the verifier refuses every request until the operator corrects
	// that.
	ErrNoSecret = errors.New("no usable secret")
)

const (
	// headerBytesMax is the longest value of a header, and therefore the longest bearer token.
	headerBytesMax = 4096

	// signaturesMax is the largest number of entries in a list header, including the entries of versions that
	// the verifier ignores. Senders have an entry per active secret and version.
	signaturesMax = 16

	// secretBytesMin is the shortest key that is hard to guess. An attacker who has captured a single request
	// can try guesses offline, without sending any request.
	secretBytesMin = 16

	// timestampDigitsMax is enough for the seconds of the next 30,000 years, but rejects a time of today in
	// milliseconds.
	timestampDigitsMax = 12
)

// Request has the parts of a request that a signature may cover.
type Request struct {
	Header http.Header
	Query  string // of the URL as sent, without the question mark
	Body   []byte // as received
}

// Verifier verifies the requests of one scheme. New makes one; the zero value
// refuses every request. It is immutable, so concurrent use is safe.
type Verifier struct {
	scheme          Scheme
	header          string           // name of the signature's header, canonical; "" if the signature is in a list or elsewhere
	query           string           // name of the URL's parameter with the token
	url             string           // as the sender knows it; only for schemes that sign it
	urlQuery        string           // the query of url; "" for none
	urlOther        string           // url with its port, or without; for Twilio only
	prefix          string           // precedes the signature in its header
	timestampHeader string           // canonical name; "" for none
	version         string           // signed before the timestamp
	separator       string           // signed between timestamp and body
	encoding        string           // of a signature: hex or base64
	newHash         func() hash.Hash // of the HMAC
	size            int              // of a signature, in bytes
	list            listHeaders      // of the schemes whose header of signatures is a list
	tolerance       time.Duration    // 0 if the scheme has no timestamp
	ahead           time.Duration    // at most tolerance
}

// unverified is the parsed signature of a request that has not been verified yet.
type unverified struct {
	timestamp  string   // "" if the scheme has none
	before     string   // signed text before the content
	content    []byte   // the signed body, unless the scheme signs something derived from it
	signatures [][]byte // one of them must be right
}

// Verify returns nil if the request was signed with one of the secrets and its timestamp is within the
// tolerance of now. The caller must reject every other request; the error is one of those above.
//
// During a rotation several secrets are valid. Verify tries all of them, even after a match, and compares in
// constant time, so that its duration reveals nothing about secrets or signatures. It uses secrets byte for
// byte: the caller removes the newline that ends a file. A secret without a key, such as an empty secret,
// counts as absent. The caller has checked the other secrets with CheckSecret.
//
// Per secret, Verify computes one HMAC of the body (two for Twilio), or verifies one public-key signature. It
// does so only if the headers are well-formed and the timestamp is fresh.
func (v *Verifier) Verify(secrets [][]byte, r Request, now time.Time) error {
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
		return verifyBearer(keys, r.Header)
	}
	if v.scheme == Token {
		return v.verifyToken(keys, r)
	}
	u, err := v.read(r)
	if err != nil {
		return err
	}
	if v.tolerance > 0 {
		if err := v.fresh(u.timestamp, now); err != nil {
			return err
		}
	}
	if publicKey[v.scheme] != nil {
		return v.matchPublic(keys, u, now)
	}
	return v.match(keys, u)
}

// VerifyHead returns why a request must be rejected whatever its body is, or nil. Call it before the body is
// read. For a signature it checks that the headers are well-formed and that the timestamp is fresh. Adyen's
// signature is in the body, so VerifyHead accepts every request of Adyen.
func (v *Verifier) VerifyHead(secrets [][]byte, r Request, now time.Time) error {
	if v.scheme == Bearer || v.scheme == Token || v.scheme == None {
		return v.Verify(secrets, r, now)
	}
	if v.scheme == Adyen {
		return nil
	}
	if v.scheme == Twilio { // its other parts need the form or the digest of the body
		_, err := v.readSingle(r.Header)
		return err
	}
	u, err := v.readHeaders(r)
	if err == nil && v.tolerance > 0 {
		err = v.fresh(u.timestamp, now)
	}
	return err
}

// Headers returns the names of the headers that a request must have: first the header of the signature, then
// the headers that it covers. Adyen, None and a token in the URL have no header.
func (v *Verifier) Headers() []string {
	if v.scheme == Bearer {
		return []string{"Authorization"}
	}
	if v.scheme == PayPal {
		return []string{paypalSignature, paypalID, paypalTime, paypalAlgorithm, paypalCertificate}
	}
	var names []string
	for _, name := range []string{v.header, v.list.signatures, v.list.id, v.list.timestamp, v.timestampHeader} {
		if name != "" {
			names = append(names, name)
		}
	}
	return names
}

// Query returns the name of the URL's parameter that has the token; "" if there is none.
func (v *Verifier) Query() string { return v.query }

// match computes the signature of the request with every key. It compares each result with every signature in
// u, and never stops early.
func (v *Verifier) match(keys [][]byte, u unverified) error {
	matched := 0
	sum := make([]byte, 0, v.size)
	befores := v.spellings(u.before)
	for _, key := range keys {
		for _, before := range befores {
			mac := hmac.New(v.newHash, key)
			mac.Write([]byte(before))
			mac.Write(u.content)
			sum = mac.Sum(sum[:0])
			for _, signature := range u.signatures {
				matched |= subtle.ConstantTimeCompare(sum, signature)
			}
		}
	}
	if matched != 1 {
		return ErrWrong
	}
	return nil
}
