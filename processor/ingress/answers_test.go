package ingress

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"oncebus/dedup"
	"oncebus/processor/wire"
)

// bareRoutes is a route with every default.
const bareRoutes = `routes:
  - name: signals
    topics: [signals.raw]
    key: [{field: id}]
    window: 1h
    output: signals.unique
    dead_letter: dead
    http:
      path: /signals
      signature: {scheme: none}
`

// patience is for tests in which it does not matter how fast the machine is.
const patience = "      timeout: 50s\n      on_kafka_unavailable: wait\n"

const signalRoutes = bareRoutes + patience

func TestFirstAndCopy(t *testing.T) {
	b := newBench(t, signalRoutes)
	i := b.serve(nil)
	first := i.post("/signals", event("a"), "Content-Type", "application/json", "Traceparent", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
		"Tracestate", "a=1", "Tracestate", "b=2", "X-Other", "no")
	first.want(t, "first", 202, `{"status":"accepted"}`).header(t, "first", "Oncebus-Verdict", "unique").header(t, "first", "Content-Type", "application/json")
	if key := first.Header.Get("Oncebus-Key"); len(key) != 64 {
		t.Errorf("key %q", key)
	}
	again := i.post("/signals", event("a"))
	p := again.header(t, "copy", "Oncebus-Verdict", "duplicate").problem(t, "copy", "duplicate", 409)
	if p.Verdict != "duplicate" || p.Key != first.Header.Get("Oncebus-Key") || p.First == "" || p.FirstTime == "" {
		t.Errorf("copy: %+v", p)
	}
	if _, err := time.Parse(time.RFC3339Nano, p.FirstTime); err != nil {
		t.Error(err)
	}
	out := b.read("signals.unique", 1)
	if len(out) != 1 || string(out[0].Value) != event("a") {
		t.Fatalf("%d records in the output", len(out))
	}
	for name, want := range map[string]string{
		"content-type": "application/json", "traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", "tracestate": "a=1, b=2", "x-other": "",
	} {
		if got := recordHeader(out[0], name); got != want {
			t.Errorf("header %s is %q, want %q", name, got, want)
		}
	}
	lines := b.logs.requests(t)
	if len(lines) != 2 {
		t.Fatalf("%d lines in the access log", len(lines))
	}
	line := lines[0]
	for name, want := range map[string]any{
		"route": "signals", "method": "POST", "path": "/signals", "status": 202.0, "response": "unique", "verdict": "unique",
		"bytes": float64(len(event("a"))), "source": "127.0.0.1", "trace_id": "0af7651916cd43dd8448eb211c80319c", "level": "INFO",
	} {
		if line[name] != want {
			t.Errorf("log: %s is %v, want %v", name, line[name], want)
		}
	}
	if i.count("oncebus_http_requests_total", "route", "signals", "code", "409", "response", "duplicate") != 1 ||
		i.count("oncebus_http_verdict_seconds", "route", "signals") != 2 || i.count("oncebus_http_request_seconds") != 2 ||
		i.count("oncebus_http_requests_in_flight") != 0 || i.count("oncebus_http_body_bytes") != 0 {
		t.Error("the metrics do not say what happened")
	}
}

// TestEveryVerdict brings each verdict about, with the answers by default and
// with those of the routes file.
func TestEveryVerdict(t *testing.T) {
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
			fmt.Fprintf(&responses, "\n        %v: {status: %d, body: told %v, content_type: text/plain}", v, 210+n, v)
		}
	}
	written := "\n      responses:" + responses.String()
	const refuse, pass = "collision: dead_letter\n    on_late: dead_letter", "collision: forward\n    on_late: forward"
	now := time.Now()
	at := func(ago time.Duration) string { return fmt.Sprint(now.Add(-ago).UnixMilli()) }
	for _, file := range []struct {
		name, policy, over, responses string
		want                          map[string]string // by step: status and problem
	}{
		{"refused", refuse, "dead_letter", "", map[string]string{
			"unique": "202", "duplicate": "409 duplicate", "after_window": "202", "late": "422 late", "collision": "422 collision", "missing_key": "400 missing-key",
			"invalid": "400 invalid", "null": "400 invalid", "passed": "202", "limited": "429 limited",
		}},
		{"passed", pass, "forward", "", map[string]string{
			"unique": "202", "duplicate": "409 duplicate", "after_window": "202", "late": "202", "collision": "202", "missing_key": "400 missing-key",
			"invalid": "400 invalid", "null": "400 invalid", "passed": "202", "limited": "202",
		}},
		{"written", refuse, "dead_letter", written, map[string]string{
			"unique": "210", "duplicate": "211", "after_window": "212", "late": "213", "collision": "217", "missing_key": "214",
			"invalid": "215", "null": "215", "passed": "214", "limited": "216",
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
				{"passed", "/lax", `{}`, "missing_key"},
				{"unique", "/lax", `{"id":"1"}`, "unique"},
				{"limited", "/lax", `{"id":"2"}`, "limited"},
			} {
				got := i.post(step.path, step.body)
				what := step.path + " " + step.name
				status, name, isProblem := strings.Cut(file.want[step.name], " ")
				var code int
				if _, err := fmt.Sscan(status, &code); err != nil {
					t.Fatal(err)
				}
				got.header(t, what, "Oncebus-Verdict", step.verdict)
				switch {
				case isProblem:
					got.problem(t, what, name, code)
				case code == 202:
					got.want(t, what, code, `{"status":"accepted"}`)
				default:
					got.want(t, what, code, "told "+step.verdict).header(t, what, "Content-Type", "text/plain")
				}
				if retry := got.Header.Get("Retry-After"); (retry != "") != (file.want["limited"] != "202" && step.verdict == "limited") {
					t.Errorf("%s: Retry-After %q", what, retry)
				}
			}
		})
	}
}

// TestUnchecked: what passes while a store is away is accepted, since it went
// its way, and says that nobody looked.
func TestUnchecked(t *testing.T) {
	route := parseRoutes(t, signalRoutes).Routes[0]
	r := tell(route, &wire.Answer{Verdict: dedup.Bypassed, Forwarded: true})
	if r.status != http.StatusAccepted || r.header.Get(headerVerdict) != "bypassed" {
		t.Errorf("%d %v", r.status, r.header)
	}
}

func TestRefusedBeforeAnEvent(t *testing.T) {
	b := newBench(t, strings.Replace(signalRoutes, "path: /signals", "path: /signals\n      methods: [PUT, POST]\n      max_body: 64", 1))
	i := b.serve(nil)
	big := strings.Repeat(" ", 65)
	for _, c := range []struct {
		name, method, path, body string
		headers                  []string
		status                   int
		problem                  string
		header, value            string
	}{
		{"another path", "POST", "/signal", event("a"), nil, 404, "not-found", "", ""},
		{"below the path", "POST", "/signals/", event("a"), nil, 404, "not-found", "", ""},
		{"unclean", "POST", "//signals", event("a"), nil, 404, "not-found", "", ""},
		{"no outcomes", "POST", "/signals/outcomes", event("a"), nil, 404, "not-found", "", ""},
		{"probes are elsewhere", "GET", "/healthz", "", nil, 404, "not-found", "", ""},
		{"GET", "GET", "/signals", "", nil, 405, "method", "Allow", "POST, PUT"},
		{"PATCH", "PATCH", "/signals", event("a"), nil, 405, "method", "Allow", "POST, PUT"},
		{"gzip", "POST", "/signals", "\x1f\x8b", []string{"Content-Encoding", "gzip"}, 415, "encoding", "Accept-Encoding", "identity"},
		{"two codings", "POST", "/signals", "", []string{"Content-Encoding", "identity", "Content-Encoding", "br"}, 415, "encoding", "", ""},
		{"announced too large", "POST", "/signals", big, nil, 413, "too-large", "", ""},
		{"no key", "POST", "/signals", `{}`, nil, 400, "missing-key", "Oncebus-Verdict", "missing_key"},
		{"not JSON", "POST", "/signals", `id=a`, nil, 400, "invalid", "Oncebus-Verdict", "invalid"},
		{"the API", "POST", "/openapi.json", "", nil, 405, "method", "Allow", "GET, HEAD"},
	} {
		got := i.send(c.method, c.path, c.body, c.headers...)
		got.problem(t, c.name, c.problem, c.status)
		if c.header != "" {
			got.header(t, c.name, c.header, c.value)
		}
		got.header(t, c.name, "X-Content-Type-Options", "nosniff").header(t, c.name, "Cache-Control", "no-store")
	}
	// Without a length, so that it shows only while it comes.
	r := i.request("POST", "/signals", &onlyReader{strings.NewReader(big)})
	got, err := i.try(b.http, r)
	if err != nil {
		t.Fatal(err)
	}
	got.problem(t, "too large without a length", "too-large", 413)
	i.post("/signals", strings.Repeat(" ", 64-len(event("a")))+event("a"), "Content-Encoding", "identity").want(t, "as large as may be", 202)
	i.send("PUT", "/signals", event("b"), "Content-Encoding", "").want(t, "PUT, with an empty coding", 202)
	i.send("GET", "/openapi.json", "").want(t, "the API", 200, `"openapi"`, "/signals")
	if n := len(b.read("signals.unique", 2)); n != 2 {
		t.Errorf("%d records in the output", n)
	}
}

// onlyReader hides a reader's length.
type onlyReader struct{ r *strings.Reader }

func (o *onlyReader) Read(p []byte) (int, error) { return o.r.Read(p) }

// TestAcceptedWithoutAVerdictIsDeadLettered: where the routes file has a 2xx for
// what cannot be read or has no key, the event is on the bus before that.
func TestAcceptedWithoutAVerdictIsDeadLettered(t *testing.T) {
	const responses = "responses: {invalid: {status: 200}, missing_key: {status: 299}, duplicate: {status: 200}}"
	for _, c := range []struct{ name, routes string }{
		{"routed", withHTTP(responses)},
		{"async", withHTTP(responses, "answer: async")},
		{"keyed", strings.Replace(withHTTP(responses), "    output:", "    prepartitioned: true\n    output:", 1)},
	} {
		t.Run(c.name, func(t *testing.T) {
			b := newBench(t, c.routes)
			i := b.serve(nil)
			i.post("/signals", "not JSON").want(t, "invalid", 200).header(t, "invalid", "Oncebus-Verdict", "invalid")
			i.post("/signals", `{"no":"key"}`).want(t, "missing_key", 299).header(t, "missing_key", "Oncebus-Verdict", "missing_key")
			dead := map[string]string{} // reasons
			for _, r := range b.read("dead", 2) {
				dead[string(r.Value)] = recordHeader(r, "oncebus-reason")
			}
			if len(dead) != 2 || dead["not JSON"] == "" || dead[`{"no":"key"}`] == "" {
				t.Errorf("dead letters: %q", dead)
			}
		})
	}
	b := newBench(t, withHTTP(responses, "on_kafka_unavailable: reject"))
	i := b.serve(nil)
	b.stop()
	b.cluster.Close()
	b.wait("the front to notice", func() bool { return i.front.Ready() != nil })
	i.post("/signals", "not JSON").problem(t, "invalid without a bus", "kafka-unavailable", 503)
	i.post("/signals", `{}`).problem(t, "missing key without a bus", "kafka-unavailable", 503)
}

// TestNoRoute: what no route of the path takes is refused, even if another
// route of its topic would.
func TestNoRoute(t *testing.T) {
	b := newBench(t, `routes:
  - name: buys
    topics: [trades.raw]
    match: {field: side, in: [buy]}
    key: [{field: id}]
    window: 1h
    output: buys
    dead_letter: dead
    http: {path: /trades, signature: {scheme: none}}
  - name: sells
    topics: [trades.raw]
    match: {field: side, in: [sell]}
    key: [{field: id}]
    window: 1h
    output: sells
    dead_letter: dead
    http: {path: /trades, signature: {scheme: none}, responses: {unique: {status: 201}}}
  - name: rest
    topics: [trades.raw]
    match: {field: side, in: [none]}
    key: [{field: id}]
    window: 1h
    output: rest
    dead_letter: dead
`)
	i := b.serve(nil)
	i.post("/trades", `{"id":"1","side":"buy"}`).want(t, "first route", 202)
	got := i.post("/trades", `{"id":"1","side":"sell"}`).want(t, "second route", 201)
	if got.text != "" || got.Header.Get("Content-Type") != "" || got.Header.Get("Content-Length") != "0" {
		t.Errorf("%q, %v", got.text, got.Header)
	}
	i.post("/trades", `{"id":"1","side":"none"}`).problem(t, "another door's", "no-route", 400)
	i.post("/trades", `{"id":"1","side":"odd"}`).problem(t, "nobody's", "invalid", 400)
	if i.count("oncebus_http_requests_total", "route", "sells", "code", "201") != 1 {
		t.Error("the second route is not counted")
	}
}

func TestAsync(t *testing.T) {
	b := newBench(t, withHTTP("answer: async"))
	i := b.serve(nil)
	for range 2 {
		got := i.post("/signals", event("a")).want(t, "async", 202, `{"status":"accepted"}`).header(t, "async", "Oncebus-Verdict", "")
		if len(got.Header.Get("Oncebus-Key")) != 64 {
			t.Errorf("key %q", got.Header.Get("Oncebus-Key"))
		}
	}
	i.post("/signals", `{}`).problem(t, "no key", "missing-key", 400)
	if n := len(b.read("signals.unique", 1)); n != 1 {
		t.Errorf("%d records in the output", n)
	}
}

// TestThousandCopiesAtThreeInstances: one of a thousand requests with one event
// is told that it was the first.
func TestThousandCopiesAtThreeInstances(t *testing.T) {
	b := newBench(t, signalRoutes)
	instances := []*instance{b.serveAs("one", nil), b.serveAs("two", nil), b.serveAs("three", nil)}
	const copies = 1000
	var answers []<-chan reply
	for n := range copies {
		answers = append(answers, instances[n%3].later("/signals", event("a")))
	}
	count := map[int]int{}
	for _, answer := range answers {
		got := <-answer
		count[got.StatusCode]++
		if got.StatusCode == http.StatusConflict {
			got.problem(t, "copy", "duplicate", 409)
		}
	}
	if len(count) != 2 || count[202] != 1 || count[409] != copies-1 {
		t.Errorf("answers by status: %v", count)
	}
	i := instances[0]
	i.post("/signals", event("b")).want(t, "another event", 202) // so that what came before is judged
	if n := len(b.read("signals.unique", 2)); n != 2 {
		t.Errorf("%d records in the output, want the first and the last", n)
	}
}
