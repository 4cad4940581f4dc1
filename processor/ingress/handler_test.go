package ingress

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kmsg"

	"oncebus/processor/kafkatest/embedded"
)

func TestRefusedBeforeAnEvent(t *testing.T) {
	t.Parallel()
	b := newBench(t, strings.Replace(signalRoutes, "path: /signals", "path: /signals\n      methods: [PUT, POST]\n      max_body: 64", 1))
	i := b.serve(func(c *Config) { c.OpenAPI = true })
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
		{"probes are at the admin address", "GET", "/healthz", "", nil, 404, "not-found", "", ""},
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
	// Without a length, the server notices only while it reads.
	r := i.request("POST", "/signals", &onlyReader{strings.NewReader(big)})
	got, err := i.try(b.http, r)
	if err != nil {
		t.Fatal(err)
	}
	got.problem(t, "too large without a length", "too-large", 413)
	i.post("/signals", strings.Repeat(" ", 64-len(event("a")))+event("a"), "Content-Encoding", "identity").want(t, "as large as the limit", 202)
	i.send("PUT", "/signals", event("b"), "Content-Encoding", "").want(t, "PUT, with an empty coding", 202)
	i.send("GET", "/openapi.json", "").want(t, "the API", 200, `"openapi"`, "/signals")
	if n := len(b.read("signals.unique", 2)); n != 2 {
		t.Errorf("%d records in the output", n)
	}
}

// TestHalfClosedWithoutAVerdict: a client that closes its sending side before
// the verdict gets no response, but a rejection is sent.
func TestHalfClosedWithoutAVerdict(t *testing.T) {
	t.Parallel()
	b := newBench(t, signedRoutes)
	i := serveSigned(b)
	i.post("/signals", event("before"), bearer...).want(t, "before", 202)
	b.stop() // no verdict arrives after this
	signed := i.halfClose(whole("/signals", event("a"), bearer...))
	b.wait("the request to be in flight", func() bool { return i.Requests() == 1 })
	if got := signed.responses(); len(got) != 0 {
		t.Errorf("signed: response %s %q", got[0].Status, got[0].text)
	}
	if got := i.halfClose(whole("/signals", event("a"), bearer...)).responses(); len(got) != 0 {
		t.Errorf("signed, closed at once: response %s %q", got[0].Status, got[0].text)
	}
	for _, c := range []struct {
		what, text, problem string
		status              int
	}{
		{"half a body", raw("/signals", event("b"), 100, bearer...), "incomplete-body", 400},
		{"half a body, unsigned", raw("/signals", event("b"), 100), "signature", 401},
		{"unsigned", whole("/signals", event("b")), "signature", 401},
		{"half a chunk", "POST /signals HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n" + bearer[0] + ": " + bearer[1] + "\r\n\r\n5\r\n{", "incomplete-body", 400},
	} {
		got := i.halfClose(c.text).responses()
		if len(got) != 1 {
			t.Fatalf("%s: %d responses", c.what, len(got))
		}
		got[0].problem(t, c.what, c.problem, c.status)
	}
	if i.count("oncebus_http_requests_total", "code", "499", "response", "disconnected") != 2 || i.Requests() != 0 ||
		i.count("oncebus_http_requests_in_flight") != 0 || i.count("oncebus_http_body_bytes") != 0 {
		t.Error("wrong metrics")
	}
	if strings.Contains(b.logs.String(), "panic") {
		t.Error("a handler panicked, see the log")
	}
}

// TestHalfClosedWhileJudged: every accepted event is in Kafka, also with
// pipelined requests.
func TestHalfClosedWhileJudged(t *testing.T) {
	t.Parallel()
	b := newBench(t, signalRoutes)
	i := b.serve(nil)
	i.post("/signals", event("before")).want(t, "before", 202)
	accepted := 1
	for n := range 20 {
		first, second := event(fmt.Sprintf("first-%d", n)), event(fmt.Sprintf("second-%d", n))
		for _, got := range i.halfClose(whole("/signals", first) + whole("/signals", second)).responses() {
			got.want(t, "pipelined", 202).header(t, "pipelined", "Oncebus-Verdict", "unique")
			accepted++
		}
	}
	if n := len(b.read("signals.unique", accepted)); n < accepted {
		t.Errorf("%d records in the output, %d were accepted", n, accepted)
	}
}

// TestHalfClosedWithoutKafka: a client that disconnects while Kafka is
// unavailable gets no response.
func TestHalfClosedWithoutKafka(t *testing.T) {
	t.Parallel()
	b := newBench(t, signalRoutes)
	i := b.serve(nil)
	b.stop()
	b.cluster.Close()
	b.wait("the client to notice", func() bool { return i.front.Ready() != nil })
	if got := i.halfClose(whole("/signals", event("a"))).responses(); len(got) != 0 {
		t.Errorf("response %s %q", got[0].Status, got[0].text)
	}
}

// TestHalfClosedInClaimMode: a waiting duplicate, and an executor.
func TestHalfClosedInClaimMode(t *testing.T) {
	t.Parallel()
	b, i := claimBench(t)
	arrive := b.arrivals("app-repartition")
	i.post("/operations", event("a")).want(t, "first", 201)
	duplicate := i.halfClose(whole("/operations", event("a")))
	arrive(event("a"), 2)
	for _, got := range duplicate.responses() { // the verdict may have arrived
		got.problem(t, "duplicate", "in-progress", 409)
	}
	token := b.tokens("operations.unique", 1)[0]
	outcome := []string{"Oncebus-Claim-Token", token, "Oncebus-Outcome", "completed"}
	got := i.halfClose(raw("/operations/outcomes", "{", 100, outcome...)).responses()
	if len(got) != 1 {
		t.Fatalf("half an outcome: %d responses", len(got))
	}
	got[0].problem(t, "half an outcome", "incomplete-body", 400)
	fault := b.cluster.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.Produce}, Topic: "operations.outcomes", Err: kerr.NotLeaderForPartition, Count: -1})
	executor := i.halfClose(whole("/operations/outcomes", "{}", outcome...))
	b.wait("the outcome to be in flight", func() bool { return i.Requests() == 1 })
	if got := executor.responses(); len(got) != 0 {
		t.Errorf("an outcome that Kafka did not store: response %s %q", got[0].Status, got[0].text)
	}
	fault.Remove()
	if i.count("oncebus_http_requests_total", "code", "499", "route", "operations") < 1 {
		t.Error("the disconnected executor is not counted")
	}
}

// TestCancelledStream: the end of one request of HTTP/2 is not the end of its
// connection.
func TestCancelledStream(t *testing.T) {
	t.Parallel()
	b := newBench(t, signalRoutes)
	i := b.serve(nil)
	b.stopJudging(i)
	protocols := &http.Protocols{}
	protocols.SetUnencryptedHTTP2(true)
	dials := 0
	transport := &http.Transport{Protocols: protocols, DialContext: func(ctx context.Context, network, addr string) (net.Conn, error) {
		dials++
		return (&net.Dialer{}).DialContext(ctx, network, addr)
	}}
	defer transport.CloseIdleConnections()
	client := &http.Client{Transport: transport, Timeout: 60 * time.Second}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	r := i.request("POST", "/signals", strings.NewReader(event("a"))).WithContext(ctx)
	go func() {
		_, err := i.try(client, r)
		ended <- err
	}()
	b.wait("the request to be in flight", func() bool { return i.Requests() == 1 })
	cancel()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	b.wait("the request to end", func() bool {
		return i.count("oncebus_http_requests_total", "code", "499", "response", "disconnected") == 1
	})
	b.judge()
	got, err := i.try(client, i.request("POST", "/signals", strings.NewReader(event("b"))))
	if err != nil {
		t.Fatal(err)
	}
	got.want(t, "the next", 202)
	if dials != 1 {
		t.Errorf("%d connections", dials)
	}
}

// TestRefusalIsFound: the log line of a refusal has what the response has to find it.
func TestRefusalIsFound(t *testing.T) {
	t.Parallel()
	b, i := claimBench(t)
	key := []string{"Idempotency-Key", "k", "X-Request-Id", "sender-7"}
	i.post("/orders", `{"requestId":"r1"}`, key...).want(t, "first", 202).header(t, "first", "X-Request-Id", "sender-7")
	refused := i.post("/orders", `{"requestId":"r2"}`, "Idempotency-Key", "k")
	p := refused.problem(t, "duplicate", "in-progress", 409)
	for what, id := range map[string]string{"long": strings.Repeat("x", 129), "not visible": "a\tb", "empty": ""} {
		if got := i.post("/orders", `{}`, "X-Request-Id", id).problem(t, what, "missing-key", 400); got.Key != "" {
			t.Errorf("%s: key %s", what, got.Key)
		}
	}
	lines := b.requests()
	id := refused.Header.Get("X-Request-Id")
	if line := lines[1]; len(id) != 32 || line["request_id"] != id || line["route"] != "orders" || line["key"] != p.Key || len(p.Key) != 64 || line["request"] != "r2" {
		t.Errorf("response %q with key %s, log %v", id, p.Key, line)
	}
	for _, line := range lines[2:] {
		if id, _ := line["request_id"].(string); len(id) != 32 || line["key"] != nil {
			t.Errorf("log %v", line)
		}
	}
}

// TestNothingSecretInTheLog: the log has the source of a request, but not its
// content.
func TestNothingSecretInTheLog(t *testing.T) {
	t.Parallel()
	b := newBench(t, strings.Replace(withHTTP("headers: [X-Provider]"), "scheme: none", "scheme: bearer, secret: A", 1))
	i := b.serve(func(c *Config) { c.Secrets = Secrets{"A": {Value: "token-of-sender-a"}} })
	auth := []string{"Authorization", "Bearer token-of-sender-a", "X-Provider", "header-text", "Idempotency-Key", "key-text"}
	for _, body := range []string{`{"id":"payload-text"}`, `{"id":["payload-text"]}`, `payload-text`, `{"payload-text":1}`} {
		i.post("/signals?query=query-text", body, auth...)
	}
	i.post("/signals", "payload-text", "Authorization", "Bearer wrong-token")
	i.post("/"+strings.Repeat("x", 1000), "")
	logs := b.logs.String()
	for _, hidden := range []string{"payload-text", "header-text", "key-text", "query-text", "token-of-sender-a", "wrong-token", strings.Repeat("x", 300)} {
		if strings.Contains(logs, hidden) {
			t.Errorf("the log has %q", hidden)
		}
	}
	if n := len(b.requests()); n != 6 {
		t.Errorf("%d lines in the access log", n)
	}
}

// TestKeysByHTTPAreTimed: the ingress derives the keys of its events itself, so a process with no other
// part has the times too.
func TestKeysByHTTPAreTimed(t *testing.T) {
	t.Parallel()
	b := newBench(t, signalRoutes)
	i := b.serve(nil)
	for range 3 {
		i.post("/signals", event("t-1"))
	}
	if n := embedded.Metrics(t, i.clients)["oncebus_key_derivation_seconds"]; n != 3 {
		t.Errorf("%v keys were timed, want 3", n)
	}
}
