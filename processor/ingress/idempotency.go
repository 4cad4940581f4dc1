package ingress

import (
	"errors"
	"fmt"
	"strings"

	"github.com/dunglas/httpsfv"

	"oncebus/dedup/rules"
	"oncebus/processor/wire"
)

// headerIdempotency is the header of draft-ietf-httpapi-idempotency-key-header:
// a String of RFC 9651, in quotes. Many senders omit the quotes; both spellings
// are the same key.
const headerIdempotency = "Idempotency-Key"

// idempotencyPattern describes the header in the OpenAPI document. Parameters
// may also be decimals, strings, byte sequences and the like.
const idempotencyPattern = `^([^"].*|"([\x20\x21\x23-\x5b\x5d-\x7e]|\\["\\])*"(;[a-z*][a-z0-9_.*-]*(=(-?[0-9]{1,15}|\?[01]|[A-Za-z*][A-Za-z0-9_.-]*))?)*)?$`

// idempotencyString describes the header where a route has idempotency_key.
const idempotencyString = `^"([\x20\x21\x23-\x5b\x5d-\x7e]|\\["\\])+"(;[a-z*][a-z0-9_.*-]*(=(-?[0-9]{1,15}|\?[01]|[A-Za-z*][A-Za-z0-9_.-]*))?)*$`

// Headers of the draft's problems.
const (
	headerLink     = "Link"
	headerLanguage = "Content-Language"
)

// draftProblems are the problems of the draft, section 2.7, by the name of the one that a
// route without idempotency_key has. Titles and details are those of its examples.
var draftProblems = map[string]struct {
	problem
	detail string
}{
	problemMissingKey.name: {problemKeyMissing, "This operation is idempotent and it requires correct usage of Idempotency Key."},
	problemCollision.name: {problemKeyReused, "This operation is idempotent and it requires correct usage of Idempotency Key. " +
		"Idempotency Key MUST not be reused across different payloads of this operation."},
	problemInProgress.name: {problemKeyOutstanding, "A request with the same Idempotency-Key for the same operation is being processed or is outstanding."},
}

// asInDraft returns the response of the draft to an answer, if the route keeps to the draft
// and the draft has one. r is the default.
func asInDraft(h *rules.HTTP, a *wire.Answer, r *response) *response {
	if h.Idempotency == nil || r.problem == nil {
		return r
	}
	p, ok := draftProblems[r.problem.name]
	if !ok {
		return r
	}
	body := bodyTo(a, p.detail)
	drafted := withDocs(h.Idempotency, p.problem, body)
	if retry := r.header.Get("Retry-After"); retry != "" {
		drafted.with("Retry-After", retry)
	}
	return drafted
}

// withDocs returns the response for a problem that links to a documentation.
func withDocs(x *rules.Idempotency, p problem, body *problemBody) *response {
	body.Docs = x.Docs
	return p.response(body).with(headerLink, "<"+x.Docs+`>; rel="describedby"; type="text/html"`).with(headerLanguage, "en")
}

// malformedKeyError says why a key of a route that keeps to the draft cannot be read.
type malformedKeyError struct{ detail string }

func (e *malformedKeyError) Error() string { return "header " + headerIdempotency + ": " + e.detail }

// invalidHeaders is the response to a request with headers that cannot be read.
func invalidHeaders(h *rules.HTTP, err error) *response {
	var malformed *malformedKeyError
	if errors.As(err, &malformed) {
		return withDocs(h.Idempotency, problemKeyMalformed, &problemBody{Detail: err.Error()})
	}
	return problemInvalid.respond(err.Error())
}

// readStringKey returns the key of a request to a route that keeps to the draft: a String of
// RFC 8941 that is not empty; "" for none.
func readStringKey(values []string) (string, error) {
	if len(values) == 0 {
		return "", nil
	}
	item, err := httpsfv.UnmarshalItem(values)
	if err != nil {
		return "", &malformedKeyError{"want one String of RFC 8941, in quotes: " + err.Error()}
	}
	switch key, ok := item.Value.(string); {
	case !ok:
		return "", &malformedKeyError{"want a String of RFC 8941, in quotes"}
	case key == "":
		return "", &malformedKeyError{"the key is empty"}
	default:
		return key, nil
	}
}

// readIdempotencyKey returns the key of a request; "" for none. The error is
// the problem's detail.
func readIdempotencyKey(values []string) (string, error) {
	if len(values) > 1 {
		return "", fmt.Errorf("header %s: it came %d times, want one", headerIdempotency, len(values))
	}
	if len(values) == 0 {
		return "", nil
	}
	value := strings.Trim(values[0], " \t")
	if !strings.HasPrefix(value, `"`) {
		return value, nil
	}
	item, err := httpsfv.UnmarshalItem([]string{value})
	if err != nil {
		return "", fmt.Errorf("header %s: want one string of RFC 9651, or the key without quotes: %w", headerIdempotency, err)
	}
	key, _ := item.Value.(string) // the value of an Item that begins with a quote
	return key, nil
}
