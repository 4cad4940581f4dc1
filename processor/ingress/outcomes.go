package ingress

import (
	"context"
	"errors"
	"fmt"
	"mime"
	"net/http"
	"strconv"
	"strings"

	"oncebus/dedup"
	"oncebus/processor/front"
	"oncebus/processor/wire"
)

// Request headers of an outcome:
const (
	headerClaimToken   = "Oncebus-Claim-Token"   // the token of the dispatched event
	headerReplyTo      = "Oncebus-Reply-To"      // in place of the token, for an event without a claim
	headerOutcome      = "Oncebus-Outcome"       // the kind of the outcome
	headerStartID      = "Oncebus-Start-Id"      // names the executor that asks with start or renew
	headerResultStatus = "Oncebus-Result-Status" // the status of the response that duplicates get
	// headerEmpty with the value true makes an empty body an empty result. Without this header, an empty body
	// is a null result.
	headerEmpty       = "Oncebus-Empty"
	headerContentType = "Content-Type" // of the result, and of its replays
)

// sendShorterResult tells an executor what to do about an outcome that is too large: if no outcome arrives, the
// operation runs again when its lease ends.
const sendShorterResult = "send the outcome with a shorter result, or without one"

// takeOutcome responds to a request with an outcome. It first makes all checks for which the head suffices.
func (s *Server) takeOutcome(w http.ResponseWriter, r *http.Request, rq *request, e *outcomeEndpoint) *response {
	if r.Method != http.MethodPost {
		return wrongMethod(http.MethodPost)
	}
	if rejected := s.refuseHead(w, r, rq, &e.body); rejected != nil {
		return rejected
	}
	return s.admit(w, s.outcomes, &e.body, rq, e.body.auth.keys == nil, func() *response { return s.receiveOutcome(w, r, rq, e) })
}

// receiveOutcome reads an outcome, produces it to Kafka and responds.
func (s *Server) receiveOutcome(w http.ResponseWriter, r *http.Request, rq *request, e *outcomeEndpoint) *response {
	body, rejected := s.receive(w, r, rq, &e.body)
	if rejected != nil {
		return rejected
	}
	kind, headers, err := readOutcomeHeaders(r.Header)
	if err != nil {
		return problemOutcome.respond(err.Error())
	}
	if len(body) == 0 && r.Header.Get(headerEmpty) != "true" {
		body = nil
	}
	if kind.Asks() && (body != nil || r.Header.Get(headerResultStatus) != "") {
		return problemOutcome.respond(fmt.Sprintf("outcome %v has no result: send it without a body and without the header %s", kind, headerResultStatus))
	}
	ctx, cancel := context.WithTimeout(r.Context(), e.http.Timeout)
	defer cancel()
	token := []byte(r.Header.Get(headerClaimToken))
	var answer wire.Answer
	for _, route := range e.routes {
		// The claim token contains its namespace, and every route rejects a token of another namespace.
		switch {
		case len(token) == 0:
			err = s.front.SubmitUnclaimed(ctx, route, []byte(r.Header.Get(headerReplyTo)), kind, body, headers)
		case kind.Asks():
			answer, err = s.front.AskAndWait(ctx, route, token, kind, []byte(r.Header.Get(headerStartID)))
		default:
			err = s.front.SubmitOutcome(ctx, route, token, kind, body, headers)
		}
		if !errors.Is(err, front.ErrOutcome) {
			rq.route = route.Name
			break
		}
	}
	switch {
	case err == nil && kind.Asks():
		return respondToQuestion(&answer)
	case err == nil:
		return accepted(kind.String())
	case errors.Is(err, front.ErrOutcome):
		return problemOutcome.respond(err.Error())
	case errors.Is(err, front.ErrTooLarge):
		return problemTooLarge.respond(overTopicLimit + "; " + sendShorterResult)
	}
	return s.respondToError(r, rq, err, e.http)
}

// respondToQuestion returns the response to an executor that asks with start or renew.
func respondToQuestion(a *wire.Answer) *response {
	if !a.Granted {
		return problemSuperseded.response(&problemBody{Detail: a.Reason, Key: a.Key, Attempt: a.Attempt, StartedBy: a.StartedBy})
	}
	return &response{status: http.StatusOK, name: wire.AnswerGranted, contentType: jsonType, body: []byte(`{"answer":"granted"}`)}
}

// readOutcomeHeaders parses the headers of an outcome. It refuses headers that are ambiguous, or that could not
// be replayed unchanged to a duplicate: this is the last moment at which the executor learns of the mistake and
// can correct the headers.
func readOutcomeHeaders(in http.Header) (dedup.OutcomeKind, []dedup.Header, error) {
	for _, name := range []string{headerClaimToken, headerReplyTo, headerOutcome, headerStartID, headerResultStatus, headerEmpty, headerContentType} {
		if n := len(in.Values(name)); n > 1 {
			return 0, nil, fmt.Errorf("header %s: it came %d times, want one", name, n)
		}
	}
	kind, ok := dedup.ParseOutcomeKind([]byte(in.Get(headerOutcome)))
	if !ok {
		return 0, nil, fmt.Errorf("header %s: %.40q is unknown, want one of %v", headerOutcome, in.Get(headerOutcome), dedup.OutcomeKinds)
	}
	if in.Get(headerClaimToken) == "" && in.Get(headerReplyTo) == "" {
		return 0, nil, fmt.Errorf("header %s is missing, want the token of the dispatched event, or %s as the event has it", headerClaimToken, headerReplyTo)
	}
	var headers []dedup.Header
	if text := in.Get(headerContentType); text != "" {
		if !isMediaType(text) {
			return 0, nil, fmt.Errorf("header %s: %.80q is malformed, want a media type such as application/json or text/plain; charset=utf-8", headerContentType, text)
		}
		headers = append(headers, dedup.Header{Key: recordContentType, Value: []byte(text)})
	}
	if text := in.Get(headerResultStatus); text != "" {
		if _, err := parseStatus(text); err != nil {
			return 0, nil, fmt.Errorf("header %s: %w", headerResultStatus, err)
		}
		headers = append(headers, dedup.Header{Key: recordStatus, Value: []byte(text)})
	}
	return kind, headers, nil
}

// isMediaType reports whether text can be the content type of a response.
func isMediaType(text string) bool {
	kind, _, err := mime.ParseMediaType(text)
	return err == nil && strings.Contains(kind, "/") && fitsHeader(text)
}

// The range of the statuses that an executor may choose.
const statusMin, statusMax = 200, 599

// parseStatus parses the status of a final response.
func parseStatus(text string) (int, error) {
	status, err := strconv.Atoi(text)
	if err != nil || len(text) != 3 || status < statusMin || status > statusMax {
		return 0, fmt.Errorf("%.40q is out of range, want a status from %d to %d", text, statusMin, statusMax)
	}
	return status, nil
}
