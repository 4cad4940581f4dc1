package ingress

import (
	"crypto/rand"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"oncebus/dedup/rules"
	"oncebus/processor/front"
	"oncebus/processor/kafkatest"
	"oncebus/processor/wire"
)

func TestFirstAndDuplicate(t *testing.T) {
	t.Parallel()
	b := newBench(t, signalRoutes)
	i := b.serve(nil)
	first := i.post("/signals", event("a"), "Content-Type", "application/json", "Traceparent", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
		"Tracestate", "a=1", "Tracestate", "b=2", "X-Other", "no")
	first.want(t, "first", 202, `{"status":"accepted"}`).header(t, "first", "Oncebus-Verdict", "unique").header(t, "first", "Content-Type", "application/json")
	if key := first.Header.Get("Oncebus-Key"); len(key) != 64 {
		t.Errorf("key %q", key)
	}
	again := i.post("/signals", event("a"))
	p := again.header(t, "duplicate", "Oncebus-Verdict", "duplicate").problem(t, "duplicate", "duplicate", 409)
	if p.Verdict != "duplicate" || p.Key != first.Header.Get("Oncebus-Key") || p.First == "" || p.FirstTime == "" {
		t.Errorf("duplicate: %+v", p)
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
		if got := kafkatest.Header(out[0], name); got != want {
			t.Errorf("header %s is %q, want %q", name, got, want)
		}
	}
	lines := b.requests()
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
		t.Error("wrong metrics")
	}
}

// TestAcceptedWithoutAVerdictIsDeadLettered: where the routes file has a 2xx for
// an invalid event or a missing key, Kafka has the event before the response.
func TestAcceptedWithoutAVerdictIsDeadLettered(t *testing.T) {
	t.Parallel()
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
				dead[string(r.Value)] = kafkatest.Header(r, "oncebus-reason")
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
	b.wait("the client to notice", func() bool { return i.front.Ready() != nil })
	i.post("/signals", "not JSON").problem(t, "invalid without Kafka", "kafka-unavailable", 503)
	i.post("/signals", `{}`).problem(t, "missing key without Kafka", "kafka-unavailable", 503)
}

// TestSwitchedOffRouteTakesEverything: by HTTP, whatever the key of an event is.
func TestSwitchedOffRouteTakesEverything(t *testing.T) {
	t.Parallel()
	b := newBench(t, strings.Replace(withHTTP(), "    output:", "    enabled: false\n    output:", 1))
	i := b.serve(nil)
	events := []string{event("a"), event("a"), `{"no":"key"}`, "not JSON"}
	for _, e := range events {
		i.post("/signals", e).want(t, e, 202).header(t, e, "Oncebus-Verdict", "bypassed")
	}
	for _, r := range b.read("signals.unique", len(events)) {
		if got := kafkatest.Header(r, "oncebus-verdict"); got != "bypassed" {
			t.Errorf("%s went out as %q", r.Value, got)
		}
	}
}

// TestRejectedAfterTheWindow: by HTTP an event after the window of its key is a duplicate, and
// the response says why.
func TestRejectedAfterTheWindow(t *testing.T) {
	t.Parallel()
	b := newBench(t, strings.Replace(strings.Replace(withHTTP(), "window: 1h", "window: 1ms", 1), "    output:", "    grace: 1h\n    on_after_window: reject\n    output:", 1))
	i := b.serve(nil)
	i.post("/signals", event("a")).want(t, "first", 202)
	began := time.Now()
	b.wait("the window to end", func() bool { return time.Since(began) > 2*time.Millisecond })
	if p := i.post("/signals", event("a")).problem(t, "after its window", "duplicate", 409); !strings.Contains(p.Detail, "refused, because on_after_window is reject") {
		t.Errorf("detail %q", p.Detail)
	}
}

// TestHeaderThatARuleReadsComesOnce: of two values a rule would read one that no sender wrote, such as the tenant "a, b".
func TestHeaderThatARuleReadsComesOnce(t *testing.T) {
	t.Parallel()
	const part = `
    http:
      path: /orders
      headers: [X-Kind, X-Id, X-Tenant, X-Sender, X-Request, X-Other, X-Note]
      signature: {scheme: none}
` + patience
	const routes = `routes:
  - name: orders
    topics: [orders.raw]
    mode: claim
    match: {header: x-kind, in: [order]}
    key: [{fields: [{header: x-id}, {tenant: true}]}]
    tenant: {header: x-tenant}
    sender: {header: x-sender}
    request: {header: x-request}
    window: 1h
    output: orders.unique
    outcomes: orders.outcomes
    replies: orders.replies
    lease: 1m
    dead_letter: dead` + part + `  - name: others
    topics: [orders.raw]
    key: [raw]
    shadow: {key: [{header: x-other}]}
    window: 1h
    output: others.unique
    dead_letter: dead` + part
	b := newBench(t, routes, oneTask)
	i := b.serve(nil)
	once := []string{"X-Kind", "order", "X-Id", "1", "X-Tenant", "a", "X-Sender", "s", "X-Request", "r", "X-Other", "o"}
	i.post("/orders", "{}", append(once, "X-Note", "a", "X-Note", "b", "Tracestate", "a=1", "Tracestate", "b=2")...).want(t, "once", 202)
	for n := 0; n < len(once); n += 2 {
		for _, second := range []string{once[n+1], "b", ""} {
			p := i.post("/orders", "{}", append(slices.Clone(once), once[n], second)...).problem(t, once[n]+" twice", "invalid", 400)
			if want := "header " + once[n] + ": it came 2 times, want one"; p.Detail != want {
				t.Errorf("detail %q, want %q", p.Detail, want)
			}
		}
	}
	if n := len(b.read("orders.unique", 1)); n != 1 {
		t.Errorf("%d events, want 1", n)
	}
}

// TestNoRoute: an event that no route of the path matches is refused, even if
// another route of its topic matches.
func TestNoRoute(t *testing.T) {
	t.Parallel()
	b := newBench(t, `routes:
  - name: buys
    topics: [trades.raw]
    match: {field: side, in: [buy]}
    key: [{field: id}]
    window: 1h
    output: buys
    dead_letter: dead
    http: {path: /trades, signature: {scheme: none}, timeout: 50s, on_kafka_unavailable: wait}
  - name: sells
    topics: [trades.raw]
    match: {field: side, in: [sell]}
    key: [{field: id}]
    window: 1h
    output: sells
    dead_letter: dead
    http: {path: /trades, signature: {scheme: none}, timeout: 50s, on_kafka_unavailable: wait, responses: {unique: {status: 201}}}
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
	i.post("/trades", `{"id":"1","side":"none"}`).problem(t, "another endpoint's", "no-route", 400)
	i.post("/trades", `{"id":"1","side":"odd"}`).problem(t, "no route's", "invalid", 400)
	if i.count("oncebus_http_requests_total", "route", "sells", "code", "201") != 1 {
		t.Error("the second route is not counted")
	}
}

func TestAsync(t *testing.T) {
	t.Parallel()
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

// TestThousandDuplicatesAtThreeInstances: of a thousand requests with one event, one
// gets the verdict unique.
func TestThousandDuplicatesAtThreeInstances(t *testing.T) {
	t.Parallel()
	b := newBench(t, signalRoutes)
	instances := []*instance{b.serveAs("one", nil), b.serveAs("two", nil), b.serveAs("three", nil)}
	const requests = 1000
	var replies []<-chan reply
	for n := range requests {
		replies = append(replies, instances[n%3].later("/signals", event("a")))
	}
	count := map[int]int{}
	for _, received := range replies {
		got := <-received
		count[got.StatusCode]++
		if got.StatusCode == http.StatusConflict {
			got.problem(t, "duplicate", "duplicate", 409)
		}
	}
	if len(count) != 2 || count[202] != 1 || count[409] != requests-1 {
		t.Errorf("responses by status: %v", count)
	}
	i := instances[0]
	i.post("/signals", event("b")).want(t, "another event", 202) // a last event, so that all earlier ones are judged
	if n := len(b.read("signals.unique", 2)); n != 2 {
		t.Errorf("%d records in the output, want the first and the last", n)
	}
}

// TestRetryWithoutAKeyIsNotCalledSafe: the problem warns of a second record.
func TestRetryWithoutAKeyIsNotCalledSafe(t *testing.T) {
	for _, c := range []struct {
		err    error
		detail string
	}{
		{front.ErrKafkaUnavailable, "the request can be retried safely"},
		{fmt.Errorf("%w: %w", front.ErrMissingKey, front.ErrKafkaUnavailable), "the event has no key: if Kafka stored it, a retry stores it a second time"},
	} {
		var body problemBody
		if err := json.Unmarshal(errorResponse(c.err, &rules.HTTP{}).body, &body); err != nil || body.Type != problemType+problemKafkaUnavailable.name || body.Detail != c.detail {
			t.Errorf("%v: %+v, %v", c.err, body, err)
		}
	}
}

// withRoute adds lines to the route of signalRoutes.
func withRoute(lines ...string) string {
	return strings.Replace(signalRoutes, "\n    output:", "\n    "+strings.Join(lines, "\n    ")+"\n    output:", 1)
}

// TestRetryOfAnUncheckedEventIsNotCalledSafe: where the route may forward the event
// unchecked and Kafka may have it, the problem has a type of its own and no Retry-After.
func TestRetryOfAnUncheckedEventIsNotCalledSafe(t *testing.T) {
	const claimed = "\n    mode: claim\n    outcomes: outcomes\n    replies: replies\n    lease: 1m\n    output:"
	for _, c := range []struct {
		name, routes string
		unchecked    bool
	}{
		{"by default", signalRoutes, false},
		{"fail_open", withRoute("on_state_failure: fail_open"), true},
		{"late", withRoute("on_late: forward"), true},
		{"late, dropped", withRoute("on_late: drop"), false},
		{"limit", withRoute("limits: {live_keys: 1, on_limit: forward}"), true},
		{"limit, dead letter", withRoute("limits: {live_keys: 1}"), false},
		{"collision", withRoute("fingerprint: [price]", "collision: forward"), true},
		{"collision, dead letter", withRoute("fingerprint: [price]"), false},
		{"collision of claims", strings.Replace(strings.Replace(withRoute("fingerprint: [price]", "collision: forward"), "\n    output:", claimed, 1), "    duplicates: drop\n", "", 1), false},
	} {
		route := parseRoutes(t, c.routes).Routes[0]
		for _, e := range []struct {
			err  error
			name string
			sent bool // Kafka may have the event
		}{
			{front.ErrNoVerdict, "verdict-timeout", true},
			{fmt.Errorf("%w: %w", front.ErrKafkaUnavailable, front.ErrUnacknowledged), "kafka-unavailable", true},
			{front.ErrKafkaUnavailable, "kafka-unavailable", false},
		} {
			r := errorResponse(markUnchecked(e.err, route, &rules.Derived{Finding: rules.Keyed, Route: route}), route.HTTP)
			want, safe := e.name, "safely"
			if c.unchecked && e.sent {
				want, safe = e.name+"-unchecked", "sent again, the event may be emitted a second time"
			}
			if r.problem.name != want || !strings.Contains(string(r.body), safe) || (r.header.Get("Retry-After") == "") != strings.HasSuffix(want, "-unchecked") {
				t.Errorf("%s: after %v: %s, %v, want %s", c.name, e.err, r.body, r.header, want)
			}
		}
	}
}

// TestTimeoutOfARouteThatFailsOpen has the type by HTTP too.
func TestTimeoutOfARouteThatFailsOpen(t *testing.T) {
	t.Parallel()
	b := newBench(t, strings.Replace(withHTTP("timeout: 3s"), "\n    output:", "\n    on_state_failure: fail_open\n    output:", 1))
	i := b.serve(nil)
	b.stopJudging(i)
	got := i.post("/signals", event("a"))
	got.header(t, "no verdict", "Retry-After", "").problem(t, "no verdict", "verdict-timeout-unchecked", 504)
	if len(got.Header.Get("Oncebus-Key")) != 64 {
		t.Errorf("no key: %v", got.Header)
	}
}

func TestTimeouts(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		choice, problem string
		status          int
	}{{"504", "verdict-timeout", 504}, {"202", "", 202}} {
		b := newBench(t, withHTTP("timeout: 3s", "on_timeout: "+c.choice))
		i := b.serve(nil)
		b.stopJudging(i)
		got := i.post("/signals", event("a")).header(t, c.choice, "Oncebus-Verdict", "")
		if len(got.Header.Get("Oncebus-Key")) != 64 {
			t.Errorf("no key: %v", got.Header)
		}
		if c.problem == "" {
			got.want(t, c.choice, c.status, `{"status":"accepted"}`)
		} else {
			got.header(t, c.choice, "Retry-After", "1").problem(t, c.choice, c.problem, c.status)
		}
		// It is safe to send it again.
		b.judge()
		b.wait("a verdict", func() bool { return i.post("/signals", event("a")).StatusCode == http.StatusConflict })
	}
}

// TestKafkaUnavailable: without a broker a request fails at once or after its
// timeout, as on_kafka_unavailable says.
func TestKafkaUnavailable(t *testing.T) {
	t.Parallel()
	for _, choice := range []string{"reject", "wait"} {
		b := newBench(t, withHTTP("timeout: 300ms", "on_kafka_unavailable: "+choice))
		i := b.serve(nil)
		b.stop()
		b.cluster.Close()
		b.wait("the client to notice", func() bool { return i.front.Ready() != nil })
		i.post("/signals", event("a")).header(t, choice, "Retry-After", "1").problem(t, choice, "kafka-unavailable", 503)
		lines := b.requests()
		if took := time.Duration(lines[len(lines)-1]["duration"].(float64)); (took >= 300*time.Millisecond) != (choice == "wait") {
			t.Errorf("%s: it took %v", choice, took)
		}
	}
}

// TestBeforeTheClientIsReady: no key is derived before the client knows the app.
func TestBeforeTheClientIsReady(t *testing.T) {
	t.Parallel()
	for _, choice := range []string{"reject", "wait"} {
		b := newBench(t, withHTTP("timeout: 50s", "on_kafka_unavailable: "+choice))
		front, err := front.NewIngressClient(b.config("ingress").Config, b.routes, prometheus.NewRegistry(), b.logger())
		if err != nil {
			t.Fatal(err)
		}
		i := b.open(front, nil)
		i.start()
		if choice == "reject" {
			i.post("/signals", event("a")).problem(t, choice, "kafka-unavailable", 503)
			continue
		}
		waiting := i.later("/signals", event("a"))
		b.wait("the request to be in flight", func() bool { return i.Requests() == 1 })
		b.background("front", front.Run)
		(<-waiting).want(t, "waiting", 202)
	}
}

// padded puts n characters into a JSON object that no codec shortens by half.
func padded(object string, n int) string {
	raw := make([]byte, n)
	_, _ = rand.Read(raw) // never fails
	return strings.Replace(object, "{", `{"pad":"`+base64.RawStdEncoding.EncodeToString(raw)[:n]+`",`, 1)
}

func TestTooLargeForItsTopic(t *testing.T) {
	t.Parallel()
	b := newBench(t, strings.Replace(withHTTP("max_body: 4194304"), "    output:", "    on_missing_key: forward\n    output:", 1))
	i := b.serve(nil)
	i.post("/signals", padded(`{"n":1}`, 3<<20)).problem(t, "over the topic's limit", "too-large", 413)
	i.post("/signals", "{}"+strings.Repeat(" ", 3<<20)).want(t, "over the limit and within it compressed", 202)
}

// TestTooLargeForTheOutput: an event that its output would refuse is not produced, and
// the start names the route whose max_body allows such events.
func TestTooLargeForTheOutput(t *testing.T) {
	t.Parallel()
	b := newBench(t, signalRoutes)
	limit := "2000"
	altered, err := b.admin.AlterTopicConfigs(t.Context(), []kadm.AlterConfig{{Op: kadm.SetConfig, Name: "max.message.bytes", Value: &limit}}, "signals.unique")
	if err != nil || altered[0].Err != nil {
		t.Fatal(err, altered)
	}
	i := b.serve(nil)
	if p := i.post("/signals", padded(event("a"), 4000)).problem(t, "over the output's limit", "too-large", 413); !strings.Contains(p.Detail, "topic signals.unique takes 2000") {
		t.Errorf("detail %q", p.Detail)
	}
	i.post("/signals", event("a")).want(t, "the same key, shorter", 202)
	i.post("/signals", strings.Replace(event("c"), "{", "{"+strings.Repeat(" ", 4000), 1)).want(t, "within the limit compressed", 202)
	// 20 bytes less than the output takes: what only the repartition topic has does not count.
	fits := event("b")
	fits = strings.Replace(fits, "{", "{"+strings.Repeat(" ", 2000-20-wire.RecordOverhead-len(fits)), 1)
	i.post("/signals", fits).want(t, "just within the output's limit", 202)
	logs := b.logs.String()
	if strings.Count(logs, "http.max_body exceeds a topic limit") != 1 || !strings.Contains(logs, `"route":"signals","max_body":1048576,"topic":"signals.unique","setting":"max.message.bytes","bytes":2000`) {
		t.Errorf("the log does not compare max_body with the topics")
	}
}

// TestTooLargeForAnUnknownOutput: without rights on the output the judge refuses the
// event, with the same response.
func TestTooLargeForAnUnknownOutput(t *testing.T) {
	t.Parallel()
	b := newBench(t, signalRoutes)
	b.stop()
	limit := "2000"
	altered, err := b.admin.AlterTopicConfigs(t.Context(), []kadm.AlterConfig{{Op: kadm.SetConfig, Name: "max.message.bytes", Value: &limit}}, "signals.unique")
	if err != nil || altered[0].Err != nil {
		t.Fatal(err, altered)
	}
	b.judge()
	b.cluster.ControlKey(int16(kmsg.DescribeConfigs), func(request kmsg.Request) (kmsg.Response, error, bool) {
		b.cluster.KeepControl()
		describe := request.(*kmsg.DescribeConfigsRequest) //nolint:forcetypeassert // by its key
		response := describe.ResponseKind().(*kmsg.DescribeConfigsResponse)
		denied := false
		for _, r := range describe.Resources {
			result := kmsg.NewDescribeConfigsResponseResource()
			result.ResourceType, result.ResourceName = r.ResourceType, r.ResourceName
			if r.ResourceName == "signals.unique" {
				denied, result.ErrorCode = true, kerr.TopicAuthorizationFailed.Code
			}
			response.Resources = append(response.Resources, result)
		}
		return response, nil, denied
	})
	i := b.serve(nil)
	got := i.post("/signals", padded(event("a"), 4000)).header(t, "over the output's limit", "Oncebus-Verdict", "invalid")
	if p := got.problem(t, "over the output's limit", "too-large", 413); !strings.Contains(p.Detail, "too large for topic signals.unique") {
		t.Errorf("detail %q", p.Detail)
	}
}

// TestDefaultsFitTheTopics: the default of max_body is within the default of topics.
func TestDefaultsFitTheTopics(t *testing.T) {
	t.Parallel()
	b := newBench(t, signalRoutes)
	b.serve(nil)
	if strings.Contains(b.logs.String(), "max_body") {
		t.Error("a warning about defaults")
	}
}

// TestClientDisconnects: a disconnected client uses no limit.
func TestClientDisconnects(t *testing.T) {
	t.Parallel()
	b := newBench(t, withHTTP("timeout: 50s"))
	i := b.serve(nil)
	b.stopJudging(i)
	conn := i.begin("/signals", len(event("a")))
	if _, err := conn.Write([]byte(event("a"))); err != nil {
		t.Fatal(err)
	}
	b.wait("the request to be in flight", func() bool { return i.Requests() == 1 })
	_ = conn.Close()
	b.wait("the request to end", func() bool {
		return i.count("oncebus_http_requests_total", "code", "499", "response", "disconnected") == 1
	})
}
