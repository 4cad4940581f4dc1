package ingress

import (
	"encoding/json"
	"net/http"
	"time"

	"oncebus/processor/wire"
)

// problemType begins the type of every problem, a relative reference that
// identifies it (RFC 9457, section 3.1.1).
const problemType = "/problems/"

// problem is a reason for an error response. Its name ends its type, and is the
// response in metrics and log.
type problem struct {
	name   string
	status int
	title  string
}

// The problems. Senders depend on their names.
var (
	problemNotFound         = problem{"not-found", http.StatusNotFound, "This path is not an endpoint"}
	problemMethod           = problem{"method", http.StatusMethodNotAllowed, "The endpoint does not accept this method"}
	problemBusy             = problem{"busy", http.StatusServiceUnavailable, "Too many requests are in flight"}
	problemRate             = problem{"rate", http.StatusTooManyRequests, "The request rate is over its limit"}
	problemEncoding         = problem{"encoding", http.StatusUnsupportedMediaType, "The body is encoded"}
	problemTooLarge         = problem{"too-large", http.StatusRequestEntityTooLarge, "The body is too large"}
	problemRequestTimeout   = problem{"request-timeout", http.StatusRequestTimeout, "The body did not arrive in time"}
	problemIncompleteBody   = problem{"incomplete-body", http.StatusBadRequest, "The body is incomplete"}
	problemUnauthorized     = problem{"signature", http.StatusUnauthorized, "The signature was refused"}
	problemNoRoute          = problem{"no-route", http.StatusBadRequest, "No route of this endpoint matches the event"}
	problemMissingKey       = problem{"missing-key", http.StatusBadRequest, "The event has no key"}
	problemInvalid          = problem{"invalid", http.StatusBadRequest, "The event is invalid"}
	problemDuplicate        = problem{"duplicate", http.StatusConflict, "The event is a duplicate"}
	problemInProgress       = problem{"in-progress", http.StatusConflict, "The first request with this key is still in progress"}
	problemCollision        = problem{"collision", http.StatusUnprocessableEntity, "The key belongs to an event with other details"}
	problemLate             = problem{"late", http.StatusUnprocessableEntity, "The event is too old to be judged"}
	problemLimited          = problem{"limited", http.StatusTooManyRequests, "The route has its maximum of keys"}
	problemOmitted          = problem{"result-omitted", http.StatusGone, "The result was too long to store"}
	problemFailed           = problem{"failed", http.StatusBadGateway, "The executor failed"}
	problemRejected         = problem{"rejected", http.StatusUnprocessableEntity, "The executor rejected the request"}
	problemErased           = problem{"erased", http.StatusBadGateway, "The claim of the request was erased"}
	problemOutcome          = problem{"outcome", http.StatusBadRequest, "The outcome is invalid"}
	problemKafkaUnavailable = problem{"kafka-unavailable", http.StatusServiceUnavailable, "Kafka did not acknowledge the event in time"}
	problemVerdictTimeout   = problem{"verdict-timeout", http.StatusGatewayTimeout, "The verdict did not arrive in time"}
)

// problems lists them all.
var problems = []problem{
	problemNotFound, problemMethod, problemBusy, problemRate, problemEncoding, problemTooLarge, problemRequestTimeout, problemIncompleteBody,
	problemUnauthorized, problemNoRoute, problemMissingKey, problemInvalid, problemDuplicate, problemInProgress, problemCollision,
	problemLate, problemLimited, problemOmitted, problemFailed, problemRejected, problemErased, problemOutcome, problemKafkaUnavailable, problemVerdictTimeout,
}

// problemBody is the JSON of a problem.
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

// respond returns the response for a problem without a verdict.
func (p problem) respond(detail string) *response {
	return p.response(&problemBody{Detail: detail})
}

// respondTo returns the response for a problem with a verdict.
func (p problem) respondTo(a *wire.Answer, detail string) *response {
	body := &problemBody{
		Detail: detail, Verdict: a.Verdict.String(), Key: a.Key, State: a.Status, Attempt: a.Attempt, First: a.First, FirstRequest: a.FirstRequest,
	}
	if !a.FirstTime.IsZero() {
		body.FirstTime = a.FirstTime.UTC().Format(time.RFC3339Nano)
	}
	return p.response(body)
}

func (p problem) response(body *problemBody) *response {
	body.Type, body.Title, body.Status = problemType+p.name, p.title, p.status
	text, err := json.Marshal(body)
	if err != nil {
		panic(err) // strings and numbers always marshal
	}
	return &response{status: p.status, name: p.name, problem: &p, contentType: problemJSON, body: append(text, '\n')}
}
