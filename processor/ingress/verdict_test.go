package ingress

import (
	"context"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	"oncebus/dedup"
	"oncebus/dedup/rules"
	"oncebus/processor/wire"
)

// TestEveryVerdict causes each verdict, with default responses and with those of
// the routes file.
func TestEveryVerdict(t *testing.T) {
	t.Parallel()
	const routes = `routes:
  - name: events
    topics: [events.raw]
    key: [{field: id}]
    time: {field: at}
    window: 1h
    grace: 10m
    fingerprint: [price]
    %s
    on_missing_key: dead_letter
    output: events.unique
    dead_letter: dead
    http:
      path: /events
      signature: {scheme: none}%s
  - name: lax
    topics: [lax.raw]
    key: [{field: id}]
    window: 1h
    on_missing_key: forward
    limits: {live_keys: 1, on_limit: %s}
    output: lax.unique
    dead_letter: dead
    http:
      path: /lax
      signature: {scheme: none}%s
`
	var responses strings.Builder
	for n, v := range dedup.Verdicts {
		if v != dedup.Replayed && v != dedup.InProgress {
			fmt.Fprintf(&responses, "\n        %v: {status: %d, body: text of %v, content_type: text/plain}", v, 210+n, v)
		}
	}
	written := "\n      responses:" + responses.String()
	const refuse, forward = "collision: dead_letter\n    on_late: dead_letter", "collision: forward\n    on_late: forward"
	now := time.Now()
	at := func(ago time.Duration) string { return fmt.Sprint(now.Add(-ago).UnixMilli()) }
	for _, file := range []struct {
		name, policy, over, responses string
		want                          map[string]string // by step: status and problem
	}{
		{"refused", refuse, "dead_letter", "", map[string]string{
			"unique": "202", "duplicate": "409 duplicate", "after_window": "202", "late": "422 late", "collision": "422 collision", "missing_key": "400 missing-key",
			"invalid": "400 invalid", "null": "400 invalid", "forwarded": "202", "limited": "429 limited",
		}},
		{"forwarded", forward, "forward", "", map[string]string{
			"unique": "202", "duplicate": "409 duplicate", "after_window": "202", "late": "202", "collision": "202", "missing_key": "400 missing-key",
			"invalid": "400 invalid", "null": "400 invalid", "forwarded": "202", "limited": "202",
		}},
		{"written", refuse, "dead_letter", written, map[string]string{
			"unique": "210", "duplicate": "211", "after_window": "212", "late": "213", "collision": "217", "missing_key": "214",
			"invalid": "215", "null": "215", "forwarded": "214", "limited": "216",
		}},
	} {
		t.Run(file.name, func(t *testing.T) {
			b := newBench(t, fmt.Sprintf(routes, file.policy, file.responses, file.over, file.responses), oneTask)
			i := b.serve(nil)
			for _, step := range []struct{ name, path, body, verdict string }{
				{"unique", "/events", `{"id":"old","price":1,"at":` + at(4*time.Hour) + `}`, "unique"},
				{"duplicate", "/events", `{"id":"old","price":1,"at":` + at(4*time.Hour) + `}`, "duplicate"},
				{"after_window", "/events", `{"id":"old","price":1,"at":` + at(150*time.Minute) + `}`, "after_window"},
				{"unique", "/events", `{"id":"new","price":1,"at":` + at(0) + `}`, "unique"},
				{"collision", "/events", `{"id":"new","price":2,"at":` + at(0) + `}`, "collision"},
				{"late", "/events", `{"id":"new","price":1,"at":` + at(3*time.Hour) + `}`, "late"},
				{"missing_key", "/events", `{"price":1,"at":1}`, "missing_key"},
				{"invalid", "/events", `{"id":`, "invalid"},
				{"null", "/events", ``, "invalid"},
				{"forwarded", "/lax", `{}`, "missing_key"},
				{"unique", "/lax", `{"id":"1"}`, "unique"},
				{"limited", "/lax", `{"id":"2"}`, "limited"},
			} {
				got := i.post(step.path, step.body)
				what := step.path + " " + step.name
				got.header(t, what, "Oncebus-Verdict", step.verdict).isVerdict(t, what, file.want[step.name], step.verdict)
				if retry := got.Header.Get("Retry-After"); (retry != "") != (file.want["limited"] != "202" && step.verdict == "limited") {
					t.Errorf("%s: Retry-After %q", what, retry)
				}
			}
		})
	}
}

// isVerdict checks status and body. want is a status, and the name of a problem
// if the body is one.
func (r reply) isVerdict(t *testing.T, what, want, verdict string) {
	t.Helper()
	text, name, isProblem := strings.Cut(want, " ")
	status, err := strconv.Atoi(text)
	if err != nil {
		t.Fatal(err)
	}
	switch {
	case isProblem:
		r.problem(t, what, name, status)
	case status == http.StatusAccepted && (verdict == "late" || verdict == "limited" || verdict == "collision"):
		r.want(t, what, status, `{"status":"accepted","type":"/responses/forwarded-unchecked"}`)
	case status == http.StatusAccepted:
		r.want(t, what, status, `{"status":"accepted"}`)
	default:
		r.want(t, what, status, "text of "+verdict).header(t, what, "Content-Type", "text/plain")
	}
}

// TestResponseToUnchecked: an event that was forwarded unchecked is accepted, with its
// verdict and a type of its own. One that has a claim, or no key, has no such type.
func TestResponseToUnchecked(t *testing.T) {
	route := parseRoutes(t, signalRoutes).Routes[0]
	for _, c := range []struct {
		answer    wire.Answer
		unchecked bool
	}{
		{wire.Answer{Verdict: dedup.Bypassed}, true},
		{wire.Answer{Verdict: dedup.Late}, true},
		{wire.Answer{Verdict: dedup.Limited}, true},
		{wire.Answer{Verdict: dedup.Collision}, true},
		{wire.Answer{Verdict: dedup.Collision, Status: "in_progress", Attempt: 1}, false},
		{wire.Answer{Verdict: dedup.MissingKey}, false},
		{wire.Answer{Verdict: dedup.Unique}, false},
		{wire.Answer{Verdict: dedup.AfterWindow}, false},
	} {
		c.answer.Forwarded = true
		r := respondToVerdict(route, &c.answer)
		want := `{"status":"accepted"}`
		if c.unchecked {
			want = `{"status":"accepted","type":"/responses/forwarded-unchecked"}`
		}
		if r.status != http.StatusAccepted || r.header.Get(headerVerdict) != c.answer.Verdict.String() || string(r.body) != want || r.contentType != jsonType {
			t.Errorf("%v: %d %v %s", c.answer.Verdict, r.status, r.header, r.body)
		}
	}
}

// TestResponseToTooLarge: the judge found an event too large for a topic.
func TestResponseToTooLarge(t *testing.T) {
	route := parseRoutes(t, signalRoutes).Routes[0]
	r := respondToVerdict(route, &wire.Answer{Verdict: dedup.Invalid, Reason: wire.ReasonTooLarge + "out: 7 bytes"})
	if r.status != http.StatusRequestEntityTooLarge || r.header.Get(headerVerdict) != "invalid" || r.problem.name != problemTooLarge.name {
		t.Errorf("%d %v %s", r.status, r.header, r.body)
	}
}

// TestReplay follows an order: a duplicate gets in_progress, the outcome arrives
// by HTTP, and a duplicate gets its bytes.
func TestReplay(t *testing.T) {
	t.Parallel()
	b, i := claimBench(t)
	key := []string{"Idempotency-Key", "k1"}
	first := i.post("/orders", `{"side":"buy","requestId":"r1"}`, key...)
	first.want(t, "first", 202, `{"status":"accepted"}`).header(t, "first", "Oncebus-Claim-Status", "in_progress").header(t, "first", "Oncebus-Attempt", "1")
	inProgress := i.post("/orders", `{"side":"buy","requestId":"r2"}`, key...)
	p := inProgress.header(t, "in progress", "Retry-After", "1").header(t, "in progress", "Oncebus-Verdict", "in_progress").problem(t, "in progress", "in-progress", 409)
	if p.FirstRequest != "r1" || p.State != "in_progress" || p.Attempt != 1 || inProgress.Header.Get("Oncebus-First-Request") != "r1" {
		t.Errorf("in progress: %+v, %v", p, inProgress.Header)
	}
	i.post("/orders", `{"side":"sell","requestId":"r1"}`, key...).problem(t, "another order", "collision", 422)
	i.post("/orders", `{"side":"buy"}`).problem(t, "no header", "missing-key", 400)

	token := b.tokens("orders.unique", 1)[0]
	i.postOutcome("/orders", token, "submitted", "").want(t, "submitted", 202)
	b.wait("the claim to be submitted", func() bool {
		return i.post("/orders", `{"side":"buy"}`, key...).Header.Get("Oncebus-Claim-Status") == "submitted"
	})
	const result = "<order id=\"7\"/>"
	i.postOutcome("/orders", token, "completed", result, "Content-Type", "application/xml; charset=utf-8", "Oncebus-Result-Status", "201").want(t, "completed", 202)
	var replayed reply
	b.wait("the claim to be completed", func() bool {
		replayed = i.post("/orders", `{"side":"buy"}`, key...)
		return replayed.StatusCode != http.StatusConflict
	})
	replayed.want(t, "replay", 201).header(t, "replay", "Idempotent-Replayed", "true").header(t, "replay", "Oncebus-Verdict", "replayed").
		header(t, "replay", "Content-Type", "application/xml; charset=utf-8").header(t, "replay", "Oncebus-Claim-Status", "completed").
		header(t, "replay", "Oncebus-First-Request", "r1")
	if replayed.text != result {
		t.Errorf("replayed %q", replayed.text)
	}
}

// TestReplayOfResults: every kind of result a completed claim may have.
func TestReplayOfResults(t *testing.T) {
	t.Parallel()
	b, i := claimBench(t)
	for n, c := range []struct {
		name, body string
		headers    []string
		status     int
		kind, text string // content type and body
	}{
		{"null", "", nil, 204, "", ""},
		{"null with a status", "", []string{"Oncebus-Result-Status", "202"}, 202, "", ""},
		{"empty", "", []string{"Oncebus-Empty", "true"}, 200, "application/json", ""},
		{"JSON", `{"id":7}`, nil, 200, "application/json", `{"id":7}`},
		{"an error", `no`, []string{"Oncebus-Result-Status", "500", "Content-Type", "text/plain"}, 500, "text/plain", "no"},
	} {
		key := []string{"Idempotency-Key", c.name}
		i.post("/orders", `{}`, key...).want(t, c.name, 202)
		tokens := b.tokens("orders.unique", n+1)
		for _, token := range tokens { // the earlier keys' claims have their outcome: a second one is refused later
			i.postOutcome("/orders", token, "completed", c.body, c.headers...).want(t, c.name, 202)
		}
		var got reply
		b.wait("the claim to be completed", func() bool {
			got = i.post("/orders", `{}`, key...)
			return got.Header.Get("Oncebus-Claim-Status") == "completed"
		})
		got.want(t, c.name, c.status).header(t, c.name, "Content-Type", c.kind).header(t, c.name, "Idempotent-Replayed", "true")
		if got.text != c.text {
			t.Errorf("%s: replayed %q, want %q", c.name, got.text, c.text)
		}
	}
	// The result is over the route's limit.
	key := []string{"Idempotency-Key", "long"}
	i.post("/orders", `{}`, key...).want(t, "long", 202)
	for _, token := range b.tokens("orders.unique", 6) {
		i.postOutcome("/orders", token, "completed", strings.Repeat("x", 129)).want(t, "long", 202)
	}
	var got reply
	b.wait("the claim to be completed", func() bool {
		got = i.post("/orders", `{}`, key...)
		return got.Header.Get("Oncebus-Claim-Status") == "completed"
	})
	p := got.header(t, "long", "Idempotent-Replayed", "true").problem(t, "long", "result-omitted", 410)
	if !strings.Contains(p.Detail, "129 bytes") {
		t.Errorf("detail %q", p.Detail)
	}
}

// TestWaitForOutcome: with while_in_progress: wait a duplicate gets the outcome of the
// first request, which gets unique at once.
func TestWaitForOutcome(t *testing.T) {
	t.Parallel()
	b, i := claimBench(t)
	arrive := b.arrivals("app-repartition")
	for n, c := range []struct {
		kind, body string
		headers    []string
		status     int
		problem    string
	}{
		{"completed", "done", []string{"Content-Type", "text/plain"}, 200, ""},
		{"completed", "", nil, 204, ""},
		{"failed", "broke", nil, 502, "failed"},
		{"failed", `{"why":"broke"}`, []string{"Oncebus-Result-Status", "503"}, 503, ""},
		{"rejected", "no", nil, 422, "rejected"},
		{"rejected", "no funds", []string{"Oncebus-Result-Status", "402", "Content-Type", "text/plain"}, 402, ""},
		{"forget", "", nil, 502, "erased"},
	} {
		body := event(strings.Repeat("x", n+1))
		i.post("/operations", body).want(t, c.kind, 201).header(t, c.kind, "Oncebus-Verdict", "unique")
		duplicate := i.later("/operations", body)
		arrive(body, 2) // a last event, so that earlier ones are judged
		tokens := b.tokens("operations.unique", n+1)
		for _, token := range tokens {
			i.postOutcome("/operations", token, c.kind, c.body, c.headers...).want(t, c.kind, 202)
		}
		got, what := <-duplicate, c.kind+" "+c.body
		recorded := ""
		if c.kind == "completed" {
			recorded = "true"
		}
		status := c.kind
		if c.kind == "forget" {
			status = "erased"
		}
		got.header(t, what, "Oncebus-Claim-Status", status).header(t, what, "Oncebus-Verdict", "replayed").header(t, what, "Idempotent-Replayed", recorded)
		if c.problem != "" {
			got.problem(t, what, c.problem, c.status)
		} else if got.want(t, what, c.status); got.text != c.body {
			t.Errorf("%s: body %q, want %q", what, got.text, c.body)
		}
	}
}

// TestClientThatDisconnectsFreesItsPlace: the client that comes again waits, though one
// place is all there is.
func TestClientThatDisconnectsFreesItsPlace(t *testing.T) {
	t.Parallel()
	b := newBench(t, strings.Replace(claimRoutes, "    while_in_progress: wait\n    dead_letter: dead\n    http:\n      path: /operations", "    while_in_progress: wait\n    max_waiting: 1\n    dead_letter: dead\n    http:\n      path: /operations", 1))
	i := b.serve(func(c *Config) { c.Secrets = Secrets{"EXECUTOR": {Value: "token-of-executors"}} })
	i.post("/operations", event("a")).want(t, "first", 201)
	const polls = 3
	for n := range polls {
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			_, _ = i.try(b.http, i.request(http.MethodPost, "/operations", strings.NewReader(event("a"))).WithContext(ctx)) // it is cancelled
		}()
		b.read("app-verdicts", 2+2*n) // those on the first event and on each poll, and those on the replaced polls
		cancel()
		<-ended
		b.wait("the server to notice", func() bool { return i.count("oncebus_http_requests_in_flight") == 0 })
	}
	last := i.later("/operations", event("a"))
	b.read("app-verdicts", 2+2*polls)
	i.postOutcome("/operations", b.tokens("operations.unique", 1)[0], "completed", "done").want(t, "outcome", 202)
	(<-last).want(t, "last", 200, "done")
}

// TestWaitTimesOut: after the wait the response has the verdict, without an
// outcome.
func TestWaitTimesOut(t *testing.T) {
	t.Parallel()
	_, i := claimBench(t)
	i.warm("/hasty", event("a"))
	i.post("/hasty", event("a")).problem(t, "duplicate", "in-progress", 409)
}

// TestExecutorMayChooseStatus499: 499 is a status like every other.
func TestExecutorMayChooseStatus499(t *testing.T) {
	t.Parallel()
	b, i := claimBench(t)
	key := []string{"Idempotency-Key", "k"}
	i.post("/orders", `{}`, key...).want(t, "first", 202)
	i.postOutcome("/orders", b.tokens("orders.unique", 1)[0], "completed", "{}", "Oncebus-Result-Status", "499").want(t, "outcome", 202)
	var got reply
	b.wait("the claim to be completed", func() bool {
		got = i.post("/orders", `{}`, key...)
		return got.Header.Get("Oncebus-Claim-Status") == "completed"
	})
	got.want(t, "replay", 499, "{}")
}

// TestEveryVerdictHasAResponse checks the same as the linter exhaustive.
func TestEveryVerdictHasAResponse(t *testing.T) {
	for _, v := range dedup.Verdicts {
		if r := defaultResponse(&wire.Answer{Verdict: v}); r.status == 0 {
			t.Errorf("%v: no status", v)
		}
	}
	for _, kind := range dedup.OutcomeKinds {
		if r := outcomeResponse(&wire.Answer{Verdict: dedup.Replayed, HasOutcome: true, Status: kind.ClaimStatus()}); r.status == 0 {
			t.Errorf("%v: no status", kind)
		}
	}
}

// TestForwardedWithoutAClaim: no response promises an outcome, or that the key is free.
func TestForwardedWithoutAClaim(t *testing.T) {
	route := &rules.Route{Name: "ops", HTTP: &rules.HTTP{}}
	for what, a := range map[string]wire.Answer{
		"duplicate": {Verdict: dedup.Duplicate, Status: dedup.StatusForwarded, Reason: "why", Attempt: 1},
		"waited":    {Verdict: dedup.Replayed, Status: dedup.StatusForwarded, Reason: "why", Attempt: 1, HasOutcome: true, Value: []byte("broke")},
	} {
		r := respondToVerdict(route, &a)
		body := string(r.body)
		if r.status != 409 || r.problem == nil || r.problem.name != "forwarded" || r.header.Get("Retry-After") != "" || r.header.Get("Oncebus-Claim-Status") != "forwarded" ||
			!strings.Contains(body, `"type":"/problems/forwarded"`) || !strings.Contains(body, `"detail":"why"`) || strings.Contains(body, keyIsFree) {
			t.Errorf("%s: %d %v %s", what, r.status, r.header, body)
		}
	}
	chosen := wire.Answer{Verdict: dedup.Replayed, Status: dedup.StatusForwarded, HasOutcome: true, Value: []byte("own"), Headers: []dedup.Header{{Key: "http-status", Value: []byte("503")}}}
	if r := respondToVerdict(route, &chosen); r.status != 503 || string(r.body) != "own" {
		t.Errorf("with a status of the executor: %d %s", r.status, r.body)
	}
	own := &rules.Route{Name: "ops", HTTP: &rules.HTTP{Responses: map[dedup.Verdict]rules.Response{dedup.Duplicate: {Status: 200, Body: "known"}}}}
	if r := respondToVerdict(own, &wire.Answer{Verdict: dedup.Duplicate, Status: dedup.StatusForwarded}); r.status != 200 || string(r.body) != "known" {
		t.Errorf("with a response of the routes file: %d %s", r.status, r.body)
	}
}
