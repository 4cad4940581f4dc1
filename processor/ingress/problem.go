package ingress

import (
	"encoding/json"
	"fmt"
	"net/http"
	"time"

	"oncebus/dedup/rules"
	"oncebus/processor/wire"
)

// problemType leads the type of every problem, a relative reference (RFC 9457,
// section 3.1.1) that names it and stays what it is.
const problemType = "/problems/"

// problem is one way not to be served. Its name is the end of its type, and the
// response in metrics and log.
type problem struct {
	name   string
	status int
	title  string
}

// The problems; their names stay. A comment says when it is the response: HTTP.md
// is made of it.
var (
	// no route has the path
	problemNotFound = problem{"not-found", http.StatusNotFound, "Nothing comes in at this path"}
	// the header Allow names the methods of the path
	problemMethod = problem{"method", http.StatusMethodNotAllowed, "The path takes other methods"}
	// ONCEBUS_INGRESS_MAX_REQUESTS or _MAX_BODY_BYTES is reached, by events or by outcomes; with Retry-After
	problemBusy = problem{"busy", http.StatusServiceUnavailable, "Too many requests are in hand"}
	// rate or rate_per_source is exceeded; with Retry-After
	problemRate = problem{"rate", http.StatusTooManyRequests, "Too many requests in this time"}
	// the request has a Content-Encoding: nothing is decompressed
	problemEncoding = problem{"encoding", http.StatusUnsupportedMediaType, "The body is encoded"}
	// the body is over max_body (an outcome: over that and 1 MiB), or over what the topic accepts
	problemTooLarge = problem{"too-large", http.StatusRequestEntityTooLarge, "The body is too large"}
	// the body did not arrive within ONCEBUS_INGRESS_READ_TIMEOUT
	problemRequestTimeout = problem{"request-timeout", http.StatusRequestTimeout, "The body did not come in time"}
	// the body ended early, or its chunks are malformed
	problemIncompleteBody = problem{"incomplete-body", http.StatusBadRequest, "The body is not whole"}
	// the signature is missing, malformed, stale or wrong; only log and metrics say which
	problemUnauthorized = problem{"signature", http.StatusUnauthorized, "The signature was refused"}
	// no route of this path matches the event; one of another path would
	problemNoRoute = problem{"no-route", http.StatusBadRequest, "No route of this path takes the event"}
	// verdict missing_key where require_key holds
	problemMissingKey = problem{"missing-key", http.StatusBadRequest, "The event has no key"}
	// verdict invalid, with the reason; or an Idempotency-Key that cannot be read
	problemInvalid = problem{"invalid", http.StatusBadRequest, "The event cannot be read"}
	// verdict duplicate
	problemDuplicate = problem{"duplicate", http.StatusConflict, "The event is a duplicate"}
	// verdict in_progress; with Retry-After and the first request's id
	problemInProgress = problem{"in-progress", http.StatusConflict, "The first request with this key is still running"}
	// verdict collision
	problemCollision = problem{"collision", http.StatusUnprocessableEntity, "The key is that of another event"}
	// verdict late
	problemLate = problem{"late", http.StatusUnprocessableEntity, "The event is too old to be judged"}
	// verdict limited; with Retry-After
	problemLimited = problem{"limited", http.StatusTooManyRequests, "Too many new keys in this time"}
	// the request was completed, but its result was over result_limit, or too long for a changelog record
	problemOmitted = problem{"result-omitted", http.StatusGone, "The result is not kept"}
	// outcome failed, for a request that waited; the key is free
	problemFailed = problem{"failed", http.StatusBadGateway, "The request was run and failed"}
	// outcome rejected, for a request that waited; the key is free
	problemRejected = problem{"rejected", http.StatusUnprocessableEntity, "The request was run and rejected"}
	// outcome forget, for a request that waited; the key is free
	problemErased = problem{"erased", http.StatusBadGateway, "The record of the request was erased"}
	// at /outcomes: a header is missing, wrong or repeated, or the claim is that of another route
	problemOutcome = problem{"outcome", http.StatusBadRequest, "The outcome cannot be read"}
	// Kafka did not accept the event in time; sending again is safe, unless the event has no key; with Retry-After
	problemKafkaUnavailable = problem{"kafka-unavailable", http.StatusServiceUnavailable, "The bus did not take the event in time"}
	// Kafka has the event, the verdict did not arrive in time; sending again is safe; with Retry-After
	problemVerdictTimeout = problem{"verdict-timeout", http.StatusGatewayTimeout, "There was no verdict in time"}
)

// problems lists them all.
var problems = []problem{
	problemNotFound, problemMethod, problemBusy, problemRate, problemEncoding, problemTooLarge, problemRequestTimeout, problemIncompleteBody,
	problemUnauthorized, problemNoRoute, problemMissingKey, problemInvalid, problemDuplicate, problemInProgress, problemCollision,
	problemLate, problemLimited, problemOmitted, problemFailed, problemRejected, problemErased, problemOutcome, problemKafkaUnavailable, problemVerdictTimeout,
}

// problemBody is a problem on the wire.
type problemBody struct {
	Type   string `json:"type"`
	Title  string `json:"title"`
	Status int    `json:"status"`
	Detail string `json:"detail,omitempty"`

	Verdict      string `json:"verdict,omitempty"`
	Key          string `json:"key,omitempty"`
	State        string `json:"claim_status,omitempty"`
	Attempt      uint32 `json:"attempt,omitempty"`
	First        string `json:"first,omitempty"`
	FirstTime    string `json:"first_time,omitempty"`
	FirstRequest string `json:"first_request,omitempty"`
}

// response is an answer before it is written.
type response struct {
	status      int
	name        string   // in metrics and log
	problem     *problem // nil if it is none
	contentType string
	body        []byte
	header      http.Header // further ones
	gone        bool        // to nobody; an executor may choose any status for an answer
	route       string
	verdict     string // for the log; "" for none
	reason      string // for the log: why it was refused
}

// with adds a header.
func (r *response) with(name, value string) *response {
	if r.header == nil {
		r.header = http.Header{}
	}
	r.header.Set(name, value)
	return r
}

// respond makes the answer of a problem that no verdict is behind.
func (p problem) respond(detail string) *response {
	return p.response(&problemBody{Detail: detail})
}

func (p problem) response(body *problemBody) *response {
	body.Type, body.Title, body.Status = problemType+p.name, p.title, p.status
	text, err := json.Marshal(body)
	if err != nil {
		panic(err) // strings and numbers only
	}
	return &response{status: p.status, name: p.name, problem: &p, contentType: problemJSON, body: append(text, '\n')}
}

// about makes the answer of a problem that is a verdict.
func (p problem) about(a *wire.Answer, detail string) *response {
	body := &problemBody{
		Detail: detail, Verdict: a.Verdict.String(), Key: a.Key, State: a.Status, Attempt: a.Attempt, First: a.First, FirstRequest: a.FirstRequest,
	}
	if !a.FirstTime.IsZero() {
		body.FirstTime = a.FirstTime.UTC().Format(time.RFC3339Nano)
	}
	return p.response(body)
}

// accepted is what an event that went its way is answered with.
func accepted(name string) *response {
	return &response{status: http.StatusAccepted, name: name, contentType: jsonType, body: []byte(`{"status":"accepted"}`)}
}

// configured is an answer that the routes file writes out.
func configured(name string, r rules.Response) *response {
	return &response{status: r.Status, name: name, contentType: r.ContentType, body: []byte(r.Body)}
}

// The answers to requests that never become events.

func wrongMethod(allow string) *response { return problemMethod.respond("").with("Allow", allow) }

func busy() *response { return problemBusy.respond("").with("Retry-After", seconds(retrySoon)) }

func tooFast(detail string, wait time.Duration) *response {
	return problemRate.respond(detail).with("Retry-After", seconds(wait))
}

func encoded() *response {
	return problemEncoding.respond("send it as it is, without a Content-Encoding").with("Accept-Encoding", "identity")
}

// overTopic is why a body within its limit can be too large all the same.
const overTopic = "with its headers it is larger than its topic takes"

func tooLarge(in *intake) *response {
	detail := fmt.Sprintf("at most %d bytes are taken", in.most)
	if in.larger != "" {
		detail += "; " + in.larger
	}
	return problemTooLarge.respond(detail)
}

func tooSlow() *response  { return problemRequestTimeout.respond("").with("Connection", "close") }
func notWhole() *response { return problemIncompleteBody.respond("").with("Connection", "close") }

func unauthorized(challenge string) *response {
	return problemUnauthorized.respond("").with("WWW-Authenticate", challenge)
}

const (
	jsonType    = "application/json"
	problemJSON = "application/problem+json"
)
