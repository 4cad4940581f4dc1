package ingress

import (
	"errors"
	"fmt"
	"strings"
)

// headerIdempotency is the header of draft-ietf-httpapi-idempotency-key-header:
// an Item of RFC 9651 that is a String, in quotes. Many senders leave the
// quotes out, so both spellings are one key.
const headerIdempotency = "Idempotency-Key"

// idempotencyPattern is what may stand in the header, but for parameters that
// have strings of their own.
const idempotencyPattern = `^([^"].*|"([\x20\x21\x23-\x5b\x5d-\x7e]|\\["\\])*"(;[^,"]*)?)?$`

// readIdempotencyKey returns the key that a request has in its header; "" for
// none. The error tells the sender what is wrong.
func readIdempotencyKey(values []string) (string, error) {
	if len(values) > 1 {
		return "", fmt.Errorf("header %s: it came %d times, want one", headerIdempotency, len(values))
	}
	if len(values) == 0 {
		return "", nil
	}
	value := strings.Trim(values[0], " \t")
	if !strings.HasPrefix(value, `"`) {
		return value, nil
	}
	key, rest, err := cutString(value)
	if err == nil {
		err = skipParameters(strings.TrimLeft(rest, " \t"))
	}
	if err != nil {
		return "", fmt.Errorf("header %s: %w", headerIdempotency, err)
	}
	return key, nil
}

// cutString reads the String that text begins with (RFC 9651, section 4.2.5),
// and returns what follows it.
func cutString(text string) (value, rest string, err error) {
	var b strings.Builder
	for i := 1; i < len(text); i++ {
		c := text[i]
		switch {
		case c == '"':
			return b.String(), text[i+1:], nil
		case c < ' ' || c > '~':
			return "", "", errors.New("between quotes there is something other than printable ASCII")
		case c == '\\':
			i++
			if i == len(text) || text[i] != '"' && text[i] != '\\' {
				return "", "", errors.New("a backslash stands before a quote or a backslash only")
			}
			c = text[i]
		}
		b.WriteByte(c)
	}
	return "", "", errors.New("it begins with a quote and does not end with one")
}

// skipParameters passes over the parameters of an Item (RFC 9651, section
// 3.1.2), which mean nothing here. A comma among them begins another Item.
func skipParameters(text string) error {
	if text != "" && text[0] != ';' {
		return errors.New("something other than parameters follows the closing quote")
	}
	for i := 0; i < len(text); i++ {
		switch text[i] {
		case ',':
			return errors.New("it is a list, want one key")
		case '"':
			_, rest, err := cutString(text[i:])
			if err != nil {
				return err
			}
			i = len(text) - len(rest) - 1
		}
	}
	return nil
}
