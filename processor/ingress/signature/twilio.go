package signature

import (
	"bytes"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/hex"
	"fmt"
	"mime"
	"net/url"
	"slices"
	"strings"
)

// formType is the media type of a form whose fields Twilio signs.
const formType = "application/x-www-form-urlencoded"

// bodyDigest is the parameter of the URL that has the digest of a body that is not a form.
const bodyDigest = "bodySHA256"

// checkQuery checks that the request has exactly the query of the configured URL. The signed text has no border
// between the URL and the content. If the verifier accepted any query, an attacker could move the beginning of
// the content into the query: the signed text would stay the same, and the rest of the content would be another
// event.
func (v *Verifier) checkQuery(query string) error {
	if query != v.urlQuery {
		return fmt.Errorf("query: %w: the request has another one than the configured url", ErrWrong)
	}
	return nil
}

// defaultPorts has the port of a URL that names none.
var defaultPorts = map[string]string{"https": ":443", "http": ":80"}

// otherPort returns the URL without its port or, if it has no port, with the default port of its scheme. It
// returns "" for a URL without a path, because no border would separate the port from the form.
func otherPort(text string) string {
	u, err := url.Parse(text)
	if err != nil || u.Path == "" {
		return ""
	}
	host := u.Host + defaultPorts[u.Scheme]
	if port := u.Port(); port != "" {
		host = strings.TrimSuffix(u.Host, ":"+port)
	}
	return strings.Replace(text, "//"+u.Host, "//"+host, 1)
}

// spellings returns the texts that may be signed before the content. Twilio sometimes signs the URL with its
// port and sometimes without, so the verifier tries both.
func (v *Verifier) spellings(before string) []string {
	if v.urlOther == "" {
		return []string{before}
	}
	return []string{before, v.urlOther + strings.TrimPrefix(before, v.url)}
}

// readTwilio parses the signature of Twilio, which covers the URL and the fields of a form. For any other body,
// Twilio appends the digest of the body to the URL's own query.
func (v *Verifier) readTwilio(r Request) (unverified, error) {
	u, err := v.readSingle(r.Header)
	if err != nil {
		return unverified{}, err
	}
	u.before, u.content = v.url, []byte{}
	kind, _, err := mime.ParseMediaType(r.Header.Get("Content-Type"))
	if err == nil && kind == formType {
		// net/http does not join repeated headers: if there were two Content-Type headers, the reader of the
		// event could use the other one.
		if _, err := one(r.Header, "Content-Type"); err != nil {
			return unverified{}, err
		}
		if err := v.checkQuery(r.Query); err != nil {
			return unverified{}, err
		}
		u.content, err = appendForm(u.content, r.Body)
		if err == nil && bytes.ContainsAny(u.content[:min(1, len(u.content))], "?&") { // otherwise the form could pass for the digest of another body
			err = fmt.Errorf("form: %w: its first name begins a query", ErrMalformed)
		}
		return u, err
	}
	before, digest, ok := strings.Cut(r.Query, bodyDigest+"=")
	if !ok {
		return unverified{}, fmt.Errorf("parameter %s: %w: a body that is no form needs one", bodyDigest, ErrMissing)
	}
	separator := "?"
	if v.urlQuery != "" {
		separator, before = "&", strings.TrimSuffix(before, "&")
	}
	if err := v.checkQuery(before); err != nil {
		return unverified{}, err
	}
	sum := sha256.Sum256(r.Body)
	if subtle.ConstantTimeCompare([]byte(hex.EncodeToString(sum[:])), []byte(digest)) != 1 {
		return unverified{}, fmt.Errorf("parameter %s: %w: the body has another digest", bodyDigest, ErrWrong)
	}
	u.before += separator + bodyDigest + "=" + digest
	return u, nil
}

// appendForm appends the names and values of a form, sorted, each pair once.
func appendForm(dst, body []byte) ([]byte, error) {
	form, err := url.ParseQuery(string(body))
	if err != nil { // its text quotes the body
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
