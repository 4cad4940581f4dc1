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
	"oncebus/processor"
)

// Headers of an outcome that comes in.
const (
	headerClaimToken   = "Oncebus-Claim-Token"   // the token that came with the event
	headerOutcome      = "Oncebus-Outcome"       // the kind
	headerResultStatus = "Oncebus-Result-Status" // the status that copies are answered with
	// headerEmpty with the value true makes an empty body an empty result; it
	// is null otherwise.
	headerEmpty       = "Oncebus-Empty"
	headerContentType = "Content-Type" // of the result, given back with it
)

// shorterOutcome is what an executor can do about an outcome that is too large:
// without one the operation would run again when its lease ends.
const shorterOutcome = "the outcome can be sent again with a shorter result, or with none"

// takeOutcome puts an outcome on the bus.
func (s *Server) takeOutcome(w http.ResponseWriter, r *http.Request, rq *request, d *outcomeDoor) *response {
	if r.Method != http.MethodPost {
		return wrongMethod(http.MethodPost)
	}
	body, refused := s.receive(w, r, rq, &d.intake)
	if refused != nil {
		return refused
	}
	kind, headers, err := readOutcomeHeaders(r.Header)
	if err != nil {
		return problemOutcome.respond(err.Error())
	}
	if len(body) == 0 && r.Header.Get(headerEmpty) != "true" {
		body = nil
	}
	ctx, cancel := context.WithTimeout(r.Context(), d.http.Timeout)
	defer cancel()
	for _, route := range d.routes {
		// The token says whose claim it is; each route takes its own only.
		err = s.front.PublishOutcome(ctx, route, []byte(r.Header.Get(headerClaimToken)), kind, body, headers)
		if !errors.Is(err, processor.ErrOutcome) {
			rq.route = route.Name
			break
		}
	}
	switch {
	case err == nil:
		return accepted(kind.String())
	case errors.Is(err, processor.ErrOutcome):
		return problemOutcome.respond(err.Error())
	case errors.Is(err, processor.ErrTooLarge):
		return problemTooLarge.respond(overTopic + "; " + shorterOutcome)
	}
	return s.unserved(r, err, d.http)
}

// readOutcomeHeaders reads what the headers say of an outcome. What would not
// be given back as it is, or could be meant in two ways, is refused: this is
// where its executor can still be told.
func readOutcomeHeaders(in http.Header) (dedup.OutcomeKind, []dedup.Header, error) {
	for _, name := range []string{headerClaimToken, headerOutcome, headerResultStatus, headerEmpty, headerContentType} {
		if n := len(in.Values(name)); n > 1 {
			return 0, nil, fmt.Errorf("header %s is there %d times", name, n)
		}
	}
	kind, ok := dedup.ParseOutcomeKind([]byte(in.Get(headerOutcome)))
	if !ok {
		return 0, nil, fmt.Errorf("header %s: %.40q is none of %v", headerOutcome, in.Get(headerOutcome), dedup.OutcomeKinds)
	}
	if in.Get(headerClaimToken) == "" {
		return 0, nil, fmt.Errorf("header %s is missing: it is the token that came with the event", headerClaimToken)
	}
	var headers []dedup.Header
	if text := in.Get(headerContentType); text != "" {
		if !isMediaType(text) {
			return 0, nil, fmt.Errorf("header %s: %.80q is no media type such as application/json or text/plain; charset=utf-8", headerContentType, text)
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

// isMediaType tells whether a text can be the content type of an answer.
func isMediaType(text string) bool {
	kind, _, err := mime.ParseMediaType(text)
	return err == nil && strings.Contains(kind, "/") && fitsHeader(text)
}

// The statuses that an executor may choose from.
const statusMin, statusMax = 200, 599

// parseStatus reads the status of an answer that is the last one to its request.
func parseStatus(text string) (int, error) {
	status, err := strconv.Atoi(text)
	if err != nil || len(text) != 3 || status < statusMin || status > statusMax {
		return 0, fmt.Errorf("%.40q is no status from %d to %d", text, statusMin, statusMax)
	}
	return status, nil
}
