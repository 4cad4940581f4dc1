package ingress

import (
	"net/http"
	"strings"
	"testing"
)

// claimRoutes are two routes in claim mode: one whose copies wait for the
// outcome, and one whose copies are told that it runs.
const claimRoutes = `routes:
  - name: orders
    topics: [orders.raw]
    mode: claim
    key: [{header: idempotency-key}]
    fingerprint: [side]
    window: 1h
    output: orders.unique
    outcomes: orders.outcomes
    replies: orders.replies
    lease: 1m
    while_in_progress: reject
    result_limit: 128
    request: {field: requestId}
    dead_letter: dead
    http:
      path: /orders
      signature: {scheme: none}
      outcomes: {signature: {scheme: bearer, secret: EXECUTOR}}
  - name: operations
    topics: [operations.raw]
    mode: claim
    key: [{field: id}]
    window: 1h
    output: operations.unique
    outcomes: operations.outcomes
    replies: operations.replies
    lease: 1m
    while_in_progress: wait
    dead_letter: dead
    http:
      path: /operations
      signature: {scheme: none}
      timeout: 30s
      outcomes: {signature: {scheme: none}}
      responses: {unique: {status: 201}}
  - name: hasty
    topics: [hasty.raw]
    mode: claim
    key: [{field: id}]
    window: 1h
    output: hasty.unique
    outcomes: hasty.outcomes
    replies: hasty.replies
    lease: 1m
    while_in_progress: wait
    dead_letter: dead
    http: {path: /hasty, signature: {scheme: none}, timeout: 2s}
`

func claimBench(t *testing.T) (*bench, *instance) {
	t.Helper()
	b := newBench(t, strings.ReplaceAll(claimRoutes, "EXECUTOR", "EXEC"))
	i := b.serve(func(c *Config) { c.Secrets = Secrets{"EXEC": {Value: "executors-token"}} })
	return b, i
}

// settle posts an outcome.
func (i *instance) settle(path, token, kind, body string, headers ...string) reply {
	i.b.t.Helper()
	return i.post(path+"/outcomes", body, append([]string{"Authorization", "Bearer executors-token", "Oncebus-Claim-Token", token, "Oncebus-Outcome", kind}, headers...)...)
}

// tokens returns the claim tokens of a topic's records, once there are n.
func (b *bench) tokens(topic string, n int) []string {
	b.t.Helper()
	var tokens []string
	for _, r := range b.read(topic, n) {
		tokens = append(tokens, recordHeader(r, "oncebus-claim-token"))
	}
	return tokens
}

// TestReplay is the life of an order: it runs, a copy is told so, it is
// completed by HTTP, and a copy gets the bytes of the first answer.
func TestReplay(t *testing.T) {
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
	i.settle("/orders", token, "submitted", "").want(t, "submitted", 202)
	b.wait("the claim to be submitted", func() bool {
		return i.post("/orders", `{"side":"buy"}`, key...).Header.Get("Oncebus-Claim-Status") == "submitted"
	})
	const result = "<order id=\"7\"/>"
	i.settle("/orders", token, "completed", result, "Content-Type", "application/xml; charset=utf-8", "Oncebus-Result-Status", "201").want(t, "completed", 202)
	var copied reply
	b.wait("the claim to be completed", func() bool {
		copied = i.post("/orders", `{"side":"buy"}`, key...)
		return copied.StatusCode != http.StatusConflict
	})
	copied.want(t, "replay", 201).header(t, "replay", "Idempotent-Replayed", "true").header(t, "replay", "Oncebus-Verdict", "replayed").
		header(t, "replay", "Content-Type", "application/xml; charset=utf-8").header(t, "replay", "Oncebus-Claim-Status", "completed").
		header(t, "replay", "Oncebus-First-Request", "r1")
	if copied.text != result {
		t.Errorf("replayed %q", copied.text)
	}
}

// TestReplayOfResults: every kind of result a completed claim may have.
func TestReplayOfResults(t *testing.T) {
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
		for _, token := range tokens { // those of the keys before are settled: that is refused, later
			i.settle("/orders", token, "completed", c.body, c.headers...).want(t, c.name, 202)
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
		i.settle("/orders", token, "completed", strings.Repeat("x", 129)).want(t, "long", 202)
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

// TestWaiting: with while_in_progress: wait a copy gets the outcome of the first, which is
// told at once that it runs.
func TestWaiting(t *testing.T) {
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
		twin := i.later("/operations", body)
		arrive(body, 2) // so that what follows is judged after it
		tokens := b.tokens("operations.unique", n+1)
		for _, token := range tokens {
			i.settle("/operations", token, c.kind, c.body, c.headers...).want(t, c.kind, 202)
		}
		got, what := <-twin, c.kind+" "+c.body
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

// TestWaitingLeavesRoomForOutcomes: as many copies as there may be requests wait
// for an outcome, and it comes in.
func TestWaitingLeavesRoomForOutcomes(t *testing.T) {
	b := newBench(t, claimRoutes)
	i := b.serve(func(c *Config) {
		c.MaxRequests, c.MaxBodyBytes, c.Secrets = 2, 1<<20, Secrets{"EXECUTOR": {Value: "executors-token"}}
	})
	arrive := b.arrivals("app-repartition")
	large := `{"id":"a","x":"` + strings.Repeat("x", 400_000) + `"}`
	i.post("/operations", large).want(t, "first", 201)
	twins := []<-chan reply{i.later("/operations", large), i.later("/operations", large)}
	arrive(large, 3)
	if i.Requests() != 2 || i.count("oncebus_http_requests_in_flight") != 2 || i.count("oncebus_http_body_bytes") < 800_000 {
		t.Error("the metrics do not say that two wait")
	}
	i.post("/operations", event("b")).problem(t, "a third", "busy", 503)
	token := b.tokens("operations.unique", 1)[0]
	i.settle("/operations", token, "completed", strings.Repeat("x", 500_000)+"done").want(t, "outcome", 202)
	for _, twin := range twins {
		(<-twin).want(t, "twin", 200, "done")
	}
	b.wait("nothing to be in hand", func() bool {
		return i.Requests() == 0 && i.count("oncebus_http_requests_in_flight") == 0 && i.count("oncebus_http_body_bytes") == 0
	})
}

// TestWaitingInVain: when the wait is over the verdict is known, and the
// outcome is not.
func TestWaitingInVain(t *testing.T) {
	_, i := claimBench(t)
	i.post("/hasty", event("a")).want(t, "first", 202, `{"status":"accepted"}`).header(t, "first", "Oncebus-Verdict", "unique")
	i.post("/hasty", event("a")).problem(t, "twin", "in-progress", 409)
}

func TestOutcomesRefused(t *testing.T) {
	b, i := claimBench(t)
	i.post("/orders", `{}`, "Idempotency-Key", "k").want(t, "order", 202)
	token := b.tokens("orders.unique", 1)[0]
	i.post("/orders/outcomes", "", "Oncebus-Claim-Token", token, "Oncebus-Outcome", "completed").
		header(t, "unsigned", "WWW-Authenticate", "Bearer").problem(t, "unsigned", "signature", 401)
	i.post("/orders/outcomes", "", "Authorization", "Bearer wrong", "Oncebus-Claim-Token", token, "Oncebus-Outcome", "completed").problem(t, "wrong", "signature", 401)
	i.send("GET", "/orders/outcomes", "").header(t, "GET", "Allow", "POST").problem(t, "GET", "method", 405)
	i.send("POST", "/hasty/outcomes", "").problem(t, "no outcomes here", "not-found", 404)
	for what, got := range map[string]reply{
		"no kind":       i.settle("/orders", token, "", ""),
		"unknown kind":  i.settle("/orders", token, "done", ""),
		"no token":      i.settle("/orders", "", "completed", ""),
		"no such token": i.settle("/orders", "x", "completed", ""),
		"bad status":    i.settle("/orders", token, "completed", "", "Oncebus-Result-Status", "100"),
		"no status":     i.settle("/orders", token, "completed", "", "Oncebus-Result-Status", "fine"),
		"two statuses":  i.settle("/orders", token, "completed", "", "Oncebus-Result-Status", "201", "Oncebus-Result-Status", "201"),
		"two kinds":     i.settle("/orders", token, "completed", "", "Oncebus-Outcome", "failed"),
		"two types":     i.settle("/orders", token, "completed", "", "Content-Type", "text/plain", "Content-Type", "text/html"),
		"no type":       i.settle("/orders", token, "completed", "{}", "Content-Type", "json"),
		"half a type":   i.settle("/orders", token, "completed", "{}", "Content-Type", "text/plain; charset"),
		"a type beyond": i.settle("/orders", token, "completed", "{}", "Content-Type", "text/plain; title=\"\u00e9\""),
		"a long type":   i.settle("/orders", token, "completed", "{}", "Content-Type", "text/plain; a="+strings.Repeat("x", 1024)),
		"another route": i.settle("/operations", token, "completed", ""),
	} {
		if p := got.problem(t, what, "outcome", 400); p.Detail == "" {
			t.Errorf("%s: no detail", what)
		}
	}
	i.settle("/orders", token, "completed", strings.Repeat("x", 1<<20+1)).problem(t, "too large", "too-large", 413)
	i.settle("/orders", token, "completed", "{}", "Content-Encoding", "br").problem(t, "coded", "encoding", 415)
	i.post("/orders", `{}`, "Idempotency-Key", "k").problem(t, "still running", "in-progress", 409)
}

// TestOutcomeIsLargerThanEvents: how large events may be says nothing of their
// outcomes, and an executor is told what to do about one that is too large.
func TestOutcomeIsLargerThanEvents(t *testing.T) {
	b := newBench(t, strings.Replace(claimRoutes, "path: /orders\n", "path: /orders\n      max_body: 64\n", 1))
	i := b.serve(func(c *Config) { c.Secrets = Secrets{"EXECUTOR": {Value: "executors-token"}} })
	i.post("/orders", strings.Repeat(" ", 65), "Idempotency-Key", "k").problem(t, "event", "too-large", 413)
	i.post("/orders", `{}`, "Idempotency-Key", "k").want(t, "order", 202)
	token := b.tokens("orders.unique", 1)[0]
	for what, size := range map[string]int{"over the limit": outcomeBody + 1, "over the topic's limit": outcomeBody} {
		p := i.settle("/orders", token, "completed", strings.Repeat("x", size)).problem(t, what, "too-large", 413)
		if !strings.Contains(p.Detail, "with a shorter result, or with none") {
			t.Errorf("%s: detail %q", what, p.Detail)
		}
	}
	i.settle("/orders", token, "completed", strings.Repeat("x", outcomeBody-2000)).want(t, "as large as may be", 202)
	var got reply
	b.wait("the claim to be completed", func() bool {
		got = i.post("/orders", `{}`, "Idempotency-Key", "k")
		return got.Header.Get("Oncebus-Claim-Status") == "completed"
	})
	got.problem(t, "copy", "result-omitted", 410) // as its result_limit says
}

// TestOutcomeFromTheBus: an executor with a Kafka client is answered for in the
// same way, and what it cannot mean as a status or a content type is not taken
// for one.
func TestOutcomeFromTheBus(t *testing.T) {
	b, i := claimBench(t)
	for n, c := range []struct {
		status, contentType string
		want                int
		wantType            string
	}{
		{"418", "text/plain", 418, "text/plain"}, {"2OO", "text/\nplain", 200, "application/json"}, {"199", "", 200, "application/json"}, {"0200", "", 200, "application/json"},
	} {
		key := []string{"Idempotency-Key", c.status}
		i.post("/orders", `{}`, key...).want(t, c.status, 202)
		for _, token := range b.tokens("orders.unique", n+1) {
			b.produce("orders.outcomes", []byte("done"), "oncebus-claim-token", token, "oncebus-outcome", "completed", "http-status", c.status, "Content-Type", c.contentType)
		}
		var got reply
		b.wait("the claim to be completed", func() bool {
			got = i.post("/orders", `{}`, key...)
			return got.Header.Get("Oncebus-Claim-Status") == "completed"
		})
		got.want(t, c.status, c.want, "done").header(t, c.status, "Content-Type", c.wantType)
	}
}
