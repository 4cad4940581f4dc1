package ingress

import (
	"encoding/json"
	"net/http"
	"time"

	"oncebus/processor/wire"
)

// problemType begins the type of every problem. The type is a relative reference that identifies the problem
// (RFC 9457, section 3.1.1).
const problemType = "/problems/"

// problem is a reason for an error response. Its name ends the type of the problem, and names the response in
// metrics and log.
type problem struct {
	name   string
	status int
	title  string
}

// The problems. Their names must never change. The comment of a problem says when it is the response: the page
// HTTP.md is made from these comments.
var (
	// no route has the path; an encoded path such as /%61 is another path than /a
	problemNotFound = problem{"not-found", http.StatusNotFound, "This path is not an endpoint"}
	// the path does not accept this method; the header Allow names the methods of the path
	problemMethod = problem{"method", http.StatusMethodNotAllowed, "The endpoint does not accept this method"}
	// requests with events, or with outcomes, have reached ONCEBUS_INGRESS_MAX_REQUESTS or _MAX_BODY_BYTES, or the
	// part of it that an address or a path may use; or too many events of the path wait for Kafka; with Retry-After
	problemBusy = problem{"busy", http.StatusServiceUnavailable, "Too many requests are in flight"}
	// rate or rate_per_source is exceeded; with Retry-After
	problemRate = problem{"rate", http.StatusTooManyRequests, "The request rate is over its limit"}
	// the tenant of the event is over its quota: of events per second, before anything is stored, or by the verdict
	// limited, of events or of new keys; with Retry-After
	problemQuota = problem{"quota", http.StatusTooManyRequests, "The tenant is over its quota"}
	// the path does not decompress this Content-Encoding; the header Accept-Encoding names the encodings that it does
	problemEncoding = problem{"encoding", http.StatusUnsupportedMediaType, "The body is encoded"}
	// the body is damaged, or not in its Content-Encoding
	problemBrokenEncoding = problem{"broken-encoding", http.StatusBadRequest, "The body cannot be decompressed"}
	// the address of the sender is not in allowed_sources
	problemSource = problem{"source", http.StatusForbidden, "The endpoint accepts no requests from this address"}
	// the token of a handshake is missing or wrong, or the request asks for something else
	problemHandshake = problem{"handshake", http.StatusForbidden, "The handshake was refused"}
	// the body is a batch of CloudEvents; or it is a CloudEvent in another format than JSON, where a route has the key
	// source cloudevent
	problemMediaType = problem{"media-type", http.StatusUnsupportedMediaType, "The body's media type is not accepted"}
	// the body is larger than max_body (an outcome: than max_body and than 1 MiB), or the record is larger than its
	// topic or its output accepts, or the decompressed body is larger than decompress.max_bytes
	problemTooLarge = problem{"too-large", http.StatusRequestEntityTooLarge, "The body is too large"}
	// the body did not arrive within ONCEBUS_INGRESS_READ_TIMEOUT; with Retry-After
	problemRequestTimeout = problem{"request-timeout", http.StatusRequestTimeout, "The body did not arrive in time"}
	// the body ended early, or its chunks are malformed
	problemIncompleteBody = problem{"incomplete-body", http.StatusBadRequest, "The body is incomplete"}
	// the signature is missing, malformed, stale or wrong, or it was captured from a GET; only log and metrics tell
	// which
	problemUnauthorized = problem{"signature", http.StatusUnauthorized, "The signature was refused"}
	// no route of this path matches the event, but a route of another path does
	problemNoRoute = problem{"no-route", http.StatusBadRequest, "No route of this endpoint matches the event"}
	// verdict missing_key, on a route with require_key
	problemMissingKey = problem{"missing-key", http.StatusBadRequest, "The event has no key"}
	// verdict invalid, with the reason; or an Idempotency-Key or a CloudEvents attribute cannot be parsed; or a header
	// that a rule reads came twice
	problemInvalid = problem{"invalid", http.StatusBadRequest, "The event is invalid"}
	// verdict duplicate
	problemDuplicate = problem{"duplicate", http.StatusConflict, "The event is a duplicate"}
	// claim status forwarded: an event with this key was forwarded without a claim, so no outcome of it can arrive;
	// the verdict is duplicate, or an earlier claim had the outcome failed or rejected; the key is not free
	problemForwarded = problem{"forwarded", http.StatusConflict, "An event with this key was forwarded without a claim"}
	// verdict in_progress; with Retry-After and the id of the first request
	problemInProgress = problem{"in-progress", http.StatusConflict, "The first request with this key is still in progress"}
	// verdict collision
	problemCollision = problem{"collision", http.StatusUnprocessableEntity, "The key belongs to an event with other details"}
	// verdict late
	problemLate = problem{"late", http.StatusUnprocessableEntity, "The event is too old to be judged"}
	// verdict limited; with Retry-After
	problemLimited = problem{"limited", http.StatusTooManyRequests, "The route has its maximum of keys"}
	// the request was completed, but its result was larger than result_limit, or too long for a changelog record
	problemOmitted = problem{"result-omitted", http.StatusGone, "The result was too long to store"}
	// outcome failed, for a request that has waited; the key is free; with Retry-After
	problemFailed = problem{"failed", http.StatusBadGateway, "The executor failed"}
	// outcome rejected, for a request that has waited; the key is free
	problemRejected = problem{"rejected", http.StatusUnprocessableEntity, "The executor rejected the request"}
	// outcome forget, for a request that has waited; the key is free; with Retry-After
	problemErased = problem{"erased", http.StatusBadGateway, "The claim of the request was erased"}
	// at /outcomes: a header is missing, wrong or repeated, or the claim belongs to another route
	problemOutcome = problem{"outcome", http.StatusBadRequest, "The outcome is invalid"}
	// at /outcomes, for start or renew: the attempt must not run, because another attempt or another start id has the
	// key, or because the attempt has its outcome already
	problemSuperseded = problem{"superseded", http.StatusConflict, "The attempt is superseded"}
	// GET of a location or by a key: no event with this key was judged, or the operation belongs to another path
	problemUnknownRequest = problem{"unknown-request", http.StatusNotFound, "No request of this name is known"}
	// GET of a location or by a key: the window of the request is over
	problemExpired = problem{"expired", http.StatusGone, "The window of the request is over"}
	// GET of a location or by a key: the attempt failed, was rejected or was erased, and its outcome is not stored;
	// the key is free
	problemNoResult = problem{"no-result", http.StatusGone, "The request ended without a result"}
	// GET by a key: the route derives the key from the body, or needs the body for it
	problemKeyOfBody = problem{"key-of-body", http.StatusBadRequest, "The key of a request needs its body"}
	// GET of a location or by a key: the task did not answer in time; with Retry-After
	problemStateTimeout = problem{"state-timeout", http.StatusServiceUnavailable, "The state did not arrive in time"}
	// GET of /events: Last-Event-ID is not an id of this path
	problemPosition = problem{"last-event-id", http.StatusBadRequest, "The Last-Event-ID is unknown"}
	// idempotency_key: the header is missing; with a Link to the documentation
	problemKeyMissing = problem{"idempotency-key-missing", http.StatusBadRequest, "Idempotency-Key is missing"}
	// idempotency_key: the header is not one String of RFC 8941, or an empty one; with a Link to the documentation
	problemKeyMalformed = problem{"idempotency-key-malformed", http.StatusBadRequest, "Idempotency-Key is malformed"}
	// idempotency_key: verdict collision; with a Link to the documentation
	problemKeyReused = problem{"idempotency-key-reused", http.StatusUnprocessableEntity, "Idempotency-Key is already used"}
	// idempotency_key: verdict in_progress; with Retry-After and a Link to the documentation
	problemKeyOutstanding = problem{"idempotency-key-outstanding", http.StatusConflict, "A request is outstanding for this Idempotency-Key"}
	// the request is not HTTP, or has no Host or several, or it is plain HTTP and the server speaks TLS
	problemMalformed = problem{"malformed", http.StatusBadRequest, "The request is malformed"}
	// the header Expect has a value other than 100-continue
	problemExpectation = problem{"expectation", http.StatusExpectationFailed, "The expectation cannot be met"}
	// the request line and headers exceed ONCEBUS_INGRESS_MAX_HEADER_BYTES
	problemHeaders = problem{"headers-too-large", http.StatusRequestHeaderFieldsTooLarge, "The headers are too large"}
	// the Transfer-Encoding is not chunked
	problemTransferEncoding = problem{"transfer-encoding", http.StatusNotImplemented, "The transfer encoding is unknown"}
	// the HTTP version is not 1.0, 1.1 or 2
	problemVersion = problem{"http-version", http.StatusHTTPVersionNotSupported, "The HTTP version is not supported"}
	// Kafka did not accept the event in time; sending it again is safe: at most it is a duplicate, unless the event
	// has no key; with Retry-After
	problemKafkaUnavailable = problem{"kafka-unavailable", http.StatusServiceUnavailable, "Kafka did not acknowledge the event in time"}
	// an operator holds the input of the app (oncebus hold); nothing was sent to Kafka, so sending the event again is
	// safe; with Retry-After
	problemHeld = problem{"held", http.StatusServiceUnavailable, "The app accepts no events for the moment"}
	// Kafka has the event, but the verdict did not arrive in time; sending it again is safe: it is then a duplicate;
	// with Retry-After
	problemVerdictTimeout = problem{"verdict-timeout", http.StatusGatewayTimeout, "The verdict did not arrive in time"}
	// as kafka-unavailable, but Kafka may have the event and the route may forward events unchecked: sent again, the
	// event may be emitted a second time
	problemKafkaUnavailableUnchecked = problem{"kafka-unavailable-unchecked", http.StatusServiceUnavailable, "Kafka did not acknowledge the event in time, and a retry may be emitted too"}
	// as verdict-timeout, but the route may forward events unchecked: sent again, the event may be emitted a second
	// time
	problemVerdictTimeoutUnchecked = problem{"verdict-timeout-unchecked", http.StatusGatewayTimeout, "The verdict did not arrive in time, and a retry may be emitted too"}
)

// problems lists all problems.
var problems = []problem{
	problemNotFound, problemMethod, problemBusy, problemRate, problemQuota, problemEncoding, problemBrokenEncoding, problemSource, problemHandshake, problemMediaType, problemTooLarge, problemRequestTimeout, problemIncompleteBody,
	problemUnauthorized, problemNoRoute, problemMissingKey, problemInvalid, problemDuplicate, problemForwarded, problemInProgress, problemCollision,
	problemMalformed, problemExpectation, problemHeaders, problemTransferEncoding, problemVersion,
	problemLate, problemLimited, problemOmitted, problemFailed, problemRejected, problemErased, problemOutcome, problemSuperseded, problemUnknownRequest, problemExpired, problemNoResult, problemKeyOfBody, problemStateTimeout, problemPosition,
	problemKeyMissing, problemKeyMalformed, problemKeyReused, problemKeyOutstanding, problemKafkaUnavailable, problemHeld, problemVerdictTimeout,
	problemKafkaUnavailableUnchecked, problemVerdictTimeoutUnchecked,
}

// problemBody is the JSON of a problem's response.
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
	StartedBy    string `json:"started_by,omitempty"`
	Docs         string `json:"documentation,omitempty"`
}

// respond returns the response for a problem without a verdict.
func (p problem) respond(detail string) *response {
	return p.response(&problemBody{Detail: detail})
}

// respondTo returns the response for a problem with a verdict.
func (p problem) respondTo(a *wire.Answer, detail string) *response {
	return p.response(bodyTo(a, detail))
}

// bodyTo returns the part of a problem's body that describes the verdict.
func bodyTo(a *wire.Answer, detail string) *problemBody {
	body := &problemBody{
		Detail: detail, Verdict: a.Verdict.String(), Key: a.Key, State: a.Status, Attempt: a.Attempt, First: a.First, FirstRequest: a.FirstRequest,
	}
	if !a.FirstTime.IsZero() {
		body.FirstTime = a.FirstTime.UTC().Format(time.RFC3339Nano)
	}
	return body
}

func (p problem) response(body *problemBody) *response {
	body.Type, body.Title, body.Status = problemType+p.name, p.title, p.status
	text, err := json.Marshal(body)
	if err != nil {
		panic(err) // strings and numbers always marshal
	}
	return &response{status: p.status, name: p.name, problem: &p, contentType: problemJSON, body: append(text, '\n')}
}
