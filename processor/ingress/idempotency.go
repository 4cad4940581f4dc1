package ingress

import (
	"errors"
	"fmt"
	"strings"

	"github.com/dunglas/httpsfv"

	"oncebus/dedup/rules"
	"oncebus/processor/wire"
)

// headerIdempotency is the header of draft-ietf-httpapi-idempotency-key-header. Its value is a String of RFC
// 9651, in quotes. Many senders omit the quotes; both spellings are the same key.
const headerIdempotency = "Idempotency-Key"

// idempotencyPattern describes the header in the OpenAPI document. The server also accepts parameters that the
// pattern does not show: decimals, strings, byte sequences and the like.
const idempotencyPattern = `^([^"].*|"([\x20\x21\x23-\x5b\x5d-\x7e]|\\["\\])*"(;[a-z*][a-z0-9_.*-]*(=(-?[0-9]{1,15}|\?[01]|[A-Za-z*][A-Za-z0-9_.-]*))?)*)?$`

// idempotencyString describes the header in the OpenAPI document for a route with idempotency_key.
const idempotencyString = `^"([\x20\x21\x23-\x5b\x5d-\x7e]|\\["\\])+"(;[a-z*][a-z0-9_.*-]*(=(-?[0-9]{1,15}|\?[01]|[A-Za-z*][A-Za-z0-9_.-]*))?)*$`

// Further response headers of the draft's problems.
const (
	headerLink     = "Link"
	headerLanguage = "Content-Language"
)

// draftProblems has the problems of section 2.7 of the draft, by the name of the problem with which a route
// without idempotency_key would respond. Titles and details are those of the draft's examples.
var draftProblems = map[string]struct {
	problem
	detail string
}{
	problemMissingKey.name: {problemKeyMissing, "This operation is idempotent and it requires correct usage of Idempotency Key."},
	problemCollision.name: {problemKeyReused, "This operation is idempotent and it requires correct usage of Idempotency Key. " +
		"Idempotency Key MUST not be reused across different payloads of this operation."},
	problemInProgress.name: {problemKeyOutstanding, "A request with the same Idempotency-Key for the same operation is being processed or is outstanding."},
}

// asInDraft returns the draft's response to an answer if the route follows the draft (idempotency_key) and the
// draft has a response for it. Otherwise it returns the default response r.
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

// withDocs returns the response for a problem of the draft, with links to the documentation that the route
// names.
func withDocs(x *rules.Idempotency, p problem, body *problemBody) *response {
	body.Docs = x.Docs
	return p.response(body).with(headerLink, "<"+x.Docs+`>; rel="describedby"; type="text/html"`).with(headerLanguage, "en")
}

// malformedKeyError says why the server cannot parse the key of a route that follows the draft.
type malformedKeyError struct{ detail string }

func (e *malformedKeyError) Error() string { return "header " + headerIdempotency + ": " + e.detail }

// invalidHeaders returns the response to a request whose headers cannot be parsed.
func invalidHeaders(h *rules.HTTP, err error) *response {
	var malformed *malformedKeyError
	if errors.As(err, &malformed) {
		return withDocs(h.Idempotency, problemKeyMalformed, &problemBody{Detail: err.Error()})
	}
	return problemInvalid.respond(err.Error())
}

// readStringKey returns the key of a request to a route that follows the draft, "" for none. The header must be
// a String of RFC 8941 that is not empty.
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

// readIdempotencyKey returns the key of a request, "" for none. The error is the detail of the problem.
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
