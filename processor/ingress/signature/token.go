package signature

import (
	"crypto/sha256"
	"crypto/subtle"
	"fmt"
	"net/http"
	"net/url"
	"strings"
)

// verifyBearer compares the token of the Authorization header with keys.
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
	if !EqualToken(token, keys...) {
		return fmt.Errorf("header Authorization: %w", ErrWrong)
	}
	return nil
}

// verifyToken compares the token of the scheme's header or URL parameter with keys.
func (v *Verifier) verifyToken(keys [][]byte, r Request) error {
	var token string
	place := "header " + v.header
	if v.query != "" {
		place = "parameter " + v.query
		values, err := url.ParseQuery(r.Query)
		switch {
		case err != nil: // its text quotes the query
			return fmt.Errorf("query: %w: it cannot be parsed", ErrMalformed)
		case len(values[v.query]) == 0 || values[v.query][0] == "":
			return fmt.Errorf("%s: %w", place, ErrMissing)
		case len(values[v.query]) > 1:
			return fmt.Errorf("%s: %w: it came %d times, want one", place, ErrMalformed, len(values[v.query]))
		}
		token = values[v.query][0]
	} else {
		value, err := one(r.Header, v.header)
		if err != nil {
			return err
		}
		var ok bool
		if token, ok = strings.CutPrefix(value, v.prefix); !ok || token == "" {
			return fmt.Errorf("%s: %w: want a value that begins with %q", place, ErrMissing, v.prefix)
		}
	}
	if !isVisible(token) {
		return fmt.Errorf("%s: %w: want one token", place, ErrMalformed)
	}
	if !EqualToken(token, keys...) {
		return fmt.Errorf("%s: %w", place, ErrWrong)
	}
	return nil
}

// EqualToken reports whether token equals one of the keys. It compares digests in constant time, so that its
// duration does not reveal the length of a secret.
func EqualToken(token string, keys ...[]byte) bool {
	got := sha256.Sum256([]byte(token))
	matched := 0
	for _, key := range keys {
		want := sha256.Sum256(key)
		matched |= subtle.ConstantTimeCompare(got[:], want[:])
	}
	return matched == 1
}
