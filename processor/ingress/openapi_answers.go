package ingress

import (
	"cmp"
	"encoding/json"
	"net/http"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"oncebus/dedup"
	"oncebus/dedup/rules"
	"oncebus/processor"
	"oncebus/processor/wire"
)

// sample is an answer that a path can give, made by the code that gives it.
type sample struct {
	*response
	open  bool // the body may be any
	any   bool // an executor's, who may say every other status and content type as well
	other bool // such a one, with a status that is another answer's too
}

// eventSamples are the answers to events of routes with one path: each as it is
// with nothing known beside the verdict, and with everything. What headers all
// answers with a status have is known from that.
func eventSamples(routes []*rules.Route, all *rules.Routes) []sample {
	h := routes[0].HTTP
	samples := append(receiveSamples(&h.Signature), sample{response: problemInvalid.respond("")})
	if h.Rate != (rules.Rate{}) || h.SourceRate != (rules.Rate{}) {
		samples = append(samples, sample{response: tooFast("", time.Second)})
	}
	if mayMiss(routes, all) {
		samples = append(samples, sample{response: problemNoRoute.respond("")})
	}
	failed := func(err error) {
		samples = append(samples, sample{response: failure(err, h)}, sample{response: failure(err, h).with(headerKey, "key")})
	}
	failed(processor.ErrTooLarge)
	failed(processor.ErrBusAway)
	if h.Verdict {
		failed(processor.ErrNoVerdict)
	} else {
		samples = append(samples, sample{response: accepted("async").with(headerKey, "key")})
	}
	for _, r := range routes {
		for _, a := range verdicts(r) {
			samples = append(samples, sample{response: tell(r, &a)}, sample{response: tell(r, complete(a, r))})
		}
		for _, a := range settled(r) {
			for _, answer := range []*response{tell(r, &a), tell(r, complete(a, r))} {
				samples = append(samples, sample{response: answer, open: answer.problem == nil, any: outcomeHeader(a.Headers, recordStatus) != ""})
			}
		}
	}
	return samples
}

// mayMiss tells whether an event at the path of routes may be one that none of
// them takes.
func mayMiss(routes []*rules.Route, all *rules.Routes) bool {
	for _, r := range all.Routes { // in their order: the first that matches takes the event
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

// verdicts are what a request can be told without an outcome.
func verdicts(r *rules.Route) []wire.Answer {
	answers := []wire.Answer{{Verdict: dedup.Invalid}}
	if r.HTTP.RequireKey {
		answers = append(answers, wire.Answer{Verdict: dedup.MissingKey})
	} else {
		answers = append(answers, wire.Answer{Verdict: dedup.MissingKey, Forwarded: true})
	}
	if !r.HTTP.Verdict {
		return answers
	}
	judged := func(v dedup.Verdict, passed bool) {
		answers = append(answers, wire.Answer{Verdict: v, Forwarded: passed, Key: "key"})
	}
	judged(dedup.Unique, true)
	judged(dedup.AfterWindow, true)
	judged(dedup.Late, r.OnLate == rules.Forward)
	if r.Mode == rules.ClaimMode {
		judged(dedup.InProgress, false)
	} else {
		judged(dedup.Duplicate, false)
	}
	if r.FailOpen {
		judged(dedup.Bypassed, true)
	}
	if r.Fingerprint != nil {
		judged(dedup.Collision, r.Collision == rules.Forward)
	}
	if r.Limits.LiveKeys > 0 {
		judged(dedup.Limited, r.Limits.OnLimit == rules.Forward)
	}
	return answers
}

// settled are the outcomes that a request can be answered with: those that are
// recorded, and those that it waited for.
func settled(r *rules.Route) []wire.Answer {
	if r.Mode != rules.ClaimMode || !r.HTTP.Verdict {
		return nil
	}
	null := wire.Answer{Verdict: dedup.Replayed, HasOutcome: true, Status: dedup.OutcomeCompleted.String(), Key: "key", Attempt: 1}
	value, said, omitted := null, null, null
	value.Value = []byte("{}")
	said.Value, said.Headers = value.Value, []dedup.Header{{Key: recordStatus, Value: []byte("200")}}
	omitted.Omitted = true
	answers := []wire.Answer{null, value, said, omitted}
	if r.Claim.Wait {
		for _, kind := range []dedup.OutcomeKind{dedup.OutcomeFailed, dedup.OutcomeRejected, dedup.OutcomeForget} {
			bare, worded := null, said
			bare.Status, worded.Status = kind.ClaimStatus(), kind.ClaimStatus()
			answers = append(answers, bare, worded)
		}
	}
	return answers
}

// complete is an answer with everything that there may be to say.
func complete(a wire.Answer, r *rules.Route) *wire.Answer {
	a.Key = "key"
	if r.Mode == rules.ClaimMode && a.Verdict != dedup.MissingKey {
		a.Status, a.Attempt, a.FirstRequest = cmp.Or(a.Status, "in_progress"), 1, "request"
	}
	return &a
}

// outcomeSamples are the answers to outcomes.
func outcomeSamples(h *rules.HTTP) []sample {
	samples := receiveSamples(h.Outcomes)
	for _, a := range []*response{
		accepted("accepted"), problemOutcome.respond(""), failure(processor.ErrTooLarge, h), failure(processor.ErrBusAway, h),
	} {
		samples = append(samples, sample{response: a})
	}
	return samples
}

// receiveSamples are the answers that come before the body is read as anything.
func receiveSamples(s *rules.Signature) []sample {
	samples := malformed()
	for _, a := range []*response{busy(), encoded(), tooLarge(&intake{}), tooSlow(), notWhole()} {
		samples = append(samples, sample{response: a})
	}
	if s.Scheme != rules.NoSignature {
		samples = append(samples, sample{response: unauthorized(challenge(s))})
	}
	return samples
}

// malformed are the answers of net/http itself, before a path is known.
func malformed() []sample {
	const text, html = "text/plain; charset=utf-8", "text/html; charset=utf-8"
	var samples []sample
	for _, a := range []response{
		{status: http.StatusBadRequest, contentType: text, name: "malformed HTTP"},
		{status: http.StatusExpectationFailed, name: "an Expect other than 100-continue"},
		{status: http.StatusRequestHeaderFieldsTooLarge, contentType: text, name: "headers too large"},
		{status: http.StatusRequestHeaderFieldsTooLarge, contentType: html, name: "headers too large, HTTP/2"},
		{status: http.StatusNotImplemented, contentType: text, name: "a Transfer-Encoding other than chunked"},
		{status: http.StatusHTTPVersionNotSupported, contentType: text, name: "an HTTP version other than 1.0, 1.1 and 2"},
	} {
		samples = append(samples, sample{response: &a, open: true})
	}
	return samples
}

// describeSamples describes answers by status.
func describeSamples(samples []sample) map[string]*answerObject {
	byStatus := map[int][]sample{}
	var outcomes []sample
	for _, s := range samples {
		byStatus[s.status] = append(byStatus[s.status], s)
		if s.any {
			outcomes = append(outcomes, s)
		}
	}
	described := map[string]*answerObject{}
	for status, same := range byStatus {
		for _, s := range outcomes {
			s.other = true
			same = append(same, s)
		}
		described[strconv.Itoa(status)] = describeStatus(same)
	}
	if len(outcomes) > 0 {
		described["default"] = describeStatus(outcomes)
		described["default"].Description = "The outcome, with the status that its executor gave it."
	}
	return described
}

// describeStatus describes answers with one status.
func describeStatus(samples []sample) *answerObject {
	a := &answerObject{Headers: map[string]reference{}, Content: map[string]mediaType{}}
	var names, kinds []string
	headers := map[string]int{}
	for _, s := range samples {
		if s.any {
			a.Content["*/*"] = mediaType{outcomeSchema}
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
		names, kinds = append(names, name), append(kinds, s.contentType)
	}
	slices.Sort(names)
	a.Description = strings.Join(slices.Compact(names), "; ")
	for _, kind := range kinds {
		if kind != "" {
			a.Content[kind] = mediaType{bodySchema(kind, samples)}
		}
	}
	for _, s := range samples {
		for name := range s.header {
			// Connection is not the answer's, and not there in HTTP/2.
			if !s.other && name != "Connection" {
				a.Headers[name] = headerReference(name, headers[name] == len(samples))
			}
		}
	}
	return a
}

var outcomeSchema = schema{"$ref": "#/components/schemas/Outcome"}

// bodySchema describes the bodies of answers with one status that are of one
// content type.
func bodySchema(kind string, samples []sample) schema {
	isJSON := kind == jsonType || kind == problemJSON
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
		case s.other || s.contentType != kind:
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

// reference is a place in the components.
type reference struct {
	Ref string `json:"$ref"`
}

// always ends the name of a header that all answers with a status have.
const always = ".always"

func headerReference(name string, required bool) reference {
	if required {
		name += always
	}
	return reference{"#/components/headers/" + name}
}

// headerComponents is every header twice: as one that may be there, and as one
// that is.
func headerComponents() map[string]headerObject {
	all := map[string]headerObject{}
	for name, h := range headerMeanings {
		all[name] = h
		h.Required = true
		all[name+always] = h
	}
	return all
}

// headerMeanings is what the headers of answers mean.
var headerMeanings = map[string]headerObject{
	"Accept-Encoding":  {Description: "Which encodings of a body are taken.", Schema: schema{"type": "string"}},
	"Allow":            {Description: "The methods of the path.", Schema: schema{"type": "string"}},
	"Retry-After":      {Description: "Seconds after which it makes sense to send the request again.", Schema: schema{"type": "integer", "minimum": 1}},
	"Www-Authenticate": {Description: "The scheme of the signature.", Schema: schema{"type": "string"}},
	headerVerdict:      {Description: "The verdict on the event.", Schema: schema{"type": "string", "enum": verdictNames()}},
	headerKey:          {Description: "The dedup key.", Schema: schema{"type": "string"}},
	headerClaimStatus:  {Description: "The status of the claim, or the kind of its outcome.", Schema: schema{"type": "string"}},
	headerAttempt:      {Description: "The attempt of the claim.", Schema: schema{"type": "integer", "minimum": 1}},
	headerFirstRequest: {Description: "The sender's id of the first request with the key.", Schema: schema{"type": "string"}},
	headerReplayed:     {Description: "The outcome is one that was recorded before.", Schema: schema{"type": "string", "const": "true"}},
}

func verdictNames() []string {
	all := make([]string, len(dedup.Verdicts))
	for i, v := range dedup.Verdicts {
		all[i] = v.String()
	}
	return all
}

// problemSchema describes problemBody.
func problemSchema() schema {
	text := func(about string) schema { return schema{"type": "string", "description": about} }
	return schema{
		"description": "A problem (RFC 9457).",
		"type":        "object",
		"required":    []string{"type", "title", "status"},
		"properties": schema{
			"type":          text("Names the problem."),
			"title":         text("The problem in words."),
			"status":        schema{"type": "integer", "description": "The status of the answer."},
			"detail":        text("What is known of this one."),
			"verdict":       schema{"type": "string", "enum": verdictNames(), "description": "The verdict, if the problem is one."},
			"key":           text("The dedup key."),
			"claim_status":  text("The status of the claim, or the kind of its outcome."),
			"attempt":       schema{"type": "integer", "minimum": 1, "description": "The attempt of the claim."},
			"first":         text("Where the first copy is: topic/partition/offset."),
			"first_time":    schema{"type": "string", "format": "date-time", "description": "The event time of the first copy."},
			"first_request": text("The sender's id of the first request with the key."),
		},
	}
}
