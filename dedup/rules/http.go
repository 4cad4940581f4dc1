package rules

import (
	"time"

	"oncebus/dedup"
)

// Defaults of an http part's optional fields.
const (
	DefaultTolerance = 5 * time.Minute
	DefaultTimeout   = 10 * time.Second
	DefaultMaxBody   = 1 << 20
)

// HTTP is how a route's events come in by HTTP.
type HTTP struct {
	Path    string   // clean, without a slash at its end
	Methods []string // of POST, PUT and PATCH
	Topic   string   // one of the route's inputs: what the events go to
	// Headers are the further request headers that become record headers, in
	// lower case; those of CarriedHeaders always do.
	Headers []string

	Signature Signature
	// Outcomes is how an outcome is signed that comes in at Path + "/outcomes";
	// nil: none comes in by HTTP.
	Outcomes *Signature

	Verdict         bool          // the answer tells the verdict, not only that the event is on the bus
	Timeout         time.Duration // how long an answer may take
	AcceptOnTimeout bool          // without a verdict in time the answer is 202, not 504
	WaitForKafka    bool          // while Kafka is unavailable requests wait for it, Timeout at most

	MaxBody    int  // bytes
	Rate       Rate // of the route
	SourceRate Rate // of one client address
	RequireKey bool // a request for which no source yields a key is refused

	// Responses are the answers that the file writes out; every other verdict has
	// the ingress's own.
	Responses map[dedup.Verdict]Response
}

// CarriedHeaders are the request headers that always become record headers: as
// they are, but for the quotes of an idempotency-key.
var CarriedHeaders = [...]string{"content-type", "idempotency-key", "traceparent", "tracestate"}

// KeyHeader returns the record header that alone gives a key to what comes in by
// HTTP; "" if there are several, or something else does.
func (r *Route) KeyHeader() string {
	name := ""
	for i := range r.Keys {
		s := &r.Keys[i]
		switch carried := kinds[s.kind].carried; {
		case carried == partRecordKey: // no request has one
		case carried != partHeader || name != "":
			return ""
		default:
			name = s.header
		}
	}
	return name
}

// OutcomesSuffix is what the path of a route ends in where its outcomes come in.
const OutcomesSuffix = "/outcomes"

// Signature is how a request shows who sent it.
type Signature struct {
	Scheme SignatureScheme
	Secret string // name of the setting, after ONCEBUS_INGRESS_SECRET_; "" for NoSignature
	// Tolerance is how far the signed timestamp may be from the ingress's clock,
	// ahead of it no further than what the window has beyond Tolerance; 0 where
	// the scheme signs none.
	Tolerance time.Duration

	// Of HMAC.
	Header          string // where the signature is
	Algorithm       string // sha256, sha1 or sha512
	Encoding        string // hex or base64
	Prefix          string // before the signature in its header
	TimestampHeader string // where the Unix seconds are that are signed with the body; "": the body alone is
	Separator       string // between timestamp and body
}

// SignatureScheme is a way to sign requests.
type SignatureScheme uint8

// Signature schemes.
const (
	StandardWebhooks SignatureScheme = iota // standardwebhooks.com
	GitHub                                  // X-Hub-Signature-256
	Stripe                                  // Stripe-Signature
	Slack                                   // X-Slack-Signature
	HMAC                                    // as the further fields say
	Bearer                                  // Authorization: Bearer, with the secret itself
	NoSignature                             // everybody may send
)

var schemeNames = [...]string{"standard-webhooks", "github", "stripe", "slack", "hmac", "bearer", "none"}

// String returns the scheme's name in the routes file.
func (s SignatureScheme) String() string { return schemeNames[s] }

// Rate bounds how often something may happen; the zero value does not.
type Rate struct {
	PerSecond float64
	Burst     int // how many at once after a rest
}

// Response is the answer to a request.
type Response struct {
	Status      int
	Body        string
	ContentType string // "" without a body
}
