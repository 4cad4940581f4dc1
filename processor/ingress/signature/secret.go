package signature

import (
	"bytes"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"strconv"
	"strings"
	"time"
)

// CheckSecret returns why this secret must not be used to verify requests: it has no key, or a key of less than
// secretBytesMin bytes. Call it at the start and at a rotation. The error is an ErrNoSecret.
func (v *Verifier) CheckSecret(secret []byte) error {
	if v.scheme == None {
		return nil
	}
	key, err := v.key(secret)
	if err != nil {
		return err
	}
	// HMAC pads keys with zeros, so zeros at the end do not make a key longer.
	if n := len(bytes.TrimRight(key, "\x00")); n < secretBytesMin {
		return fmt.Errorf("%w: its key has %d bytes and can be guessed, want at least %d: %s", ErrNoSecret, n, secretBytesMin, v.howToMakeSecret())
	}
	return nil
}

// howToMakeSecret returns what the operator can do about a refused secret.
func (v *Verifier) howToMakeSecret() string {
	if v.scheme == StandardWebhooks || v.scheme == Svix {
		return "give sender and ingress whsec_ and the output of: openssl rand -base64 32"
	}
	if v.scheme == Adyen {
		return "generate a new HMAC key in Adyen's Customer Area"
	}
	return "give sender and ingress the output of: openssl rand -hex 32"
}

// key returns the HMAC key or the token that a secret contains.
func (v *Verifier) key(secret []byte) ([]byte, error) {
	key := secret
	switch v.scheme {
	case StandardWebhooks, Svix:
		// The prefix is not part of the key. The libraries of the specification also accept secrets without the
		// prefix and without padding.
		text := strings.TrimPrefix(string(secret), "whsec_")
		decoded, err := base64.StdEncoding.DecodeString(text)
		if err != nil {
			decoded, err = base64.RawStdEncoding.Strict().DecodeString(text)
		}
		if err != nil {
			return nil, fmt.Errorf("%w: want whsec_ and base64, it is not base64", ErrNoSecret)
		}
		key = decoded
	case Bearer, Token:
		if !isVisible(string(secret)) {
			return nil, fmt.Errorf("%w: a %s token must be visible ASCII, without spaces and line ends", ErrNoSecret, v.scheme)
		}
	case Adyen:
		decoded, err := hex.DecodeString(string(secret))
		if err != nil {
			return nil, fmt.Errorf("%w: want the HMAC key in hexadecimal digits, as Adyen shows it", ErrNoSecret)
		}
		key = decoded
	case Discord, SendGrid, PayPal:
		if _, err := publicKey[v.scheme](secret); err != nil {
			return nil, err
		}
	case GitHub, Stripe, Slack, Zoom, Square, Twilio, Paddle, Hook0, HMAC:
	case None:
		return nil, nil
	default:
		return nil, fmt.Errorf("%w: the verifier was not made by New", ErrNoSecret)
	}
	// HMAC pads keys with zeros, so a key of zeros equals the empty key.
	if len(bytes.Trim(key, "\x00")) == 0 {
		return nil, fmt.Errorf("%w: it is empty", ErrNoSecret)
	}
	return key, nil
}

// fresh checks that timestamp is within the tolerance of now. It must be Unix seconds in plain digits; for
// PayPal it must be RFC 3339.
func (v *Verifier) fresh(timestamp string, now time.Time) error {
	// ParseInt alone would accept signs.
	seconds, err := strconv.ParseInt(timestamp, 10, 64)
	at := time.Unix(seconds, 0)
	switch {
	case v.scheme == PayPal:
		if at, err = time.Parse(time.RFC3339, timestamp); err != nil {
			return fmt.Errorf("header %s: %w: want a timestamp of RFC 3339", paypalTime, ErrMalformed)
		}
	case err != nil || !isDigits(timestamp) || len(timestamp) > timestampDigitsMax:
		return fmt.Errorf("%w: want a timestamp of Unix seconds in plain digits", ErrMalformed)
	}
	if age := now.Sub(at); age > v.tolerance || age < -v.ahead {
		return fmt.Errorf("%w: the timestamp is %s old (negative: ahead), the tolerance is %s, ahead %s",
			ErrStale, age.Round(time.Millisecond), v.tolerance, v.ahead)
	}
	return nil
}
