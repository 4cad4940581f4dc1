package signature

import (
	"bytes"
	"fmt"
	"net/http"
	"strings"
)

// hook0Header has the time, the names of the signed headers, and the signatures.
const hook0Header = "X-Hook0-Signature"

// Names of the entries in hook0Header. We ignore v0, because it covers no header.
const (
	hook0Time      = "t"
	hook0Names     = "h"
	hook0Signature = "v1"
)

// readHook0 parses the signature of Hook0, which delivers the webhooks of Coinbase. The signature covers the
// time, the names and the values of the headers that it lists, and the body, joined with full stops. So that
// the signed text can be split in one way only, no value but the last may contain a full stop, and the body
// must begin with a bracket, which no value contains.
func (v *Verifier) readHook0(r Request) (unverified, error) {
	list, err := one(r.Header, hook0Header)
	if err != nil {
		return unverified{}, err
	}
	entries, err := split(hook0Header, list, ",", "=")
	if err != nil {
		return unverified{}, err
	}
	u := unverified{}
	if u.timestamp, err = onlyEntry(entries, hook0Time); err != nil {
		return unverified{}, err
	}
	names, err := onlyEntry(entries, hook0Names)
	if err != nil {
		return unverified{}, err
	}
	values, err := hook0Values(r.Header, strings.Split(names, " "))
	if err != nil {
		return unverified{}, err
	}
	if u.signatures, err = v.decodeAll(hook0Header, entries, hook0Signature); err != nil {
		return unverified{}, err
	}
	u.before = strings.Join([]string{u.timestamp, names, values, ""}, ".")
	return u, nil
}

// hook0Values returns the values of these headers, joined with full stops.
func hook0Values(header http.Header, names []string) (string, error) {
	if len(names) > signaturesMax {
		return "", fmt.Errorf("header %s: %w: it names more than %d headers", hook0Header, ErrMalformed, signaturesMax)
	}
	values := make([]string, len(names))
	for i, name := range names {
		if !isToken(name) || strings.Contains(name, ".") {
			return "", fmt.Errorf("header %s: %w: want names of headers without full stops in %s", hook0Header, ErrMalformed, hook0Names)
		}
		value, err := one(header, http.CanonicalHeaderKey(name))
		if err != nil {
			return "", err
		}
		if strings.ContainsAny(value, "{[") || i < len(names)-1 && strings.Contains(value, ".") {
			return "", fmt.Errorf("header %s: %w: its value has another reading", http.CanonicalHeaderKey(name), ErrMalformed)
		}
		values[i] = value
	}
	return strings.Join(values, "."), nil
}

// onlyEntry returns the value of an entry that may come only once.
func onlyEntry(entries []entry, name string) (string, error) {
	value := ""
	for _, e := range entries {
		switch {
		case e.name != name:
		case value != "":
			return "", fmt.Errorf("header %s: %w: it has two entries %s, want one", hook0Header, ErrMalformed, name)
		default:
			value = e.value
		}
	}
	if value == "" {
		return "", fmt.Errorf("header %s: %w: want an entry %s", hook0Header, ErrMissing, name)
	}
	return value, nil
}

// beginsWithBracket reports whether a body begins like a JSON object or list, without white space before it.
func beginsWithBracket(body []byte) bool {
	return bytes.HasPrefix(body, []byte("{")) || bytes.HasPrefix(body, []byte("["))
}
