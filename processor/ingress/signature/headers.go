package signature

import (
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"net/http"
	"strings"
)

// listHeaders are the headers of a scheme whose signatures are a list.
type listHeaders struct{ signatures, id, timestamp string }

var standardHeaders = map[Scheme]listHeaders{
	StandardWebhooks: {"Webhook-Signature", "Webhook-Id", "Webhook-Timestamp"},
	Svix:             {"Svix-Signature", "Svix-Id", "Svix-Timestamp"},
}

// pairList is a list of names and values in one header: a timestamp and signatures.
type pairList struct {
	header               string
	between, within      string // pairs, name and value
	timestamp, signature string // names
	afterTimestamp       string // signed between timestamp and body
}

var pairLists = map[Scheme]pairList{
	Stripe: {"Stripe-Signature", ",", "=", "t", "v1", "."},
	Paddle: {"Paddle-Signature", ";", "=", "ts", "h1", ":"},
}

// read parses the signature of a request.
func (v *Verifier) read(r Request) (unverified, error) {
	u, err := v.readHeaders(r)
	if bracketed := v.scheme == Discord || v.scheme == SendGrid || v.scheme == Hook0; err == nil && bracketed && !beginsWithBracket(r.Body) {
		return unverified{}, fmt.Errorf("body: %w: want a JSON object or list", ErrMalformed)
	}
	if u.content == nil {
		u.content = r.Body
	}
	return u, err
}

func (v *Verifier) readHeaders(r Request) (unverified, error) {
	switch v.scheme {
	case StandardWebhooks, Svix:
		return v.readStandard(r.Header)
	case Stripe, Paddle:
		return v.readPairs(r.Header, pairLists[v.scheme])
	case GitHub, Slack, Zoom, HMAC:
		return v.readSingle(r.Header)
	case Square:
		if err := v.checkQuery(r.Query); err != nil {
			return unverified{}, err
		}
		u, err := v.readSingle(r.Header)
		u.before = v.url
		return u, err
	case Twilio:
		return v.readTwilio(r)
	case Adyen:
		return v.readAdyen(r)
	case Discord, SendGrid:
		return v.readPublic(r)
	case PayPal:
		return v.readPayPal(r)
	case Hook0:
		return v.readHook0(r)
	case Bearer, Token, None: // Verify returns before
	}
	return unverified{}, ErrNoSecret
}

// readSingle parses a header with one signature, and the timestamp's header if
// the scheme has one.
func (v *Verifier) readSingle(header http.Header) (unverified, error) {
	value, err := one(header, v.header)
	if err != nil {
		return unverified{}, err
	}
	text, ok := strings.CutPrefix(value, v.prefix)
	if !ok {
		return unverified{}, fmt.Errorf("header %s: %w: want a value that begins with %q", v.header, ErrMalformed, v.prefix)
	}
	signature, err := v.decode(v.header, text)
	if err != nil {
		return unverified{}, err
	}
	u := unverified{signatures: [][]byte{signature}}
	if v.timestampHeader != "" {
		if u.timestamp, err = one(header, v.timestampHeader); err != nil {
			return unverified{}, err
		}
		u.before = v.version + u.timestamp + v.separator
	}
	return u, nil
}

// readStandard parses the three headers of Standard Webhooks, or of Svix.
func (v *Verifier) readStandard(header http.Header) (unverified, error) {
	id, err := one(header, v.list.id)
	if err != nil {
		return unverified{}, err
	}
	// The specification forbids full stops in ids. With them, id and timestamp
	// of a genuine request could form the id of a forged one, whose timestamp
	// is the beginning of the body.
	if strings.Contains(id, ".") {
		return unverified{}, fmt.Errorf("header %s: %w: ids must not contain a full stop", v.list.id, ErrMalformed)
	}
	timestamp, err := one(header, v.list.timestamp)
	if err != nil {
		return unverified{}, err
	}
	list, err := one(header, v.list.signatures)
	if err != nil {
		return unverified{}, err
	}
	entries, err := split(v.list.signatures, list, " ", ",")
	if err != nil {
		return unverified{}, err
	}
	u := unverified{timestamp: timestamp, before: id + "." + timestamp + "."}
	if u.signatures, err = v.decodeAll(v.list.signatures, entries, "v1"); err != nil {
		return unverified{}, err
	}
	return u, nil
}

// readPairs parses a header with a timestamp and signatures.
func (v *Verifier) readPairs(header http.Header, l pairList) (unverified, error) {
	list, err := one(header, l.header)
	if err != nil {
		return unverified{}, err
	}
	entries, err := split(l.header, list, l.between, l.within)
	if err != nil {
		return unverified{}, err
	}
	var u unverified
	for _, e := range entries {
		if e.name != l.timestamp {
			continue
		}
		// Of two timestamps, one could be checked and the other signed.
		if u.timestamp != "" {
			return unverified{}, fmt.Errorf("header %s: %w: it has two timestamps, want one", l.header, ErrMalformed)
		}
		u.timestamp = e.value
	}
	if u.timestamp == "" {
		return unverified{}, fmt.Errorf("header %s: %w: want both %s and %s", l.header, ErrMissing, l.timestamp, l.signature)
	}
	if u.signatures, err = v.decodeAll(l.header, entries, l.signature); err != nil {
		return unverified{}, err
	}
	u.before = u.timestamp + l.afterTimestamp
	return u, nil
}

// decodeAll decodes the signatures of a list that have the name. One that cannot be decoded is no
// reason to refuse the others: a sender may rotate to a key or a format that this
// version does not know.
func (v *Verifier) decodeAll(header string, entries []entry, name string) (signatures [][]byte, err error) {
	for _, e := range entries {
		if e.name != name {
			continue
		}
		signature, malformed := v.decode(header, e.value)
		if malformed != nil {
			err = malformed
			continue
		}
		signatures = append(signatures, signature)
	}
	switch {
	case len(signatures) > 0:
		return signatures, nil
	case err != nil:
		return nil, err
	}
	return nil, fmt.Errorf("header %s: %w: want an entry %s", header, ErrMissing, name)
}

// one returns the value of a header that must come once: of two values, another
// reader of the request could use the other one. name is canonical.
func one(header http.Header, name string) (string, error) {
	values := header[name]
	switch {
	case len(values) == 0:
		return "", fmt.Errorf("header %s: %w", name, ErrMissing)
	case len(values) > 1:
		return "", fmt.Errorf("header %s: %w: it came %d times, want one", name, ErrMalformed, len(values))
	case values[0] == "":
		return "", fmt.Errorf("header %s: %w: it is empty", name, ErrMissing)
	case len(values[0]) > headerBytesMax:
		return "", fmt.Errorf("header %s: %w: it is longer than %d bytes", name, ErrMalformed, headerBytesMax)
	}
	return values[0], nil
}

// entry is an element of a list header.
type entry struct{ name, value string }

// split returns the entries of a list, which has at most signaturesMax parts. It leaves
// out what is no name and value. A proxy joins two header lines with a comma and a
// space, so a space before an entry does not count: the entries of both are seen.
func split(header, list, between, within string) ([]entry, error) {
	parts := strings.SplitN(list, between, signaturesMax+1)
	if len(parts) > signaturesMax {
		return nil, fmt.Errorf("header %s: %w: it has more than %d entries", header, ErrMalformed, signaturesMax)
	}
	var entries []entry
	for _, part := range parts {
		name, value, ok := strings.Cut(strings.TrimLeft(part, " "), within)
		if ok && name != "" && value != "" {
			entries = append(entries, entry{name, value})
		}
	}
	if len(entries) == 0 {
		return nil, fmt.Errorf("header %s: %w: no entry is a name and a value", header, ErrMalformed)
	}
	return entries, nil
}

// decode decodes a signature, which must be complete: a forger would guess one
// byte in 256 attempts. The decoders' errors quote their input, so they are
// dropped.
func (v *Verifier) decode(header, text string) ([]byte, error) {
	var signature []byte
	var err error
	if v.encoding == base64Encoding {
		signature, err = base64.StdEncoding.Strict().DecodeString(text)
	} else {
		signature, err = hex.DecodeString(text)
	}
	// Base64 ignores line ends, so the length of the text counts too: except for
	// the case of hexadecimal digits, a signature has one spelling.
	if err != nil || len(signature) != v.size || len(text) != v.textBytes() {
		return nil, fmt.Errorf("header %s: %w: want a signature of %d bytes in %s", header, ErrMalformed, v.size, v.encoding)
	}
	return signature, nil
}

// textBytes returns the length of a signature in its header.
func (v *Verifier) textBytes() int {
	if v.encoding == base64Encoding {
		return base64.StdEncoding.EncodedLen(v.size)
	}
	return hex.EncodedLen(v.size)
}
