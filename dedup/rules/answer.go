package rules

import (
	"fmt"
	"net/url"
	"slices"
	"strings"
	"time"

	"go.yaml.in/yaml/v4"

	"oncebus/dedup"
)

// DefaultAnswerTimeout is the longest wait for an outcome, unless the file sets another.
const DefaultAnswerTimeout = 30 * time.Second

// RequestsSuffix is the part of the URL path of an operation that follows the path of its route, if the route
// has answer: outcome. The rest of the URL path, after the suffix, names the operation.
const RequestsSuffix = "/requests/"

// Answer says how a sender gets the outcome of its operation. The setting applies to the first sender of a key,
// too.
type Answer struct {
	Timeout time.Duration // the longest wait; also the wait of a request that sets no wait itself
}

// AnswerTimeout returns the longest wait for an outcome; 0 for a route whose first senders do not wait.
func (h *HTTP) AnswerTimeout() time.Duration {
	if h.Answer == nil {
		return 0
	}
	return h.Answer.Timeout
}

// LongestWait returns the longest time from a request to its response.
func (h *HTTP) LongestWait() time.Duration { return max(h.Timeout, h.AnswerTimeout()) }

// EventsSuffix is appended to the path of a route: at the resulting path a sender reads the outcomes of the
// route as server-sent events.
const EventsSuffix = "/events"

// DefaultFollowers is how many connections may follow a path, unless the file sets another number.
const DefaultFollowers = 100

// Events lets senders follow their outcomes as server-sent events.
type Events struct {
	MaxConnections int // most connections to the path, for one process of the ingress
}

func (x *Events) equal(other *Events) bool {
	return x == other || x != nil && other != nil && *x == *other
}

var eventsFields = []fieldOf[Events]{
	{"max_connections", func(d *decoder, x *Events, n *yaml.Node, at string) {
		x.MaxConnections = d.integer(n, at, 1, followersMax)
	}},
}

// followersMax is the highest max_connections: each follower has connections to the brokers.
const followersMax = 10_000

func (d *decoder) followers(n *yaml.Node, at string) *Events {
	x := &Events{MaxConnections: DefaultFollowers}
	decodeObject(d, n, at, x, eventsFields)
	return x
}

// Idempotency makes the ingress follow draft-ietf-httpapi-idempotency-key-header-07.
type Idempotency struct {
	Docs string // URL of the documentation that problems link to
}

func (x *Idempotency) equal(other *Idempotency) bool {
	return x == other || x != nil && other != nil && *x == *other
}

var idempotencyFields = []fieldOf[Idempotency]{
	{"docs", func(d *decoder, x *Idempotency, n *yaml.Node, at string) { x.Docs = d.docs(n, at) }},
}

func (d *decoder) idempotency(n *yaml.Node, at string) *Idempotency {
	x := &Idempotency{}
	if nodes := decodeObject(d, n, at, x, idempotencyFields); nodes != nil {
		d.require(n, at, nodes, "docs")
	}
	return x
}

// docsMax is the longest URL of a documentation, in bytes: the ingress writes it into a header.
const docsMax = 512

// docs reads the URL of a documentation.
func (d *decoder) docs(n *yaml.Node, at string) string {
	text, _ := d.text(n, at)
	u, err := url.Parse(text)
	if text != "" && (err != nil || u.Scheme != "https" && u.Scheme != "http" || u.Host == "" || u.String() != text || len(text) > docsMax || slices.ContainsFunc([]rune(text), func(c rune) bool { return c <= ' ' || c > '~' || c == '<' || c == '>' || c == '"' })) {
		d.fail(n, at, "want a URL such as https://developer.example.com/idempotency of at most %d bytes, found %s", docsMax, describe(n))
	}
	return text
}

// completeAnswer sets the timeout of Answer last, because the file may have answer_timeout before answer.
func (d *decoder) completeAnswer(h *HTTP, at string, nodes map[string]*yaml.Node) {
	n := nodes["answer_timeout"]
	switch {
	case n == nil:
	case h.Answer == nil:
		d.fail(n, join(at, "answer_timeout"), "needs answer: outcome, because otherwise no request waits for it")
	default:
		h.Answer.Timeout = h.answerTimeout
	}
}

// answerSchemes are the signature schemes with which a sender can authenticate a request that has no body.
var answerSchemes = []SignatureScheme{Token, Bearer, HMAC, StandardWebhooks}

// validateAnswer refuses answer: outcome on a route that gets no outcomes, or where anybody could read the
// outcome of another sender.
func (d *decoder) validateAnswer(r *draft) {
	h := r.HTTP
	if h.Answer == nil {
		return
	}
	if r.Mode != ClaimMode {
		d.failHTTP(r, "answer", "outcome belongs to mode: claim")
	}
	d.validateReaders(r, "answer: outcome")
	if h.Handshake.Kind == MetaHandshake {
		d.failHTTP(r, "handshake", "its GET of the path is that of answer: outcome: use one of them")
	}
	if _, ok := h.Responses[dedup.Unique]; ok {
		d.failHTTP(r, "responses."+dedup.Unique.String(), "answer: outcome responds with the outcome, or with 202 and its location: leave it out")
	}
}

// validateReaders refuses a signature with which a sender cannot authenticate a request without a body. It also
// refuses a path with several senders that must not read each other's outcomes. setting is the setting that
// lets senders read outcomes.
func (d *decoder) validateReaders(r *draft, setting string) {
	field, _, _ := strings.Cut(setting, ":")
	switch scheme := r.HTTP.Signature.Scheme; {
	case r.Tenant != nil:
		d.failHTTP(r, field, "a tenant could read the outcomes of others, because a path knows its senders by one secret: leave it out, or give each tenant a path")
	case scheme == NoSignature:
		d.failHTTP(r, "signature.scheme", "none lets anybody read the outcome of another sender: %s wants token, bearer, hmac or standard-webhooks", setting)
	case !slices.Contains(answerSchemes, scheme):
		d.failHTTP(r, "signature.scheme", "a sender cannot sign a GET with %v: %s wants token, bearer, hmac or standard-webhooks", scheme, setting)
	}
}

// validateEvents refuses events on a route that gets no outcomes, or where anybody could read them.
func (d *decoder) validateEvents(r *draft) {
	if r.HTTP.Events == nil {
		return
	}
	if r.Mode != ClaimMode {
		d.failHTTP(r, "events", "belongs to mode: claim")
	}
	if r.HTTP.Answer == nil {
		d.validateReaders(r, "events")
	}
}

// validateIdempotency refuses idempotency_key on a route whose other settings make responses that the draft
// does not allow.
func (d *decoder) validateIdempotency(r *draft) {
	h := r.HTTP
	if h.Idempotency == nil {
		return
	}
	refuse := func(why string) { d.failHTTP(r, "idempotency_key", "%s", why) }
	switch {
	case r.Mode != ClaimMode:
		refuse("replays stored responses: it belongs to mode: claim")
		return
	case r.KeyHeader() != IdempotencyHeader:
		refuse("the key is the header: write key: [{header: " + IdempotencyHeader + "}]")
	case !h.Signature.Covers(IdempotencyHeader):
		refuse(fmt.Sprintf("the header is not covered by the signature, scheme: %v: a captured request under another key would run again: sign with bearer or token", h.Signature.Scheme))
	case !h.RequireKey:
		refuse("a request without the header gets 400: leave require_key out, and on_missing_key")
	case r.Fingerprint == nil:
		refuse("a key that is used again with another payload gets 422: name the fields of the payload in fingerprint")
	case r.Collision == Forward:
		refuse("a key that is used again with another payload gets 422: write collision: reject, or dead_letter")
	case r.Claim.Wait:
		refuse("a request whose original is in process gets 409: leave while_in_progress: wait out")
	}
	for _, v := range []dedup.Verdict{dedup.MissingKey, dedup.Invalid, dedup.Collision, dedup.InProgress} {
		if _, ok := h.Responses[v]; ok {
			d.failHTTP(r, "responses."+v.String(), "the draft of idempotency_key says what the response is: leave it out")
		}
	}
}

// IdempotencyHeader is the record header with the value of the request header Idempotency-Key.
const IdempotencyHeader = "idempotency-key"
