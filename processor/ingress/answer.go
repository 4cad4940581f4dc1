package ingress

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"time"

	"oncebus/dedup"
	"oncebus/dedup/rules"
	"oncebus/processor/front"
	"oncebus/processor/wire"
)

// headerLocation names the URL at which a sender finds the state of an operation and, later, its outcome.
const headerLocation = "Location"

// submitForOutcome produces the event and waits for the outcome of its operation. If the wait ends without an
// outcome, the response is a 202 with the location of the operation.
func (s *Server) submitForOutcome(ctx context.Context, r *http.Request, rq *request, route *rules.Route, event *front.Submission, derived *rules.Derived) *response {
	operation := front.OperationOf(derived)
	wait, applied := readPreference(r.Header).within(route.HTTP.Answer.Timeout)
	waiting, cancel := context.WithTimeout(r.Context(), wait)
	defer cancel()
	submitted := time.Now()
	answer, err := s.front.SubmitAndAwaitOutcome(ctx, waiting, event, derived)
	err = markUnchecked(err, route, derived)
	s.metrics.verdict.WithLabelValues(rq.route).Observe(time.Since(submitted).Seconds())
	var response *response
	switch {
	case errors.Is(err, front.ErrNoVerdict) && derived.Finding == rules.KeyMissing: // Kafka has the event, and a repeated event without a key would be executed, too
		response = respondToVerdict(route, &wire.Answer{Verdict: dedup.MissingKey, Forwarded: true})
	case err != nil:
		response = s.respondToError(r, rq, err, route.HTTP).with(headerKey, rq.key)
		if errors.Is(err, front.ErrNoVerdict) || errors.Is(err, front.ErrKept) && derived.Finding == rules.Keyed { // Kafka has the event, or will have it
			response.with(headerLocation, locationOf(&operation))
		}
	case r.Context().Err() != nil && !errors.Is(context.Cause(r.Context()), errDrained) && !answer.HasOutcome:
		return disconnected()
	default:
		response = respondToOperation(&operation, &answer)
	}
	if applied != "" {
		response.with(headerApplied, applied)
	}
	return response
}

// respondToOperation returns the response to an event of a route that has http.answer: outcome.
func respondToOperation(o *front.Operation, a *wire.Answer) *response {
	if a.HasOutcome {
		return respondToVerdict(o.Route, a)
	}
	claimed := a.Attempt > 0 && a.Status != dedup.StatusForwarded
	switch {
	case claimed && (a.OutcomeFollows || a.Awaited || a.Verdict == dedup.Unique || a.Verdict == dedup.AfterWindow || a.Verdict == dedup.Collision && a.Forwarded):
		return identify(pending(o, a.Status), o.Route, a)
	case claimed && a.Verdict == dedup.InProgress:
		return respondToVerdict(o.Route, a).with(headerLocation, locationOf(o))
	}
	return respondToVerdict(o.Route, a)
}

// pending returns the 202 that tells the state of an operation that has no outcome yet.
func pending(o *front.Operation, status string) *response {
	body, err := json.Marshal(struct {
		Status      string `json:"status"`
		ClaimStatus string `json:"claim_status"`
	}{"accepted", status})
	if err != nil {
		panic(err) // strings always marshal
	}
	r := &response{status: http.StatusAccepted, name: "pending", contentType: jsonType, body: append(body, '\n')}
	return r.with(headerLocation, locationOf(o)).with("Retry-After", retryAfter(retrySoon))
}

// takeLocation responds to a GET of the location of an operation.
func (s *Server) takeLocation(w http.ResponseWriter, r *http.Request, rq *request, e *endpoint, name string) *response {
	if !asks(r) {
		s.leaveBody(w)
		return wrongMethod(allowAsking)
	}
	if rejected := s.receiveLookup(w, r, rq, e, &e.lookup, r.URL.EscapedPath()); rejected != nil {
		return rejected
	}
	operation, ok := operationAt(e.routes, name)
	if !ok {
		return problemUnknownRequest.respond("the location is not one of this path")
	}
	return s.admitLookup(w, s.lookups, rq, e, &e.lookup, func() *response { return s.lookUp(r, rq, e, &operation) })
}

// takeKey responds to a GET of the path of a route whose headers contain the key of an operation. It is for a
// sender who lost its connection before any response, and therefore has no location.
func (s *Server) takeKey(w http.ResponseWriter, r *http.Request, rq *request, e *endpoint) *response {
	if rejected := s.receiveLookup(w, r, rq, e, &e.lookup, r.URL.EscapedPath()+"\n"+r.Header.Get(headerIdempotency)); rejected != nil {
		return rejected
	}
	return s.admitLookup(w, s.lookups, rq, e, &e.lookup, func() *response { return s.lookUpKey(r, rq, e) })
}

// lookUpKey derives the key from the headers of the request, asks for the outcome of its operation, and
// responds.
func (s *Server) lookUpKey(r *http.Request, rq *request, e *endpoint) *response {
	headers, err := e.recordHeaders(r.Header)
	if err != nil {
		return invalidHeaders(e.HTTP, err)
	}
	derived, err := s.front.Derive(&front.Submission{Path: e.Path, Topic: e.Topic, Value: []byte("{}"), Headers: headers, Time: rq.received, Source: rq.source.String()})
	if err != nil {
		return s.respondToError(r, rq, err, e.HTTP)
	}
	route, matches := e.routeOf(derived.Route)
	rq.route = route.Name
	switch {
	case !matches || route.KeyHeader() == "" || derived.HasAdjacent || derived.Finding == rules.Malformed:
		return problemKeyOfBody.respond("GET the Location of its response, or send the request again: it is a duplicate then")
	case derived.Finding != rules.Keyed:
		missing := wire.Answer{Verdict: dedup.MissingKey, Reason: derived.Reason}
		return asInDraft(route.HTTP, &missing, problemMissingKey.respond(derived.Reason))
	}
	operation := front.OperationOf(&derived)
	operation.Details.Fingerprint = 0 // the fingerprint is that of the payload, and a GET has no payload
	return s.lookUp(r, rq, e, &operation)
}

// receiveLookup authenticates a request for an outcome as the server authenticates an event. A GET has no body,
// so a scheme that signs the body signs target instead.
func (s *Server) receiveLookup(w http.ResponseWriter, r *http.Request, rq *request, e *endpoint, body *bodyRules, target string) *response {
	s.leaveBody(w)
	if !e.allowsSource(rq.source) {
		return s.reject(rq, reasonAddress, problemSource.respond(""))
	}
	if wait := e.sources.allow(rq.source, rq.start); wait > 0 {
		return s.reject(rq, reasonSource, tooFast(ofSource, wait))
	}
	if r.ContentLength != 0 {
		return tooLarge(body)
	}
	_ = http.NewResponseController(w).SetReadDeadline(time.Time{}) // as in receive
	rq.received = s.now()
	if err := body.auth.verify(requestToVerify(r, target), rq.received); err != nil {
		return s.unauthorised(rq, body, err)
	}
	return nil
}

// admitLookup counts a request that receiveLookup has accepted against the limits, and lets take respond to it.
func (s *Server) admitLookup(w http.ResponseWriter, limits *requestLimits, rq *request, e *endpoint, body *bodyRules, take func() *response) *response {
	return s.admit(w, limits, body, rq, true, func() *response {
		if wait := e.rate.allow(rq.received); wait > 0 {
			return s.reject(rq, reasonRate, tooFast("", wait))
		}
		return take()
	})
}

// lookUp asks for the outcome of an operation and responds with it.
func (s *Server) lookUp(r *http.Request, rq *request, e *endpoint, o *front.Operation) *response {
	rq.route, rq.key = o.Route.Name, wire.KeyText(&o.Key)
	ctx, cancel := context.WithTimeout(r.Context(), e.Timeout)
	defer cancel()
	answer, err := s.front.AskForOutcome(ctx, e.Path, o)
	if err != nil {
		response := s.respondToError(r, rq, err, e.HTTP)
		if errors.Is(err, front.ErrNoVerdict) && !response.disconnected {
			response = problemStateTimeout.respond("").with("Retry-After", retryAfter(retrySoon))
		}
		return response
	}
	return respondToLookup(o, &answer)
}

// respondToLookup returns the response to a GET that asks for the outcome of an operation.
func respondToLookup(o *front.Operation, a *wire.Answer) *response {
	switch {
	case a.HasOutcome:
		return respondToVerdict(o.Route, a)
	case a.Status == dedup.StatusForwarded:
		return identify(problemForwarded.respondTo(a, a.Reason), o.Route, a)
	case a.Verdict == dedup.InProgress:
		return identify(pending(o, a.Status), o.Route, a)
	case a.Status == wire.StatusFreed:
		return problemNoResult.respond("it failed, was rejected or was erased; " + keyIsFree)
	case a.Status == wire.StatusExpired:
		return problemExpired.respond("")
	}
	return problemUnknownRequest.respond("no event of it was judged, or it was erased since")
}
