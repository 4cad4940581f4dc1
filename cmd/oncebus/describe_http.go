package main

import (
	"fmt"
	"slices"
	"strings"

	"oncebus/cmd/oncebus/settings"
	"oncebus/dedup"
	"oncebus/dedup/routesets"
	"oncebus/dedup/rules"
)

// describeHTTP lists the facts of a route's HTTP endpoint.
func describeHTTP(r *rules.Route) []fact {
	h := r.HTTP
	if h == nil {
		return nil
	}
	endpoint := strings.Join(h.Methods, " or ") + " " + h.Path
	if len(r.Topics) > 1 {
		endpoint += " to " + h.Topic
	}
	events := ""
	if h.Events != nil {
		events = fmt.Sprintf("GET %s%s, the outcomes as server-sent events to %s", h.Path, rules.EventsSuffix, plural(h.Events.MaxConnections, "connection"))
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
		{"http provider", describeProvider(r)},
		{"http", endpoint + ", " + describeSignature(&h.Signature)},
		{"http handshake", describeHandshake(h)},
		{"http sources", describeSources(h)},
		{"http bodies", describeBodies(h)},
		{"http headers", strings.Join(slices.Concat(rules.CarriedHeaders[:], h.Headers), ", ")},
		{"http response", describeResponse(h)},
		{"http statuses", strings.Join(responses, ", ")},
		{"http limits", describeLimits(h)},
		{"http outcomes", outcomes},
		{"http events", events},
	}
}

// describeProvider writes what the preset knows about its provider. The settings that the preset makes are
// among the other facts.
func describeProvider(r *rules.Route) string {
	p := rules.ProviderOf(r.HTTP.Provider)
	if p == nil {
		return ""
	}
	key := "the file's own"
	if p.Keys(r) {
		key = p.Why
	}
	return fmt.Sprintf("%s, by the rule of %s; key: %s; retries: %s", p.Title, p.Source, key, p.Retries)
}

func describeHandshake(h *rules.HTTP) string {
	switch {
	case h.Handshake.Kind == rules.NoHandshake:
		return ""
	case h.Handshake.VerifyToken != "":
		return fmt.Sprintf("%v, with %sINGRESS_SECRET_%s; no event", h.Handshake.Kind, settings.Prefix, h.Handshake.VerifyToken)
	}
	return h.Handshake.Kind.String() + ", signed; no event"
}

func describeSources(h *rules.HTTP) string {
	var networks []string
	for _, n := range h.AllowedSources {
		networks = append(networks, strings.TrimSuffix(n.String(), "/32"))
	}
	return strings.Join(networks, ", ")
}

func describeBodies(h *rules.HTTP) string {
	var parts []string
	if h.Form {
		parts = append(parts, "forms have paths")
	}
	if h.Decompress.MaxBytes > 0 {
		signed := "as sent"
		if h.Decompress.Decompressed {
			signed = "decompressed"
		}
		parts = append(parts, fmt.Sprintf("gzip and deflate up to %s, signed %s", plural(h.Decompress.MaxBytes, "byte"), signed))
	}
	return strings.Join(parts, "; ")
}

func describeSignature(s *rules.Signature) string {
	if s.Scheme == rules.NoSignature {
		return "without a signature, from any sender"
	}
	text := fmt.Sprintf("%v with %sINGRESS_SECRET_%s", s.Scheme, settings.Prefix, s.Secret)
	switch {
	case s.Query != "":
		text += ", in the URL's parameter " + s.Query
	case s.Scheme == rules.Token:
		text += ", in the header " + s.Header
	case s.URL != "":
		text += ", for " + s.URL
	}
	if s.Tolerance > 0 {
		text += ", tolerance " + routesets.Short(s.Tolerance)
	}
	return text
}

func describeResponse(h *rules.HTTP) string {
	response := "202 when Kafka has the event"
	if h.Verdict {
		late := 504
		if h.AcceptOnTimeout {
			late = 202
		}
		response = fmt.Sprintf("the verdict within %s, else %d", routesets.Short(h.Timeout), late)
	}
	if h.Answer != nil {
		response += fmt.Sprintf("; the outcome within %s or Prefer: wait=N, else 202 with its location at %s%s", routesets.Short(h.Answer.Timeout), h.Path, rules.RequestsSuffix)
	}
	switch {
	case h.WaitForKafka:
		response += "; Kafka unavailable: 503 after " + routesets.Short(h.Timeout)
	case h.Keep:
		response += "; Kafka unavailable: 202, and the event is kept on disk until Kafka is back"
	default:
		response += "; Kafka unavailable: 503 immediately"
	}
	if _, own := h.Responses[dedup.MissingKey]; h.RequireKey && !own { // the route's own response to a missing key is listed among the statuses
		response += "; missing key: 400"
	}
	if h.Idempotency != nil {
		response += "; Idempotency-Key as its draft has it, with " + h.Idempotency.Docs
	}
	return response
}

func describeLimits(h *rules.HTTP) string {
	text := plural(h.MaxBody, "byte")
	if h.MaxRequests > 0 {
		text += fmt.Sprintf("; %d in flight", h.MaxRequests)
	}
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
