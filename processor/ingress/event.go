package ingress

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"oncebus/dedup"
	"oncebus/dedup/rules"
	"oncebus/processor/front"
	"oncebus/processor/ingress/signature"
	"oncebus/processor/wire"
)

// takeEvent responds to a request with an event, or to a handshake. It first makes all checks for which the
// head suffices.
func (s *Server) takeEvent(w http.ResponseWriter, r *http.Request, rq *request, e *endpoint) *response {
	if !e.allowsSource(rq.source) {
		return s.reject(rq, reasonAddress, problemSource.respond(""))
	}
	if asks(r) && e.token != nil {
		if wait := e.sources.allow(rq.source, rq.start); wait > 0 {
			return s.reject(rq, reasonSource, tooFast(ofSource, wait))
		}
		return s.answerMeta(r, rq, e)
	}
	if !slices.Contains(e.Methods, r.Method) {
		return wrongMethod(e.allow)
	}
	if wait := e.sources.allow(rq.source, rq.start); wait > 0 {
		return s.reject(rq, reasonSource, tooFast(ofSource, wait))
	}
	if rejected := e.contentTypeProblem(r.Header); rejected != nil {
		return rejected
	}
	if rejected := s.refuseHead(w, r, rq, &e.body); rejected != nil {
		return rejected
	}
	return s.admit(w, s.events, &e.body, rq, e.body.auth.keys == nil, func() *response { return s.receiveEvent(w, r, rq, e) })
}

// receiveEvent reads an event, submits it and responds.
func (s *Server) receiveEvent(w http.ResponseWriter, r *http.Request, rq *request, e *endpoint) *response {
	body, rejected := s.receive(w, r, rq, &e.body)
	if rejected != nil {
		return rejected
	}
	// The rate is checked after the signature, so that senders without the secret use up nothing of the
	// endpoint's rate.
	if wait := e.rate.allow(rq.received); wait > 0 {
		return s.reject(rq, reasonRate, tooFast("", wait))
	}
	if answer := e.answerHandshake(signature.Request{Header: r.Header, Query: r.URL.RawQuery, Body: body}, rq.received); answer != nil {
		return answer
	}
	ctx, cancel := context.WithTimeout(r.Context(), e.Timeout)
	defer cancel()
	headers, err := e.recordHeaders(r.Header)
	if err != nil {
		return invalidHeaders(e.HTTP, err)
	}
	headers = e.appendPrincipal(headers, r)
	event := &front.Submission{Path: e.Path, Topic: e.Topic, Value: body, Headers: headers, Time: rq.received, Source: rq.source.String(), WaitForBroker: e.WaitForKafka, Keep: e.Keep}
	derived, err := s.derive(ctx, event)
	if err != nil {
		return s.respondToError(r, rq, err, e.HTTP)
	}
	route, matches := e.routeOf(derived.Route)
	rq.route, rq.request = route.Name, derived.Request
	if derived.Finding == rules.Keyed {
		rq.key = hex.EncodeToString(derived.Key[:])
	}
	switch {
	case matches && route.Off && !derived.Unmatched && derived.Finding != rules.Keyed:
		if err := s.front.Submit(ctx, event, &derived); err != nil {
			return s.respondToError(r, rq, err, route.HTTP)
		}
		return respondToVerdict(route, &wire.Answer{Verdict: dedup.Bypassed, Forwarded: true})
	case derived.Finding == rules.Malformed:
		return s.refuse(ctx, r, rq, route, event, &derived, dedup.Invalid)
	case !matches:
		return problemNoRoute.respond("")
	case derived.Finding == rules.KeyMissing && route.HTTP.RequireKey:
		return s.refuse(ctx, r, rq, route, event, &derived, dedup.MissingKey)
	}
	if rejected := s.overQuota(rq, e, route, &derived); rejected != nil {
		return rejected
	}
	return s.submit(ctx, r, rq, route, event, &derived)
}

// derive returns the route and the key of an event. Events of a route with on_kafka_unavailable: wait must wait
// here until the ingress client has compared its routes file with the routes of the app.
func (s *Server) derive(ctx context.Context, event *front.Submission) (rules.Derived, error) {
	derived, err := s.front.Derive(event)
	if err == nil || !event.WaitForBroker {
		return derived, err
	}
	if err := s.front.Await(ctx); err != nil {
		return derived, err
	}
	return s.front.Derive(event)
}

// submit produces the event and responds. If the route accepts events without a key, a task gives no verdict on
// such an event, so submit does not wait for a verdict, unless the sender waits for the outcome.
func (s *Server) submit(ctx context.Context, r *http.Request, rq *request, route *rules.Route, event *front.Submission, derived *rules.Derived) *response {
	if route.HTTP.Answer != nil && (derived.Finding == rules.Keyed || route.OnMissingKey == rules.Forward) {
		return s.submitForOutcome(ctx, r, rq, route, event, derived)
	}
	if route.HTTP.Verdict && derived.Finding == rules.Keyed {
		submitted := time.Now()
		answer, err := s.front.SubmitAndWait(ctx, event, derived)
		err = markUnchecked(err, route, derived)
		s.metrics.verdict.WithLabelValues(rq.route).Observe(time.Since(submitted).Seconds())
		if err != nil {
			return s.respondToError(r, rq, err, route.HTTP).with(headerKey, rq.key)
		}
		return respondToVerdict(route, &answer)
	}
	if err := s.front.Submit(ctx, event, derived); err != nil {
		return s.respondToError(r, rq, markUnchecked(err, route, derived), route.HTTP)
	}
	if derived.Finding == rules.KeyMissing {
		return respondToVerdict(route, &wire.Answer{Verdict: dedup.MissingKey, Forwarded: true})
	}
	return accepted("async").with(headerKey, rq.key)
}

// refuse responds to an event that cannot be judged. If the routes file has a 2xx for such an event, refuse
// first produces the event to the input topic, because the sender will not retry after a 2xx; there the event
// is dead-lettered, or on_missing_key applies.
func (s *Server) refuse(ctx context.Context, r *http.Request, rq *request, route *rules.Route, event *front.Submission, derived *rules.Derived, verdict dedup.Verdict) *response {
	response := respondToVerdict(route, &wire.Answer{Verdict: verdict, Reason: derived.Reason})
	if response.status >= http.StatusMultipleChoices {
		return response
	}
	if err := s.front.Submit(ctx, event, derived); err != nil {
		return s.respondToError(r, rq, err, route.HTTP)
	}
	return response
}

// respondToError returns the response to a request that failed with err. If the client has disconnected, the
// response closes the connection instead of sending a 5xx. net/http cannot tell a client that closed only its
// sending side from one that has disconnected, so such a client gets no response either.
func (s *Server) respondToError(r *http.Request, rq *request, err error, h *rules.HTTP) *response {
	response := errorResponse(err, h)
	if isLimit(err) {
		response = s.rejectBusy(rq, err)
	}
	if response.status < http.StatusInternalServerError || r.Context().Err() == nil || errors.Is(context.Cause(r.Context()), errDrained) {
		return response
	}
	return disconnected()
}

// errUnchecked means that the event of a failed request may be in Kafka, and that its route may forward events
// unchecked: if the sender retries, the event may be emitted a second time.
var errUnchecked = errors.New("the route may forward the event unchecked")

// markUnchecked wraps err in errUnchecked if the event has a key and errUnchecked applies to it.
func markUnchecked(err error, route *rules.Route, derived *rules.Derived) error {
	perhapsStored := errors.Is(err, front.ErrNoVerdict) || errors.Is(err, front.ErrUnacknowledged)
	if perhapsStored && derived.Finding == rules.Keyed && route.MayForwardUnchecked() {
		return fmt.Errorf("%w: %w", errUnchecked, err)
	}
	return err
}

// uncheckedRetry is the detail of the problem for errUnchecked.
const uncheckedRetry = "the route may forward events unchecked: sent again, the event may be emitted a second time"

// heldRetry is the Retry-After while an operator holds the app. A change of the app takes seconds.
const heldRetry = 2 * time.Second

// errorResponse returns the response to a client that is still connected.
func errorResponse(err error, h *rules.HTTP) *response {
	retry := "the request can be retried safely"
	if errors.Is(err, front.ErrMissingKey) {
		retry = "the event has no key: if Kafka stored it, a retry stores it a second time"
	}
	switch {
	case errors.Is(err, front.ErrKept):
		return keptUnchecked()
	case errors.Is(err, front.ErrTooLarge):
		return problemTooLarge.respond(overTopicLimit + strings.TrimPrefix(err.Error(), front.ErrTooLarge.Error()))
	case errors.Is(err, front.ErrHeld):
		return problemHeld.respond("nothing was stored: the request can be retried safely").with("Retry-After", retryAfter(heldRetry))
	case errors.Is(err, front.ErrNoVerdict) && h.AcceptOnTimeout:
		return accepted("timeout")
	case errors.Is(err, front.ErrNoVerdict) && errors.Is(err, errUnchecked):
		return problemVerdictTimeoutUnchecked.respond("Kafka stored the event; " + uncheckedRetry)
	case errors.Is(err, front.ErrNoVerdict):
		return problemVerdictTimeout.respond("Kafka stored the event; "+retry).with("Retry-After", retryAfter(retrySoon))
	}
	// Senders must not see the error's text: it names brokers.
	response := problemKafkaUnavailable.respond(retry).with("Retry-After", retryAfter(retrySoon))
	if errors.Is(err, errUnchecked) {
		response = problemKafkaUnavailableUnchecked.respond("Kafka may have stored the event; " + uncheckedRetry)
	}
	response.reason = err.Error()
	return response
}
