package signature

import (
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"net/http"
	"strings"
)

// Headers of the schemes that have several, or a list in one.
const (
	standardID        = "Webhook-Id"
	standardTimestamp = "Webhook-Timestamp"
	standardList      = "Webhook-Signature"
	stripeList        = "Stripe-Signature"
)

// read returns what the headers of the scheme claim.
func (v *Verifier) read(header http.Header) (claim, error) {
	switch v.scheme {
	case StandardWebhooks:
		return v.readStandard(header)
	case Stripe:
		return v.readStripe(header)
	default:
		return v.readSingle(header)
	}
}

// readSingle reads a header with one signature, and the timestamp of another
// where there is one.
func (v *Verifier) readSingle(header http.Header) (claim, error) {
	value, err := one(header, v.header)
	if err != nil {
		return claim{}, err
	}
	text, ok := strings.CutPrefix(value, v.prefix)
	if !ok {
		return claim{}, fmt.Errorf("header %s: %w: it does not begin with %q", v.header, ErrMalformed, v.prefix)
	}
	signature, err := v.decode(v.header, text)
	if err != nil {
		return claim{}, err
	}
	c := claim{signatures: [][]byte{signature}}
	if v.timestampHeader != "" {
		if c.timestamp, err = one(header, v.timestampHeader); err != nil {
			return claim{}, err
		}
		c.before = v.version + c.timestamp + v.separator
	}
	return c, nil
}

// readStandard reads the three headers of Standard Webhooks.
func (v *Verifier) readStandard(header http.Header) (claim, error) {
	id, err := one(header, standardID)
	if err != nil {
		return claim{}, err
	}
	// The specification forbids full stops in ids for this: id and timestamp
	// of a genuine request would together make the id of another one, whose
	// timestamp is the beginning of the body.
	if strings.Contains(id, ".") {
		return claim{}, fmt.Errorf("header %s: %w: it has a full stop", standardID, ErrMalformed)
	}
	timestamp, err := one(header, standardTimestamp)
	if err != nil {
		return claim{}, err
	}
	list, err := one(header, standardList)
	if err != nil {
		return claim{}, err
	}
	entries, err := split(standardList, list, " ", ",")
	if err != nil {
		return claim{}, err
	}
	c := claim{timestamp: timestamp, before: id + "." + timestamp + "."}
	for _, e := range entries {
		if e.name != "v1" {
			continue
		}
		signature, err := v.decode(standardList, e.value)
		if err != nil {
			return claim{}, err
		}
		c.signatures = append(c.signatures, signature)
	}
	if len(c.signatures) == 0 {
		return claim{}, fmt.Errorf("header %s: %w: it has no v1", standardList, ErrMissing)
	}
	return c, nil
}

// readStripe reads Stripe's one header.
func (v *Verifier) readStripe(header http.Header) (claim, error) {
	list, err := one(header, stripeList)
	if err != nil {
		return claim{}, err
	}
	entries, err := split(stripeList, list, ",", "=")
	if err != nil {
		return claim{}, err
	}
	var c claim
	for _, e := range entries {
		switch e.name {
		case "t":
			// Of two timestamps one might be checked and the other signed.
			if c.timestamp != "" {
				return claim{}, fmt.Errorf("header %s: %w: it has two timestamps", stripeList, ErrMalformed)
			}
			c.timestamp = e.value
		case "v1":
			signature, err := v.decode(stripeList, e.value)
			if err != nil {
				return claim{}, err
			}
			c.signatures = append(c.signatures, signature)
		}
	}
	if c.timestamp == "" || len(c.signatures) == 0 {
		return claim{}, fmt.Errorf("header %s: %w: want both t and v1", stripeList, ErrMissing)
	}
	c.before = c.timestamp + "."
	return c, nil
}

// one returns the value of the header, which must come once: of two, another
// reader of the same request might take the other one. name is canonical.
func one(header http.Header, name string) (string, error) {
	values := header[name]
	switch {
	case len(values) == 0:
		return "", fmt.Errorf("header %s: %w", name, ErrMissing)
	case len(values) > 1:
		return "", fmt.Errorf("header %s: %w: it came %d times", name, ErrMalformed, len(values))
	case values[0] == "":
		return "", fmt.Errorf("header %s: %w: it is empty", name, ErrMissing)
	case len(values[0]) > headerBytesMax:
		return "", fmt.Errorf("header %s: %w: it is longer than %d bytes", name, ErrMalformed, headerBytesMax)
	}
	return values[0], nil
}

// entry is a part of a header that is a list.
type entry struct{ name, value string }

// split returns the entries of a list, of which there are at most
// signaturesMax: between stands between two, within between name and value.
// Blanks are in none: the lists of two header lines that a proxy joined with a
// comma and a space are not one list.
func split(header, list, between, within string) ([]entry, error) {
	parts := strings.SplitN(list, between, signaturesMax+1)
	if len(parts) > signaturesMax {
		return nil, fmt.Errorf("header %s: %w: it has more than %d entries", header, ErrMalformed, signaturesMax)
	}
	entries := make([]entry, len(parts))
	for i, part := range parts {
		name, value, ok := strings.Cut(part, within)
		if !ok || name == "" || value == "" || !isVisible(part) {
			return nil, fmt.Errorf("header %s: %w: entry %d is not a name and a value", header, ErrMalformed, i+1)
		}
		entries[i] = entry{name, value}
	}
	return entries, nil
}

// decode returns the signature that text spells, which must be whole: of one
// byte every 256th guess would be right. The decoders' own errors quote what
// they cannot read, and so stay here.
func (v *Verifier) decode(header, text string) ([]byte, error) {
	var signature []byte
	var err error
	if v.encoding == "base64" {
		signature, err = base64.StdEncoding.Strict().DecodeString(text)
	} else {
		signature, err = hex.DecodeString(text)
	}
	// Base64 passes over line ends, so the text is measured too: one signature
	// has one spelling, but for the case of hexadecimal digits.
	if err != nil || len(signature) != v.size || len(text) != v.textBytes() {
		return nil, fmt.Errorf("header %s: %w: it is not a whole signature of %d bytes in %s", header, ErrMalformed, v.size, v.encoding)
	}
	return signature, nil
}

// textBytes is how long a signature is in its header.
func (v *Verifier) textBytes() int {
	if v.encoding == "base64" {
		return base64.StdEncoding.EncodedLen(v.size)
	}
	return hex.EncodedLen(v.size)
}
