package rules

import (
	"net/url"
	"slices"
	"strings"
	"time"

	"go.yaml.in/yaml/v4"
)

// Signature has the settings by which the ingress authenticates requests.
type Signature struct {
	Scheme SignatureScheme
	Secret string // name of the secret, the part of its setting after ONCEBUS_INGRESS_SECRET_; "" for NoSignature
	// Tolerance is how far the signed timestamp may be from the ingress's clock. A timestamp may be ahead of
	// the clock also by no more than window - Tolerance. Tolerance is 0 for a scheme without a signed
	// timestamp.
	Tolerance time.Duration

	// URL is the address of the endpoint as the sender has it, for the schemes that sign the address.
	URL string
	// Query is the name of the URL parameter with the token; "" if the token is in Header. Only scheme Token
	// uses it.
	Query string

	// The scheme HMAC uses the following fields; the scheme Token uses Header and Prefix, too.
	Header          string // the header with the signature
	Algorithm       string // sha256, sha1 or sha512
	Encoding        string // hex or base64
	Prefix          string // text before the signature in the header
	TimestampHeader string // the header with the Unix seconds that are signed with the body; "": only the body is signed
	Separator       string // between timestamp and body
}

// SignatureScheme is a way to sign requests.
type SignatureScheme uint8

// Signature schemes.
const (
	StandardWebhooks SignatureScheme = iota // standardwebhooks.com
	Svix                                    // svix-signature
	GitHub                                  // X-Hub-Signature-256
	Stripe                                  // Stripe-Signature
	Paddle                                  // Paddle-Signature
	Slack                                   // X-Slack-Signature
	Zoom                                    // x-zm-signature
	Square                                  // x-square-hmacsha256-signature, over URL and body
	Twilio                                  // X-Twilio-Signature, over URL and fields
	Adyen                                   // hmacSignature in the body, over eight fields
	Discord                                 // X-Signature-Ed25519
	SendGrid                                // X-Twilio-Email-Event-Webhook-Signature, ECDSA
	PayPal                                  // PAYPAL-TRANSMISSION-SIG, RSA over the body's CRC-32
	Hook0                                   // X-Hook0-Signature, over the body and the headers that it names
	HMAC                                    // set by the fields of scheme HMAC
	Token                                   // a header or URL parameter with the secret itself
	Bearer                                  // Authorization: Bearer, with the secret itself
	NoSignature                             // any client may send
)

var schemeNames = [...]string{
	"standard-webhooks", "svix", "github", "stripe", "paddle", "slack", "zoom", "square", "twilio", "adyen", "discord", "sendgrid", "paypal",
	"hook0", "hmac", "token", "bearer", "none",
}

// String returns the scheme's name in the routes file.
func (s SignatureScheme) String() string { return schemeNames[s] }

var signatureFields = []fieldOf[signatureDraft]{
	{"scheme", func(d *decoder, s *signatureDraft, n *yaml.Node, at string) {
		i := d.choice(n, at, schemeNames[:]...)
		s.Scheme, s.known = SignatureScheme(max(0, i)), i >= 0
	}},
	{"secret", func(d *decoder, s *signatureDraft, n *yaml.Node, at string) { s.Secret = d.secretName(n, at) }},
	{"tolerance", func(d *decoder, s *signatureDraft, n *yaml.Node, at string) {
		s.Tolerance = d.duration(n, at, time.Second) // the timestamps are in seconds
	}},
	{"header", func(d *decoder, s *signatureDraft, n *yaml.Node, at string) { s.Header = d.headerName(n, at) }},
	{"algorithm", func(d *decoder, s *signatureDraft, n *yaml.Node, at string) {
		s.Algorithm = algorithmNames[max(0, d.choice(n, at, algorithmNames[:]...))]
	}},
	{"encoding", func(d *decoder, s *signatureDraft, n *yaml.Node, at string) {
		s.Encoding = encodingNames[max(0, d.choice(n, at, encodingNames[:]...))]
	}},
	{"prefix", func(d *decoder, s *signatureDraft, n *yaml.Node, at string) { s.Prefix = d.signatureText(n, at) }},
	{"timestamp_header", func(d *decoder, s *signatureDraft, n *yaml.Node, at string) { s.TimestampHeader = d.headerName(n, at) }},
	{"separator", func(d *decoder, s *signatureDraft, n *yaml.Node, at string) { s.Separator = d.signatureText(n, at) }},
	{"url", func(d *decoder, s *signatureDraft, n *yaml.Node, at string) { s.URL = d.address(n, at) }},
	{"query", func(d *decoder, s *signatureDraft, n *yaml.Node, at string) { s.Query = d.queryName(n, at) }},
}

var algorithmNames = [...]string{"sha256", "sha1", "sha512"}

var encodingNames = [...]string{"hex", "base64"}

// validateTolerance requires a window longer than the tolerance, so that a captured request that somebody
// repeats is a duplicate for as long as its timestamp is valid. The window minus the tolerance is the limit for
// a timestamp ahead of the ingress's clock.
func (d *decoder) validateTolerance(r *draft, at string, s *Signature) {
	if r.Window > 0 && s.Tolerance >= r.Window {
		d.failHTTP(r, at+".tolerance", "%v is not shorter than the window of %v: a signed request could be repeated after the window",
			s.Tolerance, r.Window)
	}
}

// signatureDraft is a signature while the decoder reads it.
type signatureDraft struct {
	Signature
	known bool // the scheme is one of schemeNames
}

// fieldSchemes lists the fields that only some schemes use, each with its schemes.
var fieldSchemes = []struct {
	field string
	of    []SignatureScheme
}{
	{"header", []SignatureScheme{HMAC, Token}}, {"algorithm", []SignatureScheme{HMAC}}, {"encoding", []SignatureScheme{HMAC}},
	{"prefix", []SignatureScheme{HMAC, Token}}, {"timestamp_header", []SignatureScheme{HMAC}}, {"separator", []SignatureScheme{HMAC}},
	{"url", []SignatureScheme{Square, Twilio}}, {"query", []SignatureScheme{Token}},
}

// refuseUnused refuses fields that the scheme does not use, because an operator could take a field that has no
// effect for a protection.
func (d *decoder) refuseUnused(s *signatureDraft, at string, nodes map[string]*yaml.Node) {
	for _, f := range fieldSchemes {
		node := nodes[f.field]
		if node == nil || slices.Contains(f.of, s.Scheme) {
			continue
		}
		names := make([]string, len(f.of))
		for i, scheme := range f.of {
			names[i] = scheme.String()
		}
		d.fail(node, join(at, f.field), "belongs to scheme: %s", strings.Join(names, " or "))
	}
}

// signature reads how requests are signed.
func (d *decoder) signature(n *yaml.Node, at string) Signature {
	s := &signatureDraft{}
	nodes := decodeObject(d, n, at, s, signatureFields)
	if nodes == nil {
		return s.Signature
	}
	d.require(n, at, nodes, "scheme")
	if !s.known {
		return s.Signature
	}
	if s.Scheme != NoSignature {
		d.require(n, at, nodes, "secret")
	} else if node := nodes["secret"]; node != nil {
		d.fail(node, join(at, "secret"), "scheme: none checks nothing: leave secret out")
	}
	d.refuseUnused(s, at, nodes)
	if s.Scheme == HMAC {
		d.hmac(s, n, at, nodes)
	}
	if s.Scheme == Token {
		d.token(n, at, nodes)
	}
	if s.Scheme == Square || s.Scheme == Twilio {
		d.require(n, at, nodes, "url")
	}
	node := nodes["tolerance"]
	switch {
	case s.timestamped() && node == nil:
		s.Tolerance = DefaultTolerance
	case !s.timestamped() && node != nil && s.Scheme == HMAC:
		d.fail(node, join(at, "tolerance"), "no timestamp is signed: name its header in timestamp_header, or leave tolerance out")
	case !s.timestamped() && node != nil:
		d.fail(node, join(at, "tolerance"), "scheme: %v signs no timestamp: leave tolerance out", s.Scheme)
	}
	return s.Signature
}

// timestamped reports whether a timestamp is signed with the body.
func (s *Signature) timestamped() bool {
	switch s.Scheme {
	case StandardWebhooks, Svix, Stripe, Paddle, Slack, Zoom, Discord, SendGrid, PayPal, Hook0:
		return true
	case HMAC:
		return s.TimestampHeader != ""
	case GitHub, Square, Twilio, Adyen, Token, Bearer, NoSignature:
	}
	return false
}

// hmac fills in the defaults of scheme: hmac.
func (d *decoder) hmac(s *signatureDraft, n *yaml.Node, at string, nodes map[string]*yaml.Node) {
	d.require(n, at, nodes, "header")
	if nodes["algorithm"] == nil {
		s.Algorithm = algorithmNames[0]
	}
	if nodes["encoding"] == nil {
		s.Encoding = encodingNames[0]
	}
	separator := nodes["separator"]
	switch {
	case nodes["timestamp_header"] != nil && separator == nil:
		s.Separator = "."
	case nodes["timestamp_header"] == nil && separator != nil:
		d.fail(separator, join(at, "separator"), "separates timestamp and body, but no timestamp is signed: "+
			"name its header in timestamp_header, or leave separator out")
	case separator != nil && (s.Separator == "" || s.Separator[0] >= '0' && s.Separator[0] <= '9'):
		d.fail(separator, join(at, "separator"), "%q does not mark the end of the timestamp: want text that begins with a character other than a digit", s.Separator)
	}
	if strings.HasPrefix(s.Prefix, " ") {
		d.fail(nodes["prefix"], join(at, "prefix"), "%q begins with a space, which a header's value never does: leave the space out", s.Prefix)
	}
	if s.Header != "" && strings.EqualFold(s.Header, s.TimestampHeader) {
		d.fail(nodes["timestamp_header"], join(at, "timestamp_header"), "%s is the header of the signature: name another one", s.Header)
	}
}

// token checks the fields of scheme: token.
func (d *decoder) token(n *yaml.Node, at string, nodes map[string]*yaml.Node) {
	if (nodes["header"] == nil) == (nodes["query"] == nil) {
		d.fail(n, at, "scheme: token: want header, or query for a parameter of the URL")
	}
	if node := nodes["prefix"]; node != nil && nodes["query"] != nil {
		d.fail(node, join(at, "prefix"), "precedes a token in a header: leave prefix out")
	}
}

// signatureTextMax is the longest prefix, separator and name of a URL parameter, in bytes.
const signatureTextMax = 64

// signatureText reads a prefix or a separator.
func (d *decoder) signatureText(n *yaml.Node, at string) string {
	text := d.headerText(n, at)
	if len(text) > signatureTextMax {
		d.fail(n, at, "%d bytes are too many: at most %d", len(text), signatureTextMax)
	}
	return text
}

// address reads the address of an endpoint as the sender writes it.
func (d *decoder) address(n *yaml.Node, at string) string {
	text := d.headerText(n, at)
	u, err := url.Parse(text)
	if err != nil || u.Host == "" || u.Scheme != "https" && u.Scheme != "http" || u.ForceQuery || u.Fragment != "" || u.User != nil {
		d.fail(n, at, "%.200q: want the address of the endpoint as its sender has it, such as https://hooks.example.com/twilio, with its query if it has one", text)
	}
	return text
}

// queryName reads the name of a URL's parameter.
func (d *decoder) queryName(n *yaml.Node, at string) string {
	text := d.headerText(n, at)
	if text == "" || len(text) > signatureTextMax || strings.Contains(text, " ") {
		d.fail(n, at, "%.80q: want the name of a parameter of the URL, of at most %d visible characters", text, signatureTextMax)
	}
	return text
}

// secretName reads the name of a secret. It refuses names that end in _NEXT or _FILE, because the settings of a
// secret have these endings: with them the name would be ambiguous.
func (d *decoder) secretName(n *yaml.Node, at string) string {
	if n.Kind != yaml.ScalarNode || n.ShortTag() != "!!str" || !validSecretName(n.Value) {
		// The message omits the value: it may be a secret.
		d.fail(n, at, "want a name of 1 to %d of A-Z, 0-9 and underscore, not ending in _NEXT or _FILE: the secret itself comes from "+
			"ONCEBUS_INGRESS_SECRET_ and that name, never from the file", nameBytesMax)
		return ""
	}
	return n.Value
}

func validSecretName(s string) bool {
	illegal := func(c rune) bool { return (c < 'A' || c > 'Z') && (c < '0' || c > '9') && c != '_' }
	return s != "" && len(s) <= nameBytesMax && !strings.ContainsFunc(s, illegal) &&
		!slices.ContainsFunc([]string{"_NEXT", "_FILE"}, func(end string) bool { return strings.HasSuffix(s, end) })
}
