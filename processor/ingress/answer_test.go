package ingress

import (
	"context"
	"net/http"
	"strings"
	"testing"
	"time"

	"oncebus/dedup"
	"oncebus/processor/front"
	"oncebus/processor/wire"
)

// answerRoutes are two routes whose first senders wait: one that keeps to the draft of
// Idempotency-Key, and one whose duplicates wait too.
const answerRoutes = `routes:
  - name: payments
    topics: [payments.raw]
    mode: claim
    key: [{header: idempotency-key}]
    fingerprint: [amount]
    window: 1h
    output: payments.unique
    outcomes: payments.outcomes
    replies: payments.replies
    lease: 1m
    request: {field: requestId}
    dead_letter: dead
    http:
      path: /payments
      signature: {scheme: bearer, secret: SENDER}
      timeout: 50s
      answer: outcome
      answer_timeout: 49s
      idempotency_key: {docs: "https://developer.example.com/idempotency"}
      outcomes: {signature: {scheme: bearer, secret: EXEC}}
  - name: transfers
    topics: [transfers.raw]
    mode: claim
    key: [{field: id}]
    window: 1h
    output: transfers.unique
    outcomes: transfers.outcomes
    replies: transfers.replies
    lease: 1s
    while_in_progress: wait
    dead_letter: dead
    http:
      path: /transfers
      signature: {scheme: hmac, secret: SENDER, header: X-Signature}
      timeout: 50s
      answer: outcome
      answer_timeout: 49s
      outcomes: {signature: {scheme: bearer, secret: EXEC}}
  - name: short
    topics: [short.raw]
    mode: claim
    key: [{header: idempotency-key}]
    window: 1s
    grace: 0s
    output: short.unique
    outcomes: short.outcomes
    replies: short.replies
    lease: 1s
    dead_letter: dead
    http:
      path: /short
      signature: {scheme: bearer, secret: OTHER}
      timeout: 50s
      answer: outcome
`

var answerSecrets = Secrets{"SENDER": {Value: "token-of-sender-a"}, "OTHER": {Value: "token-of-sender-b"}, "EXEC": {Value: "token-of-executors"}}

func withAnswerSecrets(c *Config) { c.Secrets = answerSecrets }

func answerBench(t *testing.T) (*bench, *instance) {
	t.Helper()
	b := newBench(t, answerRoutes, oneTask)
	i := b.serve(withAnswerSecrets)
	return b, i
}

// paying has the headers of a payment with a key.
func paying(key string, more ...string) []string {
	return append(append([]string{"Idempotency-Key", `"` + key + `"`}, bearer...), more...)
}

// get asks for an outcome.
func (i *instance) get(path string, headers ...string) reply {
	i.b.t.Helper()
	return i.send(http.MethodGet, path, "", headers...)
}

// TestFirstSenderGetsItsOutcome: it waits, and gets the result with its status.
func TestFirstSenderGetsItsOutcome(t *testing.T) {
	t.Parallel()
	b, i := answerBench(t)
	first := i.later("/payments", `{"amount":7}`, paying("k1")...)
	i.postOutcome("/payments", b.tokens("payments.unique", 1)[0], "completed", `{"paid":7}`, "Content-Type", "application/json", "Oncebus-Result-Status", "201").want(t, "completed", 202)
	got := (<-first).want(t, "first", 201, `{"paid":7}`).header(t, "first", "Oncebus-Verdict", "unique").header(t, "first", "Oncebus-Claim-Status", "completed").
		header(t, "first", "Idempotent-Replayed", "").header(t, "first", "Location", "").header(t, "first", "Preference-Applied", "")
	again := i.post("/payments", `{"amount":7}`, paying("k1", "Prefer", "wait=3")...).want(t, "again", 201).header(t, "again", "Idempotent-Replayed", "true").header(t, "again", "Preference-Applied", "wait=3")
	if again.text != got.text {
		t.Errorf("replayed %q after %q", again.text, got.text)
	}
}

// TestFirstSenderGetsEveryKindOfOutcome: also those that free the key.
func TestFirstSenderGetsEveryKindOfOutcome(t *testing.T) {
	t.Parallel()
	b, i := answerBench(t)
	for n, c := range []struct {
		kind, body string
		headers    []string
		status     int
		problem    string
	}{
		{"failed", "", nil, 502, "failed"},
		{"failed", "no funds", []string{"Oncebus-Result-Status", "402", "Content-Type", "text/plain"}, 402, ""},
		{"rejected", "", nil, 422, "rejected"},
		{"forget", "", nil, 502, "erased"},
		{"completed", "", nil, 204, ""},
	} {
		first := i.later("/payments", `{"amount":1}`, paying(c.kind+c.body)...)
		i.postOutcome("/payments", b.tokens("payments.unique", n+1)[n], c.kind, c.body, c.headers...).want(t, c.kind, 202)
		got := (<-first).want(t, c.kind, c.status, c.body)
		if c.problem != "" {
			got.problem(t, c.kind, c.problem, c.status)
		}
	}
}

// TestPreferences: no wait, a short one, and one beyond the route's.
func TestPreferences(t *testing.T) {
	t.Parallel()
	_, i := answerBench(t)
	for _, c := range []struct{ key, prefer, applied string }{
		{"async", "respond-async", "respond-async"}, {"none", "wait=0", "wait=0"}, {"short", "respond-async, wait=1", "respond-async, wait=1"},
	} {
		got := i.post("/payments", `{"amount":1}`, paying(c.key, "Prefer", c.prefer)...)
		got.want(t, c.key, 202, `{"status":"accepted","claim_status":"in_progress"}`).header(t, c.key, "Retry-After", "1").header(t, c.key, "Preference-Applied", c.applied).
			header(t, c.key, "Oncebus-Verdict", "unique").header(t, c.key, "Oncebus-Attempt", "1")
		if location := got.Header.Get("Location"); !strings.HasPrefix(location, "/payments/requests/") {
			t.Errorf("%s: location %q", c.key, location)
		}
	}
}

// TestReadPreference reads the header as RFC 7240 has it.
func TestReadPreference(t *testing.T) {
	const most = 30 * time.Second
	for _, c := range []struct {
		values  []string
		wait    time.Duration
		applied string
	}{
		{nil, most, ""},
		{[]string{""}, most, ""},
		{[]string{"return=minimal"}, most, ""},
		{[]string{"wait=10"}, 10 * time.Second, "wait=10"},
		{[]string{"WAIT = \"10\""}, 10 * time.Second, "wait=10"},
		{[]string{"wait=90"}, most, "wait=30"},
		{[]string{"wait=10; x=\"a,wait=3\"; y"}, 10 * time.Second, "wait=10"},
		{[]string{"foo=\"a, wait=3\""}, most, ""},
		{[]string{"foo=\"a\\\", wait=3\", wait=4"}, 4 * time.Second, "wait=4"},
		{[]string{"wait=10, wait=5"}, 10 * time.Second, "wait=10"},
		{[]string{"wait=10", "wait=5"}, 10 * time.Second, "wait=10"},
		{[]string{"wait=x, wait=5"}, most, ""},
		{[]string{"wait=-1"}, most, ""},
		{[]string{"wait=1.5"}, most, ""},
		{[]string{"wait=99999999999999999999"}, most, ""},
		{[]string{"wait"}, most, ""},
		{[]string{"Respond-Async"}, 0, "respond-async"},
		{[]string{"wait=3, respond-async"}, 3 * time.Second, "respond-async, wait=3"},
	} {
		if wait, applied := readPreference(http.Header{headerPrefer: c.values}).within(most); wait != c.wait || applied != c.applied {
			t.Errorf("%q: %v, %q; want %v, %q", c.values, wait, applied, c.wait, c.applied)
		}
	}
}

// TestLocationHasTheOutcome: the state, and then what a waiting sender would have got, also
// from another process, and after a restart of all of them.
func TestLocationHasTheOutcome(t *testing.T) {
	t.Parallel()
	b, i := answerBench(t)
	location := i.post("/payments", `{"amount":7}`, paying("k1", "Prefer", "respond-async")...).want(t, "first", 202).Header.Get("Location")
	pending := i.get(location, bearer...).want(t, "pending", 202, `{"status":"accepted","claim_status":"in_progress"}`).header(t, "pending", "Retry-After", "1").header(t, "pending", "Location", location)
	pending.header(t, "pending", "Oncebus-Attempt", "1")
	token := b.tokens("payments.unique", 1)[0]
	i.postOutcome("/payments", token, "submitted", "").want(t, "submitted", 202)
	b.wait("the claim to be submitted", func() bool {
		return strings.Contains(i.get(location, bearer...).want(t, "submitted", 202).text, `"claim_status":"submitted"`)
	})
	i.postOutcome("/payments", token, "completed", `<paid/>`, "Content-Type", "application/xml", "Oncebus-Result-Status", "201").want(t, "completed", 202)
	b.wait("the claim to be completed", func() bool { return i.get(location, bearer...).StatusCode == http.StatusCreated })
	i.stop()
	b.stop()
	b.judge()
	other := b.serveAs("other", withAnswerSecrets)
	for what, got := range map[string]reply{"location": other.get(location, bearer...), "key": other.get("/payments", paying("k1")...), "again": other.post("/payments", `{"amount":7}`, paying("k1")...)} {
		got.want(t, what, 201).header(t, what, "Content-Type", "application/xml").header(t, what, "Oncebus-Verdict", "replayed").header(t, what, "Idempotent-Replayed", "true")
		if got.text != "<paid/>" {
			t.Errorf("%s: %q", what, got.text)
		}
	}
	if n := len(b.read("payments.unique", 1)); n != 1 {
		t.Errorf("%d attempts, want 1: a question makes none", n)
	}
}

// TestLostConnectionFindsItsOutcome: a first sender disconnects before any response, and
// finds its outcome by its key at another process.
func TestLostConnectionFindsItsOutcome(t *testing.T) {
	t.Parallel()
	b, i := answerBench(t)
	ctx, disconnect := context.WithCancel(t.Context())
	r := i.request(http.MethodPost, "/payments", strings.NewReader(`{"amount":7}`), paying("k1")...)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		if _, err := i.try(i.b.http, r.WithContext(ctx)); err == nil {
			t.Error("the first sender has a response")
		}
	}()
	token := b.tokens("payments.unique", 1)[0]
	disconnect()
	<-ended
	b.wait("the wait to end", func() bool { return i.Requests() == 0 })
	other := b.serveAs("other", withAnswerSecrets)
	other.get("/payments", paying("k1")...).want(t, "by key", 202, `"claim_status":"in_progress"`)
	other.post("/payments", `{"amount":7}`, paying("k1")...).problem(t, "again", "idempotency-key-outstanding", 409)
	other.postOutcome("/payments", token, "completed", `{"paid":7}`).want(t, "completed", 202)
	b.wait("the outcome by the key", func() bool { return other.get("/payments", paying("k1")...).StatusCode == http.StatusOK })
	other.post("/payments", `{"amount":7}`, paying("k1")...).want(t, "again", 200, `{"paid":7}`)
}

// TestOutcomesAreTheSendersOwn: a location is no capability.
func TestOutcomesAreTheSendersOwn(t *testing.T) {
	t.Parallel()
	b, i := answerBench(t)
	location := i.post("/payments", `{"amount":7}`, paying("k1", "Prefer", "respond-async")...).want(t, "first", 202).Header.Get("Location")
	_, name, _ := strings.Cut(location, "/requests/")
	other := []string{"Authorization", "Bearer token-of-sender-b"}
	i.get(location).problem(t, "without a token", "signature", 401)
	i.get(location, other...).problem(t, "with that of another path", "signature", 401)
	i.get("/payments", "Idempotency-Key", `"k1"`).problem(t, "by key, without a token", "signature", 401)
	i.get("/short/requests/"+name, other...).problem(t, "at another path", "unknown-request", 404)
	i.get("/short", append([]string{"Idempotency-Key", `"k1"`}, other...)...).problem(t, "the key of another path", "unknown-request", 404)
	for what, path := range map[string]string{"cut": location[:len(location)-2], "longer": location + "AA", "none": "/payments/requests/", "no base64": "/payments/requests/%2e", "damaged": "/payments/requests/B" + name[1:]} {
		i.get(path, bearer...).problem(t, what, "unknown-request", 404)
	}
	i.send(http.MethodPost, location, "", bearer...).problem(t, "POST", "method", 405)
	i.send(http.MethodGet, location, "x", bearer...).problem(t, "with a body", "too-large", 413)
	i.get("/signals/requests/"+name, bearer...).problem(t, "no route", "not-found", 404)
	// An hmac signs the target in the place of a body, so that of one location is not good for another.
	body := `{"id":"t1"}`
	location = i.post("/transfers", body, "X-Signature", signHMAC(body), "Prefer", "respond-async").want(t, "transfer", 202).Header.Get("Location")
	i.get(location, "X-Signature", signHMAC("")).problem(t, "signature of nothing", "signature", 401)
	i.get(location, "X-Signature", signHMAC("/transfers/requests/"+name)).problem(t, "signature of another location", "signature", 401)
	i.get(location, "X-Signature", signHMAC(location)).want(t, "signature of the location", 202)
	i.get("/transfers", "X-Signature", signHMAC("/transfers\n")).problem(t, "key of the body", "key-of-body", 400)
	if n := len(b.read("transfers.unique", 1)); n != 1 {
		t.Errorf("%d events", n)
	}
}

// TestSignedQuestionIsNoEvent: the text that a GET signs is no body of a request, at no path with its secret.
func TestSignedQuestionIsNoEvent(t *testing.T) {
	t.Parallel()
	payments, _, _ := strings.Cut(answerRoutes, "  - name: transfers")
	routes := strings.Replace(answerRoutes, "path: /transfers\n", "path: /transfers\n      events: {max_connections: 2}\n", 1)
	routes += strings.NewReplacer("payments", "others", "path: /payments", "path: /others", "      answer: outcome\n", "", "      answer_timeout: 49s\n", "",
		"scheme: bearer, secret: SENDER", "scheme: hmac, secret: SENDER, header: X-Signature", "key: [{header: idempotency-key}]\n    fingerprint: [amount]", "key: [raw]",
		"      idempotency_key: {docs: \"https://developer.example.com/idempotency\"}\n", "", "scheme: bearer, secret: EXEC", "scheme: hmac, secret: SENDER, header: X-Signature").
		Replace(strings.TrimPrefix(payments, "routes:\n"))
	b := newBench(t, routes, oneTask)
	i := b.serve(withAnswerSecrets)
	for _, text := range []string{"/transfers\n", "/transfers\nk1", "/transfers/requests/AQ", "/transfers/events"} {
		for _, path := range []string{"/transfers", "/others", "/others/outcomes"} {
			i.post(path, text, "X-Signature", signHMAC(text)).problem(t, text+" at "+path, "signature", 401)
		}
	}
	if !strings.Contains(b.logs.String(), `"reason":"question"`) {
		t.Error("the log does not say why")
	}
	text := "/transfers of today"
	i.post("/others", text, "X-Signature", signHMAC(text), "Prefer", "respond-async").want(t, text, 202)
	i.get("/transfers", "X-Signature", signHMAC("/transfers\n")).problem(t, "the GET itself", "key-of-body", 400)
	i.post("/payments", "/transfers\n", paying("k1", "Prefer", "respond-async")...).problem(t, "a bearer signs nothing", "invalid", 400)
}

// TestEndedOperations: a freed key, one that no event used, and one whose window is over.
func TestEndedOperations(t *testing.T) {
	t.Parallel()
	b, i := answerBench(t)
	first := i.later("/payments", `{"amount":7}`, paying("k1")...)
	i.postOutcome("/payments", b.tokens("payments.unique", 1)[0], "failed", "").want(t, "failed", 202)
	(<-first).problem(t, "first", "failed", 502)
	i.get("/payments", paying("k1")...).problem(t, "failed", "no-result", 410)
	i.get("/payments", paying("k2")...).problem(t, "unused", "unknown-request", 404)
	location := i.post("/payments", `{"amount":7}`, paying("k1", "Prefer", "respond-async")...).want(t, "again", 202).header(t, "again", "Oncebus-Attempt", "2").Header.Get("Location")
	i.get(location, bearer...).want(t, "second attempt", 202).header(t, "second attempt", "Oncebus-Attempt", "2")

	other := []string{"Authorization", "Bearer token-of-sender-b", "Prefer", "respond-async"}
	location = i.post("/short", `{}`, append([]string{"Idempotency-Key", "old"}, other...)...).want(t, "short", 202).Header.Get("Location")
	b.wait("the window to be over", func() bool {
		i.post("/short", `{}`, append([]string{"Idempotency-Key", "new" + time.Now().String()}, other...)...).want(t, "a later one", 202)
		got := i.get(location, other[:2]...)
		return got.StatusCode == http.StatusGone && got.problem(t, "expired", "expired", 410).Type != ""
	})
}

// TestLeaseOverIsPending: no first sender waits for a dead executor.
func TestLeaseOverIsPending(t *testing.T) {
	t.Parallel()
	_, i := answerBench(t)
	body := `{"id":"t1"}`
	got := i.post("/transfers", body, "X-Signature", signHMAC(body)).want(t, "first", 202, `"claim_status":"in_progress"`).header(t, "first", "Oncebus-Verdict", "in_progress")
	i.get(got.Header.Get("Location"), "X-Signature", signHMAC(got.Header.Get("Location"))).want(t, "its location", 202)
}

// TestWaitingSendersDoNotBlockQuestions: those who ask have limits of their own.
func TestWaitingSendersDoNotBlockQuestions(t *testing.T) {
	t.Parallel()
	b := newBench(t, answerRoutes, oneTask)
	i := b.serve(func(c *Config) {
		withAnswerSecrets(c)
		c.MaxRequests, c.MaxRequestsPerSource = 1, 1
	})
	first := i.later("/payments", `{"amount":7}`, paying("k1")...)
	token := b.tokens("payments.unique", 1)[0]
	i.post("/payments", `{"amount":7}`, paying("k2")...).problem(t, "second", "busy", 503)
	i.get("/payments", paying("k1")...).want(t, "question", 202)
	i.postOutcome("/payments", token, "completed", `1`).want(t, "completed", 202)
	(<-first).want(t, "first", 200)
}

// TestQuestionWithoutAJudge: the task does not answer, and the sender is asked to come again.
func TestQuestionWithoutAJudge(t *testing.T) {
	t.Parallel()
	b := newBench(t, strings.Replace(answerRoutes, "path: /short\n      signature: {scheme: bearer, secret: OTHER}\n      timeout: 50s", "path: /short\n      signature: {scheme: bearer, secret: OTHER}\n      timeout: 1s", 1), oneTask)
	i := b.serve(withAnswerSecrets)
	headers := []string{"Authorization", "Bearer token-of-sender-b", "Idempotency-Key", "k"}
	// On a busy machine the first answers may take longer than the second that the route waits.
	b.wait("an answer", func() bool { return i.get("/short", headers...).StatusCode == http.StatusNotFound })
	b.stop()
	i.get("/short", headers...).header(t, "without a judge", "Retry-After", "1").problem(t, "without a judge", "state-timeout", 503)
	got := i.post("/short", `{}`, headers...)
	got.problem(t, "event without a judge", "verdict-timeout", 504)
	b.judge()
	b.wait("the event to be judged", func() bool { return i.get(got.Header.Get("Location"), headers...).StatusCode == http.StatusAccepted })
}

// TestLocationRoundTrip: every field of an operation comes back, and no damaged name is read.
func TestLocationRoundTrip(t *testing.T) {
	routes := parseRoutes(t, answerRoutes).Routes
	plain := front.Operation{Route: routes[1], Digest: dedup.Digest{1}, Routing: dedup.Digest{1}, Key: [32]byte{2}, Time: -3}
	full := plain
	full.Routing = dedup.Digest{4}
	full.Details = wire.Details{Fingerprint: 5, Adjacent: [2]dedup.Digest{{6}, {7}}, HasAdjacent: true, Shift: -8}
	for _, o := range []front.Operation{plain, full} {
		location := locationOf(&o)
		path, name, ok := cutLocation(location)
		got, found := operationAt(routes, name)
		if !ok || path != "/transfers" || !found || got != o {
			t.Errorf("%s: %v %s %v %+v", location, ok, path, found, got)
		}
		for n := range name {
			if _, found := operationAt(routes, name[:n]); found {
				t.Errorf("%d of %d characters are read", n, len(name))
			}
		}
		if _, found := operationAt(routes[:1], name); found {
			t.Error("an operation of another path is read")
		}
	}
}

// TestAnswersOfTheTask: which answers are about an operation that has a location.
func TestAnswersOfTheTask(t *testing.T) {
	route := parseRoutes(t, answerRoutes).Routes[0]
	o := front.Operation{Route: route}
	for _, c := range []struct {
		answer   wire.Answer
		status   int
		name     string
		location bool
	}{
		{wire.Answer{Verdict: dedup.Unique, Status: "in_progress", Attempt: 1, OutcomeFollows: true}, 202, "pending", true},
		{wire.Answer{Verdict: dedup.Unique, Status: "in_progress", Attempt: 1}, 202, "pending", true}, // its request was not stored
		{wire.Answer{Verdict: dedup.AfterWindow, Status: "in_progress", Attempt: 2}, 202, "pending", true},
		{wire.Answer{Verdict: dedup.InProgress, Status: "in_progress", Attempt: 1}, 409, "in_progress", true},
		{wire.Answer{Verdict: dedup.InProgress, Status: "in_progress", Attempt: 1, Awaited: true}, 202, "pending", true},
		{wire.Answer{Verdict: dedup.Collision, Status: "in_progress", Attempt: 1}, 422, "collision", false},
		{wire.Answer{Verdict: dedup.Duplicate, Status: "forwarded", Attempt: 1}, 409, "duplicate", false},
		{wire.Answer{Verdict: dedup.Late}, 422, "late", false},
		{wire.Answer{Verdict: dedup.Bypassed, Forwarded: true}, 202, "bypassed", false},
	} {
		r := respondToOperation(&o, &c.answer)
		if r.status != c.status || r.name != c.name || (r.header.Get("Location") != "") != c.location {
			t.Errorf("%+v: %d %s %v", c.answer, r.status, r.name, r.header)
		}
	}
}

func signHMAC(text string) string { return sign("token-of-sender-a", text) }

// TestHeadIsGetWithoutABody: for every path that has a GET, with what it asks of a sender.
func TestHeadIsGetWithoutABody(t *testing.T) {
	t.Parallel()
	meta := `  - name: meta
    topics: [meta.raw]
    key: [{field: id}]
    window: 1h
    output: meta.unique
    dead_letter: dead
    http: {path: /meta, provider: meta, signature: {secret: SENDER}, handshake: {verify_token: OTHER}}
`
	b := newBench(t, followRoutes+meta, oneTask)
	i := b.serve(func(c *Config) { c.Secrets, c.OpenAPI = answerSecrets, true })
	location := i.post("/payments", `{"amount":7}`, paying("k1", "Prefer", "respond-async")...).want(t, "first", 202).Header.Get("Location")
	for path, headers := range map[string][]string{
		"/payments": paying("k1"), location: bearer, "/payments/events": bearer, openAPIPath: nil,
		"/meta?hub.mode=subscribe&hub.challenge=c&hub.verify_token=token-of-sender-b": nil,
	} {
		if path != "/payments/events" { // which does not end
			i.get(path, headers...)
		}
		got := i.send(http.MethodHead, path, "", headers...)
		if got.StatusCode >= 300 || got.text != "" {
			t.Errorf("HEAD %s: status %d, %q", path, got.StatusCode, got.text)
		}
		if headers != nil {
			i.send(http.MethodHead, path, "").want(t, "HEAD without the secret of "+path, 401)
		}
	}
	i.send(http.MethodHead, "/transfers/outcomes", "").want(t, "HEAD of what has no GET", 405).header(t, "outcomes", "Allow", "POST")
}
