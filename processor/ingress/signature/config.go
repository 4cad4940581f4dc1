package signature

import (
	"cmp"
	"crypto/sha1" //nolint:gosec // Some senders have nothing better, and HMAC does not rest on what is broken in SHA-1, its collisions.
	"crypto/sha256"
	"crypto/sha512"
	"errors"
	"fmt"
	"hash"
	"net/http"
	"strings"
	"time"
)

// Scheme is a way to sign requests.
type Scheme string

// The schemes, as the routes file spells them.
const (
	StandardWebhooks Scheme = "standard-webhooks"
	GitHub           Scheme = "github"
	Stripe           Scheme = "stripe"
	Slack            Scheme = "slack"
	HMAC             Scheme = "hmac"
	Bearer           Scheme = "bearer"
	None             Scheme = "none"
)

// Defaults of Config.
const (
	// DefaultTolerance is that of Standard Webhooks' libraries and of the
	// documentation of Stripe and Slack.
	DefaultTolerance = 5 * time.Minute
	DefaultAlgorithm = "sha256"
	DefaultEncoding  = "hex"
	DefaultSeparator = "."
)

const (
	// toleranceMin is the unit of the timestamps: less would reject requests
	// that were signed just now.
	toleranceMin = time.Second

	// textBytesMax is the longest Prefix and Separator.
	textBytesMax = 64
)

// Config describes how a request is signed. Fields that the scheme does not use
// must be empty: they would promise a check that does not happen.
type Config struct {
	Scheme Scheme

	// Tolerance is how far a timestamp may be from the clock, in the past and
	// in the future. At least 1s; 0 is DefaultTolerance. Only for schemes with
	// a timestamp.
	Tolerance time.Duration
	// Ahead is how far a timestamp may be in the future, if that is less. A
	// request is valid for Ahead plus Tolerance. At most Tolerance; 0 is
	// Tolerance. Only for schemes with a timestamp.
	Ahead time.Duration

	// The other fields are for scheme HMAC only.

	// Header is the name of the signature's header. Required.
	Header string
	// Algorithm is sha256, sha1 or sha512; "" is DefaultAlgorithm.
	Algorithm string
	// Encoding is hex, of either case, or base64, padded and with + and /;
	// "" is DefaultEncoding.
	Encoding string
	// Prefix precedes the signature in its header, such as "sha256="; it may
	// be empty.
	Prefix string
	// TimestampHeader is the name of the header with the time of signing, in
	// Unix seconds. With it the sender signs the timestamp as sent, Separator
	// and the body; without it the body alone.
	TimestampHeader string
	// Separator separates timestamp and body; "" is DefaultSeparator. It must
	// not be empty or begin with a digit: a forger could then move the border
	// between timestamp and body under the same signature. Only with
	// TimestampHeader.
	Separator string
}

// New returns the verifier of cfg, or every mistake in cfg, each beginning with
// the field's name in the routes file.
func New(cfg Config) (*Verifier, error) {
	if err := errors.Join(cfg.mistakes()...); err != nil {
		return nil, err
	}
	v := &Verifier{scheme: cfg.Scheme, encoding: DefaultEncoding, newHash: sha256.New, size: sha256.Size}
	if cfg.timed() {
		v.tolerance = cmp.Or(cfg.Tolerance, DefaultTolerance)
		v.ahead = cmp.Or(cfg.Ahead, v.tolerance)
	}
	switch cfg.Scheme {
	case StandardWebhooks:
		v.encoding = "base64"
	case GitHub:
		v.header, v.prefix = "X-Hub-Signature-256", "sha256="
	case Slack:
		v.header, v.prefix = "X-Slack-Signature", "v0="
		v.timestampHeader, v.version, v.separator = "X-Slack-Request-Timestamp", "v0:", ":"
	case HMAC:
		v.header, v.prefix = http.CanonicalHeaderKey(cfg.Header), cfg.Prefix
		v.newHash = newHash(cmp.Or(cfg.Algorithm, DefaultAlgorithm))
		v.size = v.newHash().Size()
		v.encoding = cmp.Or(cfg.Encoding, DefaultEncoding)
		if cfg.TimestampHeader != "" {
			v.timestampHeader = http.CanonicalHeaderKey(cfg.TimestampHeader)
			v.separator = cmp.Or(cfg.Separator, DefaultSeparator)
		}
	case Stripe, Bearer, None:
	}
	return v, nil
}

// timed reports whether the signature covers a timestamp.
func (c Config) timed() bool {
	switch c.Scheme {
	case StandardWebhooks, Stripe, Slack:
		return true
	case HMAC:
		return c.TimestampHeader != ""
	case GitHub, Bearer, None:
	}
	return false
}

// mistakes returns every mistake in c.
func (c Config) mistakes() []error {
	var found []error
	switch c.Scheme {
	case HMAC:
		found = c.mistakesHMAC()
	case StandardWebhooks, GitHub, Stripe, Slack, Bearer, None:
		found = c.mistakesFixed()
	default:
		return []error{fmt.Errorf("scheme: %q is unknown, want %s, %s, %s, %s, %s, %s or %s",
			c.Scheme, StandardWebhooks, GitHub, Stripe, Slack, HMAC, Bearer, None)}
	}
	return append(found, c.mistakesTimed()...)
}

// mistakesTimed returns the mistakes in Tolerance and Ahead.
func (c Config) mistakesTimed() []error {
	var found []error
	switch {
	case c.Tolerance == 0:
	case !c.timed() && c.Scheme == HMAC:
		found = append(found, errors.New("tolerance: without a timestamp_header a request has no age: set timestamp_header, or remove tolerance"))
	case !c.timed():
		found = append(found, fmt.Errorf("tolerance: scheme %s has no timestamp, so a request has no age: remove tolerance", c.Scheme))
	case c.Tolerance < toleranceMin:
		found = append(found, fmt.Errorf("tolerance: %s is too short, want at least %s", c.Tolerance, toleranceMin))
	}
	switch {
	case c.Ahead == 0:
	case !c.timed():
		found = append(found, errors.New("ahead: the signature has no timestamp: remove ahead"))
	case c.Ahead < 0, c.Ahead > cmp.Or(c.Tolerance, DefaultTolerance):
		found = append(found, fmt.Errorf("ahead: %s is out of range, want at most the tolerance", c.Ahead))
	}
	return found
}

// mistakesFixed returns the fields that are set although the scheme defines them.
func (c Config) mistakesFixed() []error {
	var found []error
	for _, field := range []struct{ name, value string }{
		{"header", c.Header},
		{"algorithm", c.Algorithm},
		{"encoding", c.Encoding},
		{"prefix", c.Prefix},
		{"timestamp_header", c.TimestampHeader},
		{"separator", c.Separator},
	} {
		if field.value != "" {
			found = append(found, fmt.Errorf("%s: only scheme %s uses it, the scheme is %s: remove it", field.name, HMAC, c.Scheme))
		}
	}
	return found
}

// mistakesHMAC returns the mistakes in the fields of scheme HMAC.
func (c Config) mistakesHMAC() []error {
	var found []error
	addf := func(format string, args ...any) { found = append(found, fmt.Errorf(format, args...)) }
	if c.Header == "" {
		addf("header: not set, want the name of the signature's header")
	} else if !isToken(c.Header) {
		addf("header: %q is malformed, want the name of a header", c.Header)
	}
	if newHash(cmp.Or(c.Algorithm, DefaultAlgorithm)) == nil {
		addf("algorithm: %q is unknown, want sha256, sha1 or sha512", c.Algorithm)
	}
	if c.Encoding != "" && c.Encoding != "hex" && c.Encoding != "base64" {
		addf("encoding: %q is unknown, want hex or base64", c.Encoding)
	}
	switch {
	case len(c.Prefix) > textBytesMax:
		addf("prefix: %d bytes is too long, want at most %d", len(c.Prefix), textBytesMax)
	case strings.HasPrefix(c.Prefix, " ") || !isVisible(strings.ReplaceAll(c.Prefix, " ", "")):
		addf("prefix: %q cannot begin a header's value, want visible ASCII", c.Prefix)
	}
	switch {
	case c.TimestampHeader == "":
		if c.Separator != "" {
			addf("separator: without a timestamp_header nothing precedes the body: set timestamp_header, or remove separator")
		}
		return found
	case !isToken(c.TimestampHeader):
		addf("timestamp_header: %q is malformed, want the name of a header", c.TimestampHeader)
	case strings.EqualFold(c.TimestampHeader, c.Header):
		addf("timestamp_header: %q is also the signature's header, want another", c.TimestampHeader)
	}
	switch {
	case len(c.Separator) > textBytesMax:
		addf("separator: %d bytes is too long, want at most %d", len(c.Separator), textBytesMax)
	case c.Separator != "" && isDigits(c.Separator[:1]):
		addf("separator: %q begins with a digit, so the end of the timestamp is ambiguous: want another first character", c.Separator)
	}
	return found
}

// newHash returns the constructor of a hash by name, nil for an unknown one.
func newHash(name string) func() hash.Hash {
	switch name {
	case "sha256":
		return sha256.New
	case "sha512":
		return sha512.New
	case "sha1":
		return sha1.New
	default:
		return nil
	}
}

// isToken reports whether s can name a header (RFC 9110, section 5.6.2).
func isToken(s string) bool {
	for i := range len(s) {
		c := s[i]
		if (c < '0' || c > '9') && (c < 'a' || c > 'z') && (c < 'A' || c > 'Z') && !strings.ContainsRune("!#$%&'*+-.^_`|~", rune(c)) {
			return false
		}
	}
	return s != ""
}

// isVisible reports whether s contains visible ASCII only, no space.
func isVisible(s string) bool {
	for i := range len(s) {
		if s[i] <= ' ' || s[i] > '~' {
			return false
		}
	}
	return true
}

// isDigits reports whether s contains decimal digits only.
func isDigits(s string) bool {
	for i := range len(s) {
		if s[i] < '0' || s[i] > '9' {
			return false
		}
	}
	return true
}
