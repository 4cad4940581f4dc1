package signature

import (
	"cmp"
	"crypto/ed25519"
	"crypto/sha1" //nolint:gosec // Some senders have nothing better, and HMAC does not rest on what is broken in SHA-1, its collisions.
	"crypto/sha256"
	"crypto/sha512"
	"errors"
	"fmt"
	"hash"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"
)

// Scheme is a way to sign requests.
type Scheme string

// The schemes, spelled as in the routes file:
const (
	StandardWebhooks Scheme = "standard-webhooks"
	Svix             Scheme = "svix"
	GitHub           Scheme = "github"
	Stripe           Scheme = "stripe"
	Paddle           Scheme = "paddle"
	Slack            Scheme = "slack"
	Zoom             Scheme = "zoom"
	Square           Scheme = "square"
	Twilio           Scheme = "twilio"
	Adyen            Scheme = "adyen"
	Discord          Scheme = "discord"
	SendGrid         Scheme = "sendgrid"
	PayPal           Scheme = "paypal"
	Hook0            Scheme = "hook0"
	HMAC             Scheme = "hmac"
	Token            Scheme = "token"
	Bearer           Scheme = "bearer"
	None             Scheme = "none"
)

// Schemes are all schemes.
var Schemes = []Scheme{
	StandardWebhooks, Svix, GitHub, Stripe, Paddle, Slack, Zoom, Square, Twilio, Adyen, Discord, SendGrid, PayPal, Hook0, HMAC, Token, Bearer, None,
}

// Defaults of Config.
const (
	// DefaultTolerance is the tolerance of the Standard Webhooks libraries, and of the documentation of Stripe
	// and Slack.
	DefaultTolerance = 5 * time.Minute
	DefaultAlgorithm = "sha256"
	DefaultEncoding  = "hex"
	DefaultSeparator = "."

	base64Encoding = "base64"
)

const (
	// toleranceMin is 1s because timestamps are whole seconds: with a shorter tolerance, the verifier would
	// reject requests that were signed just now.
	toleranceMin = time.Second

	// textBytesMax is the longest Prefix, Separator or Query.
	textBytesMax = 64
)

// Config describes how a request is signed. A field that the scheme does not use must be empty: a value there
// would make an operator expect a check that does not happen.
type Config struct {
	Scheme Scheme

	// Tolerance is how far a timestamp may be from the clock, in the past and in the future. At least 1s; 0
	// means DefaultTolerance. Only for schemes with a timestamp.
	Tolerance time.Duration
	// Ahead is how far a timestamp may be in the future, if that is less than Tolerance. A request is valid for
	// Ahead plus Tolerance. At most Tolerance; 0 means Tolerance. Only for schemes with a timestamp.
	Ahead time.Duration

	// URL is the address of the endpoint as the sender knows it, with its query if it has one. Square and
	// Twilio sign the URL and require it; other schemes must not have it.
	URL string
	// Query is the name of the URL's parameter with the token. Only for Token, which needs either Query or
	// Header.
	Query string

	// The other fields are for HMAC only, except that Token uses Header and Prefix too.

	// Header is the name of the header with the signature. HMAC requires it.
	Header string
	// Algorithm is sha256, sha1 or sha512; "" means DefaultAlgorithm.
	Algorithm string
	// Encoding is hex, in upper or lower case, or base64, padded and with + and /; "" means DefaultEncoding.
	Encoding string
	// Prefix is the text before the signature in its header, such as "sha256="; it may be empty.
	Prefix string
	// TimestampHeader is the name of the header with the time of signing in Unix seconds. If it is set, the
	// sender signs the timestamp as sent, then Separator, then the body. Otherwise the sender signs the body
	// alone.
	TimestampHeader string
	// Separator is the signed text between timestamp and body; "" means DefaultSeparator. It must not begin
	// with a digit: otherwise a forger could move the border between timestamp and body without changing the
	// signed text. Only with TimestampHeader.
	Separator string
}

// New returns the verifier for cfg, or every mistake in cfg. Each mistake begins with the field's name in the
// routes file.
func New(cfg Config) (*Verifier, error) {
	if err := errors.Join(cfg.mistakes()...); err != nil {
		return nil, err
	}
	v := &Verifier{scheme: cfg.Scheme, encoding: DefaultEncoding, newHash: sha256.New, size: sha256.Size}
	if cfg.timed() {
		v.tolerance = cmp.Or(cfg.Tolerance, DefaultTolerance)
		v.ahead = cmp.Or(cfg.Ahead, v.tolerance)
	}
	v.url, v.query, v.list = cfg.URL, cfg.Query, standardHeaders[cfg.Scheme]
	_, v.urlQuery, _ = strings.Cut(cfg.URL, "?")
	v.fix(cfg)
	return v, nil
}

// fix sets the fields that the scheme of cfg determines.
func (v *Verifier) fix(cfg Config) {
	switch cfg.Scheme {
	case StandardWebhooks, Svix:
		v.encoding = base64Encoding
	case Stripe, Paddle:
		v.header = pairLists[cfg.Scheme].header
	case GitHub:
		v.header, v.prefix = "X-Hub-Signature-256", "sha256="
	case Slack:
		v.header, v.prefix = "X-Slack-Signature", "v0="
		v.timestampHeader, v.version, v.separator = "X-Slack-Request-Timestamp", "v0:", ":"
	case Zoom:
		v.header, v.prefix = "X-Zm-Signature", "v0="
		v.timestampHeader, v.version, v.separator = "X-Zm-Request-Timestamp", "v0:", ":"
	case Square:
		v.header, v.encoding = "X-Square-Hmacsha256-Signature", base64Encoding
	case Twilio:
		v.header, v.encoding = "X-Twilio-Signature", base64Encoding
		v.newHash, v.size = sha1.New, sha1.Size
		v.urlOther = otherPort(cfg.URL)
	case Adyen:
		v.encoding = base64Encoding
	case Discord:
		v.header, v.timestampHeader, v.size = "X-Signature-Ed25519", "X-Signature-Timestamp", ed25519.SignatureSize
	case SendGrid:
		v.header, v.timestampHeader, v.encoding = "X-Twilio-Email-Event-Webhook-Signature", "X-Twilio-Email-Event-Webhook-Timestamp", base64Encoding
	case PayPal:
		v.encoding = base64Encoding
	case Hook0:
		v.header = hook0Header
	case HMAC:
		v.header, v.prefix = http.CanonicalHeaderKey(cfg.Header), cfg.Prefix
		v.newHash = newHash(cmp.Or(cfg.Algorithm, DefaultAlgorithm))
		v.size = v.newHash().Size()
		v.encoding = cmp.Or(cfg.Encoding, DefaultEncoding)
		if cfg.TimestampHeader != "" {
			v.timestampHeader = http.CanonicalHeaderKey(cfg.TimestampHeader)
			v.separator = cmp.Or(cfg.Separator, DefaultSeparator)
		}
	case Token:
		v.header, v.prefix = http.CanonicalHeaderKey(cfg.Header), cfg.Prefix
	case Bearer, None:
	}
}

// timed reports whether the signature covers a timestamp.
func (c Config) timed() bool {
	switch c.Scheme {
	case StandardWebhooks, Svix, Stripe, Paddle, Slack, Zoom, Discord, SendGrid, PayPal, Hook0:
		return true
	case HMAC:
		return c.TimestampHeader != ""
	case GitHub, Square, Twilio, Adyen, Token, Bearer, None:
	}
	return false
}

// SignsURL reports whether the scheme signs the URL; Config.URL is then required.
func (s Scheme) SignsURL() bool { return s == Square || s == Twilio }

// mistakes returns every mistake in c.
func (c Config) mistakes() []error {
	if !slices.Contains(Schemes, c.Scheme) {
		return []error{fmt.Errorf("scheme: %q is unknown, want one of %s", c.Scheme, strings.Trim(fmt.Sprint(Schemes), "[]"))}
	}
	found := append(c.mistakesUnused(), c.mistakesURL()...)
	if c.Scheme == HMAC {
		found = append(found, c.mistakesHMAC()...)
	}
	if c.Scheme == Token {
		found = append(found, c.mistakesToken()...)
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

// mistakesUnused returns a mistake for every field that is set although the scheme does not use it.
func (c Config) mistakesUnused() []error {
	var found []error
	for _, field := range []struct {
		name, value string
		of          []Scheme
	}{
		{"header", c.Header, []Scheme{HMAC, Token}},
		{"algorithm", c.Algorithm, []Scheme{HMAC}},
		{"encoding", c.Encoding, []Scheme{HMAC}},
		{"prefix", c.Prefix, []Scheme{HMAC, Token}},
		{"timestamp_header", c.TimestampHeader, []Scheme{HMAC}},
		{"separator", c.Separator, []Scheme{HMAC}},
		{"query", c.Query, []Scheme{Token}},
		{"url", c.URL, []Scheme{Square, Twilio}},
	} {
		if field.value != "" && !slices.Contains(field.of, c.Scheme) {
			found = append(found, fmt.Errorf("%s: only scheme %s uses it, the scheme is %s: remove it", field.name, joinSchemes(field.of), c.Scheme))
		}
	}
	return found
}

func joinSchemes(list []Scheme) string {
	names := make([]string, len(list))
	for i, s := range list {
		names[i] = string(s)
	}
	return strings.Join(names, " or ")
}

// mistakesURL returns the mistakes in the URL of a scheme that signs it.
func (c Config) mistakesURL() []error {
	if !c.Scheme.SignsURL() {
		return nil
	}
	u, err := url.Parse(c.URL)
	if c.URL == "" || err != nil || u.Host == "" || u.Scheme != "https" && u.Scheme != "http" || u.ForceQuery || u.Fragment != "" || u.User != nil {
		return []error{fmt.Errorf("url: %q: scheme %s signs the address of the endpoint: want it as the sender has it, https://HOST/PATH, with its query if it has one", c.URL, c.Scheme)}
	}
	return nil
}

// mistakesToken returns the mistakes in the fields of scheme Token.
func (c Config) mistakesToken() []error {
	var found []error
	switch {
	case (c.Header == "") == (c.Query == ""):
		found = append(found, errors.New("header, query: want the name of the token's header, or of its parameter in the URL"))
	case c.Header != "" && !isToken(c.Header):
		found = append(found, fmt.Errorf("header: %q is malformed, want the name of a header", c.Header))
	case c.Query != "" && (len(c.Query) > textBytesMax || !isVisible(c.Query)):
		found = append(found, fmt.Errorf("query: %.80q is malformed, want a name of at most %d visible characters", c.Query, textBytesMax))
	case c.Query != "" && c.Prefix != "":
		found = append(found, errors.New("prefix: precedes a token in a header: remove it"))
	}
	return append(found, c.mistakesPrefix()...)
}

// mistakesPrefix returns the mistakes in Prefix.
func (c Config) mistakesPrefix() []error {
	switch {
	case len(c.Prefix) > textBytesMax:
		return []error{fmt.Errorf("prefix: %d bytes is too long, want at most %d", len(c.Prefix), textBytesMax)}
	case strings.HasPrefix(c.Prefix, " ") || !isVisible(strings.ReplaceAll(c.Prefix, " ", "")):
		return []error{fmt.Errorf("prefix: %q cannot begin a header's value, want visible ASCII", c.Prefix)}
	}
	return nil
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
	if c.Encoding != "" && c.Encoding != "hex" && c.Encoding != base64Encoding {
		addf("encoding: %q is unknown, want hex or base64", c.Encoding)
	}
	found = append(found, c.mistakesPrefix()...)
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

// newHash returns the constructor of the hash with this name, nil if the name is unknown.
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

// isToken reports whether s can be the name of a header (RFC 9110, section 5.6.2).
func isToken(s string) bool {
	for i := range len(s) {
		c := s[i]
		if (c < '0' || c > '9') && (c < 'a' || c > 'z') && (c < 'A' || c > 'Z') && !strings.ContainsRune("!#$%&'*+-.^_`|~", rune(c)) {
			return false
		}
	}
	return s != ""
}

// isVisible reports whether s contains only visible ASCII characters; a space is not visible.
func isVisible(s string) bool {
	for i := range len(s) {
		if s[i] <= ' ' || s[i] > '~' {
			return false
		}
	}
	return true
}

// isDigits reports whether s contains only decimal digits.
func isDigits(s string) bool {
	for i := range len(s) {
		if s[i] < '0' || s[i] > '9' {
			return false
		}
	}
	return true
}
