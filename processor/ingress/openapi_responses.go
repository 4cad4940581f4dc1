package ingress

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"oncebus/dedup"
	"oncebus/dedup/rules"
	"oncebus/processor/front"
	"oncebus/processor/wire"
)

// sample is a possible response of a path, made by the code that sends such responses.
type sample struct {
	*response
	open  bool // the document does not restrict the body
	any   bool // an executor's response, which may have any status and content type
	other bool // an executor's response whose status other responses have too
}

// eventSamples returns the responses to events of routes with the same path: each response once with the
// verdict alone, and once with every optional header. So if all samples of a status have a header, the header
// is always present in responses with that status.
func eventSamples(routes []*rules.Route, all *rules.Routes) []sample {
	h := routes[0].HTTP
	samples := append(receiveSamples(&h.Signature, &bodyRules{decompress: h.Decompress}), sample{response: problemInvalid.respond("")}, sample{response: problemMediaType.respond("")})
	samples = append(append(samples, malformedKey(h)...), handshakeSamples(h)...)
	if h.Rate != (rules.Rate{}) || h.SourceRate != (rules.Rate{}) {
		samples = append(samples, sample{response: tooFast("", time.Second)})
	}
	for _, r := range routes {
		if r.Quota != nil {
			samples = append(samples, sample{response: problemQuota.respond("").with("Retry-After", retryAfter(time.Second))})
		}
	}
	if mayMiss(routes, all) {
		samples = append(samples, sample{response: problemNoRoute.respond("")})
	}
	failed := func(err error) {
		samples = append(samples, sample{response: errorResponse(err, h)}, sample{response: errorResponse(err, h).with(headerKey, "key")})
	}
	failed(front.ErrTooLarge)
	failed(front.ErrKafkaUnavailable)
	failed(front.ErrHeld)
	if h.Keep {
		failed(front.ErrKept)
	}
	for _, r := range routes {
		lost := front.ErrNoVerdict
		if r.MayForwardUnchecked() {
			failed(fmt.Errorf("%w: %w", errUnchecked, front.ErrKafkaUnavailable))
			lost = fmt.Errorf("%w: %w", errUnchecked, lost)
		}
		switch {
		case h.Answer != nil:
			if h.Keep {
				samples = append(samples, sample{response: errorResponse(front.ErrKept, h).with(headerKey, "key").with(headerLocation, "/")})
			}
			samples = append(samples, sample{response: errorResponse(lost, h).with(headerKey, "key").with(headerLocation, "/")})
		case h.Verdict:
			failed(lost)
		default:
			samples = append(samples, sample{response: accepted("async").with(headerKey, "key")})
		}
	}
	for _, r := range routes {
		samples = append(samples, verdictSamples(r)...)
	}
	return withPreference(samples, h)
}

// verdictSamples returns the responses of a route to every answer that a task may give.
func verdictSamples(r *rules.Route) []sample {
	var samples []sample
	for _, a := range verdictAnswers(r) {
		if r.HTTP.Answer != nil && operates(&a) {
			samples = append(samples, operationSamples(complete(a, r), r)...)
			continue
		}
		samples = append(samples, sample{response: respondToVerdict(r, &a)}, sample{response: respondToVerdict(r, complete(a, r))})
	}
	for _, a := range outcomeAnswers(r) {
		for _, response := range []*response{respondToVerdict(r, &a), respondToVerdict(r, complete(a, r))} {
			samples = append(samples, sample{response: response, open: response.problem == nil, any: outcomeHeader(a.Headers, recordStatus) != ""})
		}
	}
	return samples
}

// mayMiss reports whether an event can arrive at the path of r and match none of the routes of that path.
func mayMiss(routes []*rules.Route, all *rules.Routes) bool {
	for _, r := range all.Routes { // in the order of the file: an event belongs to the first route that matches
		switch {
		case !slices.Contains(r.Topics, routes[0].HTTP.Topic):
		case !slices.Contains(routes, r):
			return true
		case r.Match == nil:
			return false
		}
	}
	return true
}

// verdictAnswers returns the answers without an outcome that a task may give.
func verdictAnswers(r *rules.Route) []wire.Answer {
	answers := []wire.Answer{{Verdict: dedup.Invalid}}
	if r.HTTP.RequireKey {
		answers = append(answers, wire.Answer{Verdict: dedup.MissingKey})
	} else {
		answers = append(answers, wire.Answer{Verdict: dedup.MissingKey, Forwarded: true})
	}
	if r.Off {
		answers = append(answers, wire.Answer{Verdict: dedup.Bypassed, Forwarded: true}) // without a key
	}
	if !r.HTTP.Verdict {
		return answers
	}
	judged := func(v dedup.Verdict, passed bool) {
		answers = append(answers, wire.Answer{Verdict: v, Forwarded: passed, Key: "key"})
	}
	answers = append(answers, wire.Answer{Verdict: dedup.Invalid, Reason: wire.ReasonTooLarge, Key: "key"})
	judged(dedup.Unique, true)
	if !r.RejectsAfterWindow {
		judged(dedup.AfterWindow, true)
	}
	judged(dedup.Late, r.OnLate == rules.Forward)
	if r.Mode == rules.ClaimMode {
		judged(dedup.InProgress, false)
	}
	if r.Mode != rules.ClaimMode || r.RejectsAfterWindow {
		judged(dedup.Duplicate, false)
	}
	if r.FailOpen || r.Off {
		judged(dedup.Bypassed, true)
		if r.Mode == rules.ClaimMode {
			answers = append(answers, wire.Answer{Verdict: dedup.Duplicate, Status: dedup.StatusForwarded, Key: "key", Attempt: 1})
		}
	}
	if r.Fingerprint != nil {
		judged(dedup.Collision, r.Collision == rules.Forward)
	}
	if r.Limits.LiveKeys > 0 {
		judged(dedup.Limited, r.Limits.OnLimit == rules.Forward)
	}
	if r.Quota != nil {
		answers = append(answers, wire.Answer{Verdict: dedup.Limited, Reason: wire.ReasonQuota, Key: "key"})
	}
	return answers
}

// outcomeAnswers returns the answers with an outcome that a task may give: an outcome that was stored, or one
// that the request waited for.
func outcomeAnswers(r *rules.Route) []wire.Answer {
	if r.Mode != rules.ClaimMode || !r.HTTP.Verdict {
		return nil
	}
	null := wire.Answer{Verdict: dedup.Replayed, HasOutcome: true, Status: dedup.OutcomeCompleted.String(), Key: "key", Attempt: 1}
	value, chosen, omitted := null, null, null
	value.Value = []byte("{}")
	chosen.Value, chosen.Headers = value.Value, []dedup.Header{{Key: recordStatus, Value: []byte("200")}}
	omitted.Omitted = true
	answers := []wire.Answer{null, value, chosen, omitted}
	waits := r.Claim.Wait || r.HTTP.Answer != nil
	if waits && r.FailOpen {
		plain, own := null, chosen
		plain.Status, own.Status = dedup.StatusForwarded, dedup.StatusForwarded
		answers = append(answers, plain, own)
	}
	if r.HTTP.Answer != nil {
		for _, a := range answers[:3] {
			a.Verdict = dedup.Unique
			answers = append(answers, a)
		}
	}
	if waits {
		for _, kind := range []dedup.OutcomeKind{dedup.OutcomeFailed, dedup.OutcomeRejected, dedup.OutcomeForget} {
			plain, own := null, chosen
			plain.Status, own.Status = kind.ClaimStatus(), kind.ClaimStatus()
			answers = append(answers, plain, own)
		}
	}
	return answers
}

// complete returns the answer with every optional field set.
func complete(a wire.Answer, r *rules.Route) *wire.Answer {
	a.Key = "key"
	if r.Mode == rules.ClaimMode && a.Verdict != dedup.MissingKey {
		a.Status, a.Attempt, a.FirstRequest = cmp.Or(a.Status, "in_progress"), 1, "request"
	}
	return &a
}

// outcomeSamples returns the responses to outcomes.
func outcomeSamples(h *rules.HTTP) []sample {
	samples := receiveSamples(h.Outcomes, &bodyRules{})
	for _, response := range []*response{
		accepted("accepted"), respondToQuestion(&wire.Answer{Granted: true}), respondToQuestion(&wire.Answer{Key: "key", Attempt: 1, StartedBy: "other"}),
		problemOutcome.respond(""), errorResponse(front.ErrNoVerdict, h), errorResponse(front.ErrTooLarge, h), errorResponse(front.ErrKafkaUnavailable, h),
	} {
		samples = append(samples, sample{response: response})
	}
	return samples
}

// handshakeSamples returns the responses to handshakes, and the response to an address that may not send.
func handshakeSamples(h *rules.HTTP) []sample {
	var samples []sample
	if h.AllowedSources != nil {
		samples = append(samples, sample{response: problemSource.respond("")})
	}
	switch h.Handshake.Kind {
	case rules.SlackHandshake:
		samples = append(samples, sample{response: handshakeText("challenge"), open: true})
	case rules.ZoomHandshake:
		samples = append(samples, sample{response: handshakeJSON(nil), open: true})
	case rules.DiscordHandshake:
		samples = append(samples, sample{response: handshakeJSON(map[string]int{"type": 1})},
			sample{response: &response{status: http.StatusNoContent, name: handshakeName}})
	case rules.NoHandshake, rules.MetaHandshake:
	}
	return samples
}

// receiveSamples returns the responses that the server can send before it parses the body.
func receiveSamples(s *rules.Signature, b *bodyRules) []sample {
	samples := malformed()
	for _, response := range []*response{busy(""), b.encoded(), tooLarge(&bodyRules{}), tooSlow(), incomplete()} {
		samples = append(samples, sample{response: response})
	}
	if b.decompress.MaxBytes > 0 {
		samples = append(samples, sample{response: problemBrokenEncoding.respond("")})
	}
	if s.Scheme != rules.NoSignature {
		samples = append(samples, sample{response: unauthorized(challenge(s))})
	}
	return samples
}

// malformed returns the responses that the server can send before it knows the path. For HTTP/2, net/http
// itself responds to headers that are too large.
func malformed() []sample {
	samples := []sample{{open: true, response: &response{
		status: http.StatusRequestHeaderFieldsTooLarge, contentType: "text/html; charset=utf-8", name: "headers too large, HTTP/2",
	}}}
	for _, status := range slices.Sorted(maps.Keys(implicitProblems)) {
		samples = append(samples, sample{response: implicitProblems[status].respond("")})
	}
	return samples
}

// describeSamples describes the responses by status.
func describeSamples(samples []sample) map[string]*responseObject {
	byStatus := map[int][]sample{}
	var outcomes []sample
	for _, s := range samples {
		byStatus[s.status] = append(byStatus[s.status], s)
		if s.any {
			outcomes = append(outcomes, s)
		}
	}
	described := map[string]*responseObject{}
	for status, same := range byStatus {
		for _, s := range outcomes {
			s.other = true
			same = append(same, s)
		}
		described[strconv.Itoa(status)] = describeStatus(same)
	}
	if len(outcomes) > 0 {
		described["default"] = describeStatus(outcomes)
		described["default"].Description = "The outcome, with the status that its executor chose."
	}
	return described
}

// describeStatus describes all responses that have one status.
func describeStatus(samples []sample) *responseObject {
	o := &responseObject{Headers: map[string]reference{}, Content: map[string]mediaType{}}
	var names, types []string
	headers := map[string]int{}
	for _, s := range samples {
		if s.any {
			o.Content["*/*"] = mediaType{outcomeSchema}
		}
		for name := range s.header {
			headers[name]++
		}
		if s.other {
			continue
		}
		name := s.name
		if s.problem != nil {
			name = s.problem.title
		}
		names, types = append(names, name), append(types, s.contentType)
	}
	slices.Sort(names)
	o.Description = strings.Join(slices.Compact(names), "; ")
	for _, contentType := range types {
		if contentType != "" {
			o.Content[contentType] = mediaType{bodySchema(contentType, samples)}
		}
	}
	for _, s := range samples {
		for name := range s.header {
			// The header Connection is about the connection and not about the response, and HTTP/2 does not
			// have it.
			if !s.other && name != "Connection" {
				o.Headers[name] = headerReference(name, headers[name] == len(samples))
			}
		}
	}
	return o
}

var outcomeSchema = schema{"$ref": "#/components/schemas/Outcome"}

// bodySchema describes the bodies of the responses that share a status and a content type.
func bodySchema(contentType string, samples []sample) schema {
	isJSON := contentType == jsonType || contentType == problemJSON
	var problems []string
	var each []schema
	add := func(s schema) {
		if !slices.ContainsFunc(each, func(e schema) bool { return reflect.DeepEqual(e, s) }) {
			each = append(each, s)
		}
	}
	for _, s := range samples {
		var value any
		switch {
		case s.other && isJSON:
			add(outcomeSchema)
		case s.other || s.contentType != contentType:
		case s.problem != nil:
			problems = append(problems, problemType+s.problem.name)
		case s.open && isJSON:
			add(outcomeSchema)
		case s.open:
			add(schema{"type": "string"})
		case isJSON && json.Unmarshal(s.body, &value) == nil:
			add(schema{"const": value})
		default:
			add(schema{"type": "string", "const": string(s.body)})
		}
	}
	if len(problems) > 0 {
		slices.Sort(problems)
		add(schema{"allOf": []schema{
			{"$ref": "#/components/schemas/Problem"},
			{"properties": schema{"type": schema{"enum": slices.Compact(problems)}, "status": schema{"const": samples[0].status}}},
		}})
	}
	if len(each) == 1 {
		return each[0]
	}
	return schema{"anyOf": each}
}

// reference refers to one of the document's components.
type reference struct {
	Ref string `json:"$ref"`
}

// always ends the component name of a header that all responses with a status have.
const always = ".always"

func headerReference(name string, required bool) reference {
	if required {
		name += always
	}
	return reference{"#/components/headers/" + name}
}

// headerComponents returns every header as two components: as an optional header, and as one that is always
// present.
func headerComponents() map[string]headerObject {
	all := map[string]headerObject{}
	for name, h := range headerMeanings {
		all[name] = h
		h.Required = true
		all[name+always] = h
	}
	return all
}

// headerMeanings describes the headers of responses.
var headerMeanings = map[string]headerObject{
	"Accept-Encoding":  {Description: "The encodings of a body that the server accepts.", Schema: schema{"type": "string"}},
	"Allow":            {Description: "The methods of the endpoint.", Schema: schema{"type": "string"}},
	"Retry-After":      {Description: "Seconds to wait before a retry.", Schema: schema{"type": "integer", "minimum": 1}},
	"Www-Authenticate": {Description: "The scheme of the signature.", Schema: schema{"type": "string"}},
	headerVerdict:      {Description: "The verdict on the event.", Schema: schema{"type": "string", "enum": verdictNames()}},
	headerKey:          {Description: "The dedup key.", Schema: schema{"type": "string"}},
	headerClaimStatus:  {Description: "The status of the claim, or the kind of its outcome.", Schema: schema{"type": "string"}},
	headerAttempt:      {Description: "The attempt of the claim.", Schema: schema{"type": "integer", "minimum": 1}},
	headerFirstRequest: {Description: "The sender's id of the first request with the key.", Schema: schema{"type": "string"}},
	headerLocation:     {Description: "Where the state of the request is, and later its outcome.", Schema: schema{"type": "string", "format": "uri-reference"}},
	headerApplied:      {Description: "The preferences of RFC 7240 that were applied; the wait is at most that of the endpoint.", Schema: schema{"type": "string"}},
	headerLink:         {Description: "The documentation of the header Idempotency-Key, with rel=describedby.", Schema: schema{"type": "string"}},
	headerLanguage:     {Description: "The language of the problem.", Schema: schema{"type": "string", "const": "en"}},
	headerReplayed:     {Description: "The outcome was stored before this request.", Schema: schema{"type": "string", "const": "true"}},
}

func verdictNames() []string {
	all := make([]string, len(dedup.Verdicts))
	for i, v := range dedup.Verdicts {
		all[i] = v.String()
	}
	return all
}

// problemTypes returns the types of all problems, sorted.
func problemTypes() []string {
	var types []string
	for _, p := range problems {
		types = append(types, problemType+p.name)
	}
	slices.Sort(types)
	return types
}

// problemSchema describes the JSON of problemBody.
func problemSchema() schema {
	text := func(meaning string) schema { return schema{"type": "string", "description": meaning} }
	return schema{
		"description": "A problem (RFC 9457).",
		"type":        "object",
		"required":    []string{"type", "title", "status"},
		"properties": schema{
			"type":          schema{"type": "string", "enum": problemTypes(), "description": "Identifies the problem; it never changes."},
			"title":         text("A summary of the problem."),
			"status":        schema{"type": "integer", "description": "The status of the response."},
			"detail":        text("What this occurrence adds."),
			"verdict":       schema{"type": "string", "enum": verdictNames(), "description": "The verdict, if the event has one."},
			"key":           text("The dedup key."),
			"claim_status":  text("The status of the claim, or the kind of its outcome."),
			"attempt":       schema{"type": "integer", "minimum": 1, "description": "The attempt of the claim."},
			"first":         text("The record of the first event: topic/partition/offset."),
			"first_time":    schema{"type": "string", "format": "date-time", "description": "The event time of the first event."},
			"first_request": text("The sender's id of the first request with the key."),
			"documentation": schema{"type": "string", "format": "uri", "description": "The documentation of the header Idempotency-Key."},
			"started_by":    text("The start id to which the attempt of the key was granted."),
		},
	}
}
