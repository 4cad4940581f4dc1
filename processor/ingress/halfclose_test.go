package ingress

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// half is a client that closes its sending side and goes on reading.
type half struct {
	*net.TCPConn
	t *testing.T
}

func (i *instance) half(text string) half {
	i.b.t.Helper()
	conn := i.dial().(*net.TCPConn) //nolint:forcetypeassert // the network is tcp
	if _, err := io.WriteString(conn, text); err != nil {
		i.b.t.Fatal(err)
	}
	return half{conn, i.b.t}
}

// answers closes the sending side and returns what is answered before the
// server closes the connection. An implicit answer of net/http fails the test.
func (h half) answers() []reply {
	h.t.Helper()
	if err := h.CloseWrite(); err != nil {
		h.t.Fatal(err)
	}
	var all []reply
	for in := bufio.NewReader(h); ; {
		response, err := http.ReadResponse(in, nil)
		if errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, syscall.ECONNRESET) {
			return all
		}
		if err != nil {
			h.t.Fatal(err)
		}
		text, err := io.ReadAll(response.Body)
		if err != nil {
			h.t.Fatal(err)
		}
		_ = response.Body.Close()
		if response.Header.Get("X-Content-Type-Options") != "nosniff" {
			h.t.Fatalf("an answer that is none of ours: %s %v %q", response.Status, response.Header, text)
		}
		all = append(all, reply{response, string(text)})
	}
}

// raw is a request as it is sent.
func raw(path, body string, length int, headers ...string) string {
	var more strings.Builder
	for n := 0; n < len(headers); n += 2 {
		fmt.Fprintf(&more, "%s: %s\r\n", headers[n], headers[n+1])
	}
	return fmt.Sprintf("POST %s HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n%s\r\n%s", path, length, &more, body)
}

func whole(path, body string, headers ...string) string {
	return raw(path, body, len(body), headers...)
}

// signedRoutes and what opens them.
var (
	signedRoutes = strings.Replace(signalRoutes, "scheme: none", "scheme: bearer, secret: A", 1)
	bearer       = []string{"Authorization", "Bearer token-of-a"}
)

func serveSigned(b *bench) *instance {
	return b.serve(func(c *Config) { c.Secrets = Secrets{"A": {Value: "token-of-a"}} })
}

// TestHalfClosedWithoutAVerdict: a client that closes its sending side while
// nothing is decided is told nothing, and what is refused is refused.
func TestHalfClosedWithoutAVerdict(t *testing.T) {
	b := newBench(t, signedRoutes)
	i := serveSigned(b)
	i.post("/signals", event("before"), bearer...).want(t, "before", 202)
	b.stop() // no verdict from here on
	signed := i.half(whole("/signals", event("a"), bearer...))
	b.wait("the request to be in hand", func() bool { return i.Requests() == 1 })
	if got := signed.answers(); len(got) != 0 {
		t.Errorf("signed: answered %s %q", got[0].Status, got[0].text)
	}
	if got := i.half(whole("/signals", event("a"), bearer...)).answers(); len(got) != 0 {
		t.Errorf("signed, closed at once: answered %s %q", got[0].Status, got[0].text)
	}
	for _, c := range []struct {
		what, text, problem string
		status              int
	}{
		{"half a body", raw("/signals", event("b"), 100, bearer...), "incomplete-body", 400},
		{"half a body, unsigned", raw("/signals", event("b"), 100), "incomplete-body", 400},
		{"unsigned", whole("/signals", event("b")), "signature", 401},
		{"half a chunk", "POST /signals HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n5\r\n{", "incomplete-body", 400},
	} {
		got := i.half(c.text).answers()
		if len(got) != 1 {
			t.Fatalf("%s: %d answers", c.what, len(got))
		}
		got[0].problem(t, c.what, c.problem, c.status)
	}
	if i.count("oncebus_http_requests_total", "code", "499", "response", "gone") != 2 || i.Requests() != 0 ||
		i.count("oncebus_http_requests_in_flight") != 0 || i.count("oncebus_http_body_bytes") != 0 {
		t.Error("the metrics do not say what happened")
	}
	if strings.Contains(b.logs.String(), "panic") {
		t.Error("the log says that a handler panicked")
	}
}

// TestHalfClosedWhileJudged: whatever such clients are told, an event that was
// accepted is on the bus, also where requests are pipelined.
func TestHalfClosedWhileJudged(t *testing.T) {
	b := newBench(t, signalRoutes)
	i := b.serve(nil)
	i.post("/signals", event("before")).want(t, "before", 202)
	accepted := 1
	for n := range 20 {
		first, second := event(fmt.Sprintf("first-%d", n)), event(fmt.Sprintf("second-%d", n))
		for _, got := range i.half(whole("/signals", first) + whole("/signals", second)).answers() {
			got.want(t, "pipelined", 202).header(t, "pipelined", "Oncebus-Verdict", "unique")
			accepted++
		}
	}
	if n := len(b.read("signals.unique", accepted)); n < accepted {
		t.Errorf("%d records in the output, %d were accepted", n, accepted)
	}
}

// TestHalfClosedWithoutABus: nothing is accepted for a client that is gone
// before the bus is back.
func TestHalfClosedWithoutABus(t *testing.T) {
	b := newBench(t, signalRoutes)
	i := b.serve(nil)
	b.stop()
	b.cluster.Close()
	b.wait("the front to notice", func() bool { return i.front.Ready() != nil })
	if got := i.half(whole("/signals", event("a"))).answers(); len(got) != 0 {
		t.Errorf("answered %s %q", got[0].Status, got[0].text)
	}
}

// TestHalfClosedInClaimMode: a twin that waits, and an executor.
func TestHalfClosedInClaimMode(t *testing.T) {
	b, i := claimBench(t)
	arrive := b.arrivals("app-repartition")
	i.post("/operations", event("a")).want(t, "first", 201)
	twin := i.half(whole("/operations", event("a")))
	arrive(event("a"), 2)
	for _, got := range twin.answers() { // the verdict may be known
		got.problem(t, "twin", "in-progress", 409)
	}
	token := b.tokens("operations.unique", 1)[0]
	outcome := []string{"Oncebus-Claim-Token", token, "Oncebus-Outcome", "completed"}
	got := i.half(raw("/operations/outcomes", "{", 100, outcome...)).answers()
	if len(got) != 1 {
		t.Fatalf("half an outcome: %d answers", len(got))
	}
	got[0].problem(t, "half an outcome", "incomplete-body", 400)
	fault := b.cluster.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.Produce}, Topic: "operations.outcomes", Err: kerr.NotLeaderForPartition, Count: -1})
	executor := i.half(whole("/operations/outcomes", "{}", outcome...))
	b.wait("the outcome to be in hand", func() bool { return i.Requests() == 1 })
	if got := executor.answers(); len(got) != 0 {
		t.Errorf("an outcome that the bus did not take: answered %s %q", got[0].Status, got[0].text)
	}
	fault.Remove()
	if i.count("oncebus_http_requests_total", "code", "499", "route", "operations") < 1 {
		t.Error("the executor that is gone is not counted")
	}
}

// TestStatusOfAnExecutorIsNotAClientThatIsGone: 499 is a status like every other.
func TestStatusOfAnExecutorIsNotAClientThatIsGone(t *testing.T) {
	b, i := claimBench(t)
	key := []string{"Idempotency-Key", "k"}
	i.post("/orders", `{}`, key...).want(t, "first", 202)
	i.settle("/orders", b.tokens("orders.unique", 1)[0], "completed", "{}", "Oncebus-Result-Status", "499").want(t, "outcome", 202)
	var got reply
	b.wait("the claim to be completed", func() bool {
		got = i.post("/orders", `{}`, key...)
		return got.Header.Get("Oncebus-Claim-Status") == "completed"
	})
	got.want(t, "replay", 499, "{}")
}

// TestCancelledStream: the end of one request of HTTP/2 is not the end of its
// connection.
func TestCancelledStream(t *testing.T) {
	b := newBench(t, signalRoutes)
	i := b.serve(nil)
	b.holdBack(i)
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
	b.wait("the request to be in hand", func() bool { return i.Requests() == 1 })
	cancel()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	b.wait("it to be given up", func() bool { return i.count("oncebus_http_requests_total", "code", "499", "response", "gone") == 1 })
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
