package main

import (
	"fmt"
	"slices"
	"strings"

	"oncebus/cmd/oncebus/settings"
	"oncebus/dedup"
	"oncebus/dedup/rules"
)

// describeHTTP are the facts of how a route's events come in by HTTP.
func describeHTTP(r *rules.Route) []fact {
	h := r.HTTP
	if h == nil {
		return nil
	}
	door := strings.Join(h.Methods, " or ") + " " + h.Path
	if len(r.Topics) > 1 {
		door += " to " + h.Topic
	}
	outcomes := ""
	if h.Outcomes != nil {
		outcomes = "POST " + h.Path + rules.OutcomesSuffix + ", " + describeSignature(h.Outcomes)
	}
	var responses []string
	for _, v := range dedup.Verdicts {
		if response, ok := h.Responses[v]; ok {
			responses = append(responses, fmt.Sprintf("%v %d", v, response.Status))
		}
	}
	return []fact{
		{"http", door + ", " + describeSignature(&h.Signature)},
		{"http headers", strings.Join(slices.Concat(rules.CarriedHeaders[:], h.Headers), ", ")},
		{"http answer", describeAnswer(h)},
		{"http responses", strings.Join(responses, ", ")},
		{"http limits", describeLimits(h)},
		{"http outcomes", outcomes},
	}
}

func describeSignature(s *rules.Signature) string {
	if s.Scheme == rules.NoSignature {
		return "from everybody (signature none)"
	}
	text := fmt.Sprintf("%v with %sINGRESS_SECRET_%s", s.Scheme, settings.Prefix, s.Secret)
	if s.Tolerance > 0 {
		text += ", tolerance " + shortDuration(s.Tolerance)
	}
	return text
}

func describeAnswer(h *rules.HTTP) string {
	answer := "202 once it is on the bus"
	if h.Verdict {
		late := 504
		if h.AcceptOnTimeout {
			late = 202
		}
		answer = fmt.Sprintf("the verdict within %s, else %d", shortDuration(h.Timeout), late)
	}
	if h.WaitForKafka {
		answer += "; Kafka unavailable: 503 after " + shortDuration(h.Timeout)
	} else {
		answer += "; Kafka unavailable: 503 at once"
	}
	if h.RequireKey {
		answer += "; no key: refused"
	}
	return answer
}

func describeLimits(h *rules.HTTP) string {
	text := plural(h.MaxBody, "byte")
	for _, limit := range []struct {
		rate rules.Rate
		of   string
	}{{h.Rate, ""}, {h.SourceRate, " from one address"}} {
		if limit.rate != (rules.Rate{}) {
			text += fmt.Sprintf("; %v a second%s, %d at once", limit.rate.PerSecond, limit.of, limit.rate.Burst)
		}
	}
	return text
}
