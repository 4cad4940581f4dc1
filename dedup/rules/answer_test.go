package rules

import (
	"strings"
	"testing"
	"time"
)

// answerFile has a claim route with further fields, and an http part, on line 3.
func answerFile(fields, http string) string {
	return "routes:\n- {name: a, window: 1h, output: out, topics: [in], outcomes: o, replies: r, " + fields + ",\n    http: {path: /a, " + http + "}}\n"
}

const (
	withOutcome = "answer: outcome, signature: {scheme: bearer, secret: S}"
	byHeader    = "mode: claim, key: [{header: idempotency-key}], fingerprint: [side]"
	ofDraft     = withOutcome + ", idempotency_key: {docs: 'https://developer.example.com/idempotency'}"
	byIDField   = "mode: claim, key: [{field: id}]"
)

func TestAnswerOfOutcome(t *testing.T) {
	h := parse(t, answerFile(byIDField, withOutcome)).Routes[0].HTTP
	if !h.Verdict || h.Answer == nil || h.AnswerTimeout() != 30*time.Second || h.LongestWait() != 30*time.Second || h.Idempotency != nil || h.Events != nil {
		t.Errorf("defaults: %+v", h)
	}
	h = parse(t, answerFile(byHeader, "answer_timeout: 5s, "+ofDraft)).Routes[0].HTTP
	if h.AnswerTimeout() != 5*time.Second || h.LongestWait() != 10*time.Second || h.Idempotency.Docs != "https://developer.example.com/idempotency" {
		t.Errorf("written: %+v", h)
	}
	h = parse(t, answerFile(byIDField, withOutcome+", events: {}")).Routes[0].HTTP
	if h.Events == nil || h.Events.MaxConnections != 100 {
		t.Errorf("events: %+v", h.Events)
	}
	h = parse(t, answerFile(byIDField, "answer: verdict, signature: {scheme: none}")).Routes[0].HTTP
	if !h.Verdict || h.Answer != nil || h.AnswerTimeout() != 0 || h.LongestWait() != 10*time.Second {
		t.Errorf("verdict: %+v", h)
	}
}

// TestMistakesInAnswers: an outcome that no other sender may read, and each case of the draft.
func TestMistakesInAnswers(t *testing.T) {
	const draft = "r.yaml:3: routes[0].http.idempotency_key: "
	for _, v := range []struct{ name, file, want string }{
		{"plain mode", strings.Replace(answerFile("key: [raw]", withOutcome), "outcomes: o, replies: r, ", "", 1), "r.yaml:3: routes[0].http.answer: outcome belongs to mode: claim"},
		{"anybody", answerFile(byIDField, "answer: outcome, signature: {scheme: none}"),
			"r.yaml:3: routes[0].http.signature.scheme: none lets anybody read the outcome of another sender: answer: outcome wants token, bearer, hmac or standard-webhooks"},
		{"tenants of one path", answerFile(byIDField+", tenant: {principal: true}", withOutcome),
			"r.yaml:3: routes[0].http.answer: a tenant could read the outcomes of others, because a path knows its senders by one secret: leave it out, or give each tenant a path"},
		{"events for tenants of one path", answerFile(byIDField+", tenant: {principal: true}", "events: {}, signature: {scheme: bearer, secret: S}"),
			"r.yaml:3: routes[0].http.events: a tenant could read the outcomes of others, because a path knows its senders by one secret: leave it out, or give each tenant a path"},
		{"tenants by a header", answerFile(byIDField+", tenant: {header: traceparent}", withOutcome),
			"r.yaml:3: routes[0].http.answer: a tenant could read the outcomes of others, because a path knows its senders by one secret: leave it out, or give each tenant a path"},
		{"events for tenants by a field", answerFile(byIDField+", tenant: {field: account}", "events: {}, signature: {scheme: bearer, secret: S}"),
			"r.yaml:3: routes[0].http.events: a tenant could read the outcomes of others, because a path knows its senders by one secret: leave it out, or give each tenant a path"},
		{"no signature of a GET", answerFile(byIDField, "answer: outcome, signature: {scheme: github, secret: S}"),
			"r.yaml:3: routes[0].http.signature.scheme: a sender cannot sign a GET with github: answer: outcome wants token, bearer, hmac or standard-webhooks"},
		{"response to unique", answerFile(byIDField, withOutcome+", responses: {unique: {status: 201}}"),
			"r.yaml:3: routes[0].http.responses.unique: answer: outcome responds with the outcome, or with 202 and its location: leave it out"},
		{"timeout of nothing", answerFile(byIDField, "answer_timeout: 3s, signature: {scheme: none}"),
			"r.yaml:3: routes[0].http.answer_timeout: needs answer: outcome, because otherwise no request waits for it"},
		{"short timeout", answerFile(byIDField, withOutcome+", answer_timeout: 10ms"), "r.yaml:3: routes[0].http.answer_timeout: 10ms is too short: at least 1s"},

		{"events in plain mode", strings.Replace(answerFile("key: [raw]", "events: {}, signature: {scheme: bearer, secret: S}"), "outcomes: o, replies: r, ", "", 1), "r.yaml:3: routes[0].http.events: belongs to mode: claim"},
		{"events for anybody", answerFile(byIDField, "events: {}, signature: {scheme: none}"),
			"r.yaml:3: routes[0].http.signature.scheme: none lets anybody read the outcome of another sender: events wants token, bearer, hmac or standard-webhooks"},
		{"no follower", answerFile(byIDField, withOutcome+", events: {max_connections: 0}"), "r.yaml:3: routes[0].http.events.max_connections: want a whole number from 1 to 10000, found 0"},
		{"path of events", answerFile(byIDField, withOutcome+", events: {}") + "- {name: b, window: 1h, output: out2, topics: [x], key: [raw], http: {path: /a/events, signature: {scheme: none}}}\n",
			"r.yaml:3: routes[0].http.events: /a/events is the path of the route in line 4: give one of them another path"},

		{"no docs", answerFile(byHeader, withOutcome+", idempotency_key: {}"), draft[:len(draft)-2] + ".docs: is required"},
		{"docs that are no URL", answerFile(byHeader, withOutcome+", idempotency_key: {docs: 'see > there'}"),
			draft[:len(draft)-2] + `.docs: want a URL such as https://developer.example.com/idempotency of at most 512 bytes, found "see > there"`},
		{"a key that is not signed", answerFile(byHeader, strings.Replace(ofDraft, "bearer", "standard-webhooks", 1)),
			draft + "the header is not covered by the signature, scheme: standard-webhooks: a captured request under another key would run again: sign with bearer or token"},
		{"a key that no HMAC covers", answerFile(byHeader, strings.Replace(ofDraft, "scheme: bearer", "scheme: hmac, header: X-Sig, timestamp_header: X-Time", 1)),
			draft + "the header is not covered by the signature, scheme: hmac: a captured request under another key would run again: sign with bearer or token"},
		{"another header", answerFile("mode: claim, key: [{header: traceparent}], fingerprint: [side]", ofDraft), draft + "the key is the header: write key: [{header: idempotency-key}]"},
		{"a field", answerFile("mode: claim, key: [{field: id}], fingerprint: [side]", ofDraft), draft + "the key is the header: write key: [{header: idempotency-key}]"},
		{"no key needed", answerFile(byHeader, ofDraft+", require_key: false"), draft + "a request without the header gets 400: leave require_key out, and on_missing_key"},
		{"no fingerprint", answerFile("mode: claim, key: [{header: idempotency-key}]", ofDraft), draft + "a key that is used again with another payload gets 422: name the fields of the payload in fingerprint"},
		{"collisions that run", answerFile(byHeader+", collision: forward", ofDraft), draft + "a key that is used again with another payload gets 422: write collision: reject, or dead_letter"},
		{"a concurrent request that waits", answerFile(byHeader+", while_in_progress: wait", ofDraft), draft + "a request whose original is in process gets 409: leave while_in_progress: wait out"},
		{"another response", answerFile(byHeader, ofDraft+", responses: {in_progress: {status: 425}}"),
			"r.yaml:3: routes[0].http.responses.in_progress: the draft of idempotency_key says what the response is: leave it out"},
	} {
		t.Run(v.name, func(t *testing.T) {
			if _, err := ParseRoutes("r.yaml", []byte(v.file)); withoutColumns(err) != v.want {
				t.Errorf("got  %v\nwant %s\nin\n%s", err, v.want, v.file)
			}
		})
	}
}
