package ingress

import (
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"time"

	"oncebus/dedup"
	"oncebus/dedup/rules"
	"oncebus/processor/front"
	"oncebus/processor/wire"
)

// operates reports whether an answer is about an operation that has a claim.
func operates(a *wire.Answer) bool {
	switch a.Verdict {
	case dedup.Unique, dedup.AfterWindow, dedup.InProgress:
		return true
	case dedup.Collision:
		return a.Forwarded
	case dedup.Duplicate, dedup.Late, dedup.MissingKey, dedup.Invalid, dedup.Limited, dedup.Replayed, dedup.Bypassed:
	}
	return false
}

// operationSamples returns the responses to a complete answer about an operation: the responses that are sent
// at once, and those after a wait.
func operationSamples(a *wire.Answer, r *rules.Route) []sample {
	o := front.Operation{Route: r}
	var samples []sample
	for _, status := range []dedup.Status{dedup.ClaimInProgress, dedup.Submitted} {
		for _, first := range []string{"", a.FirstRequest} {
			for _, awaited := range []bool{false, true} {
				answer := *a
				answer.Status, answer.FirstRequest, answer.Awaited = status.String(), first, awaited
				samples = append(samples, sample{response: respondToOperation(&o, &answer)})
			}
		}
	}
	return samples
}

// malformedKey returns the response to an Idempotency-Key that does not have the draft's form.
func malformedKey(h *rules.HTTP) []sample {
	if h.Idempotency == nil {
		return nil
	}
	return []sample{{response: invalidHeaders(h, &malformedKeyError{})}}
}

// withPreference adds to each response the form that this response has if the server applied a preference of
// the request.
func withPreference(samples []sample, h *rules.HTTP) []sample {
	if h.Answer == nil {
		return samples
	}
	for _, s := range samples[:len(samples):len(samples)] {
		if s.verdict == "" && s.header.Get(headerKey) == "" {
			continue // such a response is sent before the event is submitted, when no preference was applied yet
		}
		applied := *s.response
		applied.header = maps.Clone(s.header)
		s.response = applied.with(headerApplied, "wait=1")
		samples = append(samples, s)
	}
	return samples
}

// lookupSamples returns the responses to a GET for the outcome of an operation.
func lookupSamples(routes []*rules.Route) []sample {
	h := routes[0].HTTP
	samples := append(authenticated(h), sample{response: errorResponse(front.ErrHeld, h)})
	samples = append(samples, sample{response: problemStateTimeout.respond("").with("Retry-After", retryAfter(retrySoon))})
	for _, r := range routes {
		o := front.Operation{Route: r}
		for _, status := range []string{wire.StatusUnknown, wire.StatusExpired, wire.StatusFreed} {
			samples = append(samples, sample{response: respondToLookup(&o, &wire.Answer{Status: status})})
		}
		known := []wire.Answer{
			{Verdict: dedup.InProgress, Status: dedup.ClaimInProgress.String()}, {Verdict: dedup.InProgress, Status: dedup.Submitted.String()},
			{Verdict: dedup.Duplicate, Status: dedup.StatusForwarded},
		}
		for _, a := range outcomeAnswers(r) {
			if a.Status == dedup.OutcomeCompleted.String() && a.Verdict == dedup.Replayed {
				known = append(known, a)
			}
		}
		for _, a := range known {
			full, bare := complete(a, r), complete(a, r)
			bare.FirstRequest = ""
			for _, response := range []*response{respondToLookup(&o, full), respondToLookup(&o, bare)} {
				samples = append(samples, sample{response: response, open: a.HasOutcome && response.problem == nil, any: outcomeHeader(a.Headers, recordStatus) != ""})
			}
		}
	}
	return samples
}

// addFollowers describes how a client follows the outcomes of a path as server-sent events.
func (d *document) addFollowers(path string, routes []*rules.Route, window time.Duration) error {
	h := routes[0].HTTP
	samples := append(authenticated(h), sample{response: problemPosition.respond("")},
		sample{open: true, response: &response{status: http.StatusOK, name: "server-sent events: outcome, gap", contentType: eventStream}})
	o := operation{
		Summary: "Sends the outcomes of " + names(routes) + " as they come",
		Description: fmt.Sprintf("Server-sent events. An event outcome has the response that a waiting sender gets, an event gap says that outcomes are gone. "+
			"At most %d connections to one process.", h.Events.MaxConnections),
		Parameters: []parameter{{Name: headerLastEvent, In: "header", Description: "The id of the last event that the client has got.", Schema: schema{"type": "string"}}},
		Responses:  describeSamples(samples),
	}
	if err := d.sign(&o, routes[0].Name, &h.Signature, window); err != nil {
		return err
	}
	d.Paths[path+rules.EventsSuffix] = pathItem{strings.ToLower(http.MethodGet): &o}
	return nil
}

// authenticated returns the responses with which the server can reject a GET before it looks at what the GET
// asks for.
func authenticated(h *rules.HTTP) []sample {
	samples := append(malformed(), sample{response: busy("")}, sample{response: tooLarge(&bodyRules{})}, sample{response: unauthorized(challenge(&h.Signature))})
	if h.AllowedSources != nil {
		samples = append(samples, sample{response: problemSource.respond("")})
	}
	if h.Rate != (rules.Rate{}) || h.SourceRate != (rules.Rate{}) {
		samples = append(samples, sample{response: tooFast("", time.Second)})
	}
	return append(samples, sample{response: errorResponse(front.ErrKafkaUnavailable, h)})
}

// addLookups describes the two ways in which a sender asks for the outcome of an operation: by its location,
// and by the header that has its key.
func (d *document) addLookups(path string, routes []*rules.Route, window time.Duration) error {
	h := routes[0].HTTP
	byLocation := operation{
		Summary:     "Returns the state or the outcome of an operation of " + names(routes),
		Description: "The path is the Location of a response. A scheme that signs the body signs the path in its place.",
		Parameters:  []parameter{{Name: "operation", In: "path", Required: true, Description: "As in the Location.", Schema: schema{"type": "string"}}},
		Responses:   describeSamples(lookupSamples(routes)),
	}
	byKey := operation{
		Summary:     "Returns the state or the outcome of an operation of " + names(routes) + ", by its key",
		Description: fmt.Sprintf("For a sender that got no response, where the key is one header. A scheme that signs the body signs the path, a line feed and the value of %s in its place.", headerIdempotency),
		Responses: describeSamples(append(append(lookupSamples(routes), malformedKey(h)...), sample{response: problemInvalid.respond("")}, sample{response: problemKeyOfBody.respond("")},
			sample{response: asInDraft(h, &wire.Answer{}, problemMissingKey.respond(""))})),
	}
	for _, name := range slices.Concat(rules.CarriedHeaders[:], h.Headers) {
		if slices.ContainsFunc(routes, func(r *rules.Route) bool { return r.KeyHeader() == name }) {
			p := carriedParameter(name, routes)
			p.Description = strings.Replace(p.Description, "Becomes a header of the record.", "As in the request.", 1)
			byKey.Parameters = append(byKey.Parameters, p)
		}
	}
	for _, o := range []*operation{&byLocation, &byKey} {
		if err := d.sign(o, routes[0].Name, &h.Signature, window); err != nil {
			return err
		}
	}
	d.Paths[path+rules.RequestsSuffix+"{operation}"] = pathItem{strings.ToLower(http.MethodGet): &byLocation}
	d.Paths[path][strings.ToLower(http.MethodGet)] = &byKey
	return nil
}
