package signature

import (
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"net/http"
	"strings"
)

// listHeaders has the names of the headers of a scheme whose header of signatures is a list.
type listHeaders struct{ signatures, id, timestamp string }

var standardHeaders = map[Scheme]listHeaders{
	StandardWebhooks: {"Webhook-Signature", "Webhook-Id", "Webhook-Timestamp"},
	Svix:             {"Svix-Signature", "Svix-Id", "Svix-Timestamp"},
}

// pairList describes a header that is a list of names and values: a timestamp and signatures.
type pairList struct {
	header               string
	between, within      string // separators of pairs, and of name and value
	timestamp, signature string // names of the entries
	afterTimestamp       string // signed text between timestamp and body
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
	case Bearer, Token, None: // Verify handles these schemes before it calls read
	}
	return unverified{}, ErrNoSecret
}

// readSingle parses a header with a single signature, and the header of the timestamp if the scheme has one.
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

// readStandard parses the three headers of Standard Webhooks or of Svix.
func (v *Verifier) readStandard(header http.Header) (unverified, error) {
	id, err := one(header, v.list.id)
	if err != nil {
		return unverified{}, err
	}
	// The specification forbids full stops in ids. If the verifier accepted them, an attacker could use the id
	// and the timestamp of a genuine request, joined by a full stop, as the id of a forged request, and the
	// beginning of the genuine body as its timestamp: the signed text would stay the same.
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

// readPairs parses a header that is a list with a timestamp and signatures.
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
		// If there were two timestamps, the verifier could check one of them although the sender signed the
		// other.
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

// decodeAll decodes the signatures in a list that have this name. A signature that cannot be decoded is no
// reason to refuse the others: a sender may be moving to a key or a format that this version does not know.
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

// one returns the value of a header that may come only once: if it came twice, another reader of the request
// could use the other value. name is in canonical form.
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

// split returns the entries of a list, which may have at most signaturesMax parts. It leaves out parts that are
// no name and value. It ignores spaces before an entry: a proxy joins two lines of the same header with a comma
// and a space, and the entries of both lines must be seen.
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

// decode decodes a signature, which must have its full length: a forger would guess a signature of one byte in
// 256 attempts. decode drops the errors of the decoders, because they quote their input.
func (v *Verifier) decode(header, text string) ([]byte, error) {
	var signature []byte
	var err error
	if v.encoding == base64Encoding {
		signature, err = base64.StdEncoding.Strict().DecodeString(text)
	} else {
		signature, err = hex.DecodeString(text)
	}
	// The base64 decoder ignores line ends, so we check the length of the text too. A signature then has only
	// one spelling, except for the case of hexadecimal digits.
	if err != nil || len(signature) != v.size || len(text) != v.textBytes() {
		return nil, fmt.Errorf("header %s: %w: want a signature of %d bytes in %s", header, ErrMalformed, v.size, v.encoding)
	}
	return signature, nil
}

// textBytes returns the length of an encoded signature.
func (v *Verifier) textBytes() int {
	if v.encoding == base64Encoding {
		return base64.StdEncoding.EncodedLen(v.size)
	}
	return hex.EncodedLen(v.size)
}
