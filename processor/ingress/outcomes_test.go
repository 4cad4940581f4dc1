package ingress

import (
	"crypto/rand"
	"strings"
	"testing"
)

func TestOutcomesRefused(t *testing.T) {
	t.Parallel()
	b, i := claimBench(t)
	i.post("/orders", `{}`, "Idempotency-Key", "k").want(t, "order", 202)
	token := b.tokens("orders.unique", 1)[0]
	i.post("/orders/outcomes", "", "Oncebus-Claim-Token", token, "Oncebus-Outcome", "completed").
		header(t, "unsigned", "WWW-Authenticate", "Bearer").problem(t, "unsigned", "signature", 401)
	i.post("/orders/outcomes", "", "Authorization", "Bearer wrong", "Oncebus-Claim-Token", token, "Oncebus-Outcome", "completed").problem(t, "wrong", "signature", 401)
	i.send("GET", "/orders/outcomes", "").header(t, "GET", "Allow", "POST").problem(t, "GET", "method", 405)
	i.send("POST", "/hasty/outcomes", "").problem(t, "no outcomes here", "not-found", 404)
	for what, got := range map[string]reply{
		"no kind":       i.postOutcome("/orders", token, "", ""),
		"unknown kind":  i.postOutcome("/orders", token, "done", ""),
		"no token":      i.postOutcome("/orders", "", "completed", ""),
		"no such token": i.postOutcome("/orders", "x", "completed", ""),
		"bad status":    i.postOutcome("/orders", token, "completed", "", "Oncebus-Result-Status", "100"),
		"no status":     i.postOutcome("/orders", token, "completed", "", "Oncebus-Result-Status", "fine"),
		"two statuses":  i.postOutcome("/orders", token, "completed", "", "Oncebus-Result-Status", "201", "Oncebus-Result-Status", "201"),
		"two kinds":     i.postOutcome("/orders", token, "completed", "", "Oncebus-Outcome", "failed"),
		"two types":     i.postOutcome("/orders", token, "completed", "", "Content-Type", "text/plain", "Content-Type", "text/html"),
		"no type":       i.postOutcome("/orders", token, "completed", "{}", "Content-Type", "json"),
		"half a type":   i.postOutcome("/orders", token, "completed", "{}", "Content-Type", "text/plain; charset"),
		"a type beyond": i.postOutcome("/orders", token, "completed", "{}", "Content-Type", "text/plain; title=\"\u00e9\""),
		"a long type":   i.postOutcome("/orders", token, "completed", "{}", "Content-Type", "text/plain; a="+strings.Repeat("x", 1024)),
		"another route": i.postOutcome("/operations", token, "completed", ""),
	} {
		if p := got.problem(t, what, "outcome", 400); p.Detail == "" {
			t.Errorf("%s: no detail", what)
		}
	}
	i.postOutcome("/orders", token, "completed", strings.Repeat("x", 1<<20+1)).problem(t, "too large", "too-large", 413)
	i.postOutcome("/orders", token, "completed", "{}", "Content-Encoding", "br").problem(t, "coded", "encoding", 415)
	i.post("/orders", `{}`, "Idempotency-Key", "k").problem(t, "still running", "in-progress", 409)
}

// TestOutcomeIsLargerThanEvents: max_body does not limit outcomes, and the
// problem of one that is too large says what the executor can do.
func TestOutcomeIsLargerThanEvents(t *testing.T) {
	t.Parallel()
	b := newBench(t, strings.Replace(claimRoutes, "path: /orders\n", "path: /orders\n      max_body: 64\n", 1))
	i := b.serve(func(c *Config) { c.Secrets = Secrets{"EXECUTOR": {Value: "token-of-executors"}} })
	i.post("/orders", strings.Repeat(" ", 65), "Idempotency-Key", "k").problem(t, "event", "too-large", 413)
	i.post("/orders", `{}`, "Idempotency-Key", "k").want(t, "order", 202)
	token := b.tokens("orders.unique", 1)[0]
	random := make([]byte, outcomeMaxBytes-9) // no codec shortens it, which at times one does with base64
	_, _ = rand.Read(random)                  // never fails
	for what, result := range map[string]string{"over the limit": strings.Repeat("x", outcomeMaxBytes+1), "over the topic's limit": string(random)} {
		p := i.postOutcome("/orders", token, "completed", result).problem(t, what, "too-large", 413)
		if !strings.Contains(p.Detail, "with a shorter result, or without one") {
			t.Errorf("%s: detail %q", what, p.Detail)
		}
	}
	i.postOutcome("/orders", token, "completed", strings.Repeat("x", outcomeMaxBytes-2000)).want(t, "as large as the limit", 202)
	var got reply
	b.wait("the claim to be completed", func() bool {
		got = i.post("/orders", `{}`, "Idempotency-Key", "k")
		return got.Header.Get("Oncebus-Claim-Status") == "completed"
	})
	got.problem(t, "duplicate", "result-omitted", 410) // above its result_limit the result is omitted
}

// TestOutcomeProducedToKafka: an executor with a Kafka client chooses the
// response too; an invalid status or content type counts as absent.
func TestOutcomeProducedToKafka(t *testing.T) {
	t.Parallel()
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

// TestStartByHTTP: one start id gets the grant of an attempt, and again if its response was
// lost. A renewal of it is granted to that id. After the outcome nothing is granted.
func TestStartByHTTP(t *testing.T) {
	t.Parallel()
	b, i := claimBench(t)
	i.post("/orders", `{}`, "Idempotency-Key", "k").want(t, "order", 202)
	token := b.tokens("orders.unique", 1)[0]
	for range 2 {
		i.postOutcome("/orders", token, "start", "", "Oncebus-Start-Id", "one").want(t, "start", 200, `{"answer":"granted"}`)
	}
	p := i.postOutcome("/orders", token, "start", "", "Oncebus-Start-Id", "two").problem(t, "second start", "superseded", 409)
	if p.Detail != "attempt 1 was started with another start id" || p.StartedBy != "one" || p.Attempt != 1 || p.Key == "" {
		t.Errorf("second start: %+v", p)
	}
	i.postOutcome("/orders", token, "renew", "", "Oncebus-Start-Id", "one").want(t, "renew", 200)
	i.postOutcome("/orders", token, "renew", "").problem(t, "renewal of another", "superseded", 409)
	for what, got := range map[string]reply{
		"no start id":      i.postOutcome("/orders", token, "start", ""),
		"a long start id":  i.postOutcome("/orders", token, "start", "", "Oncebus-Start-Id", strings.Repeat("x", 129)),
		"two start ids":    i.postOutcome("/orders", token, "start", "", "Oncebus-Start-Id", "one", "Oncebus-Start-Id", "two"),
		"a body":           i.postOutcome("/orders", token, "start", "{}", "Oncebus-Start-Id", "one"),
		"a status":         i.postOutcome("/orders", token, "start", "", "Oncebus-Start-Id", "one", "Oncebus-Result-Status", "201"),
		"of another route": i.postOutcome("/operations", token, "start", "", "Oncebus-Start-Id", "one"),
	} {
		if p := got.problem(t, what, "outcome", 400); p.Detail == "" {
			t.Errorf("%s: no detail", what)
		}
	}
	i.postOutcome("/orders", token, "completed", "{}").want(t, "completed", 202)
	b.wait("the key to be completed", func() bool {
		return strings.Contains(i.postOutcome("/orders", token, "start", "", "Oncebus-Start-Id", "one").text, "start is too late: the key is completed")
	})
}
