package signature

import (
	"crypto/sha256"
	"crypto/subtle"
	"encoding/hex"
	"fmt"
	"mime"
	"net/url"
	"slices"
)

// formType is the media type of a form that Twilio signs.
const formType = "application/x-www-form-urlencoded"

// bodyDigest is the parameter of the URL that has the digest of a body that is no form.
const bodyDigest = "bodySHA256"

// fullURL returns the URL as its sender has it.
func (v *Verifier) fullURL(r Request) string {
	if r.Query == "" {
		return v.url
	}
	return v.url + "?" + r.Query
}

// readTwilio parses the signature of Twilio. It covers the URL and the fields of a form;
// of any other body the URL has the digest.
func (v *Verifier) readTwilio(r Request) (unverified, error) {
	u, err := v.readSingle(r.Header)
	if err != nil {
		return unverified{}, err
	}
	u.before, u.content = v.fullURL(r), []byte{}
	kind, _, err := mime.ParseMediaType(r.Header.Get("Content-Type"))
	if err == nil && kind == formType {
		// net/http joins nothing: with two headers the reader of the event could see another one.
		if _, err := one(r.Header, "Content-Type"); err != nil {
			return unverified{}, err
		}
		u.content, err = appendForm(u.content, r.Body)
		return u, err
	}
	query, err := url.ParseQuery(r.Query)
	if err != nil {
		return unverified{}, fmt.Errorf("query: %w: it cannot be parsed", ErrMalformed)
	}
	digests := query[bodyDigest]
	if len(digests) != 1 {
		return unverified{}, fmt.Errorf("parameter %s: %w: a body that is no form needs one", bodyDigest, ErrMissing)
	}
	sum := sha256.Sum256(r.Body)
	if subtle.ConstantTimeCompare([]byte(hex.EncodeToString(sum[:])), []byte(digests[0])) != 1 {
		return unverified{}, fmt.Errorf("parameter %s: %w: the body has another digest", bodyDigest, ErrWrong)
	}
	return u, nil
}

// appendForm appends the names and values of a form, sorted, each pair once.
func appendForm(dst, body []byte) ([]byte, error) {
	form, err := url.ParseQuery(string(body))
	if err != nil { // its text has parts of the body
		return nil, fmt.Errorf("form: %w: it cannot be parsed", ErrMalformed)
	}
	names := make([]string, 0, len(form))
	for name := range form {
		names = append(names, name)
	}
	slices.Sort(names)
	for _, name := range names {
		slices.Sort(form[name])
		for _, value := range slices.Compact(form[name]) {
			dst = append(append(dst, name...), value...)
		}
	}
	return dst, nil
}
