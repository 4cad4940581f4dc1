package ingress

import (
	"bufio"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"oncebus/dedup/rules"
	"oncebus/processor"
)

// withHTTP adds lines to the http part of bareRoutes, and patience where they
// say nothing of it.
func withHTTP(lines ...string) string {
	text := bareRoutes
	for line := range strings.Lines(patience) {
		name, _, _ := strings.Cut(strings.TrimSpace(line), ":")
		if !slices.ContainsFunc(lines, func(l string) bool { return strings.HasPrefix(l, name+":") }) {
			text += line
		}
	}
	for _, line := range lines {
		text += "      " + line + "\n"
	}
	return text
}

func TestRates(t *testing.T) {
	b := newBench(t, withHTTP("rate: {per_second: 0.01, burst: 3}", "rate_per_source: {per_second: 0.02, burst: 2}"))
	i := b.serve(func(c *Config) { c.TrustedProxies = []string{"127.0.0.0/8", "10.0.0.1"} })
	now := time.Now()
	i.now = func() time.Time { return now }
	from := func(source, id string) reply { return i.post("/signals", event(id), "X-Forwarded-For", source) }
	from("192.0.2.1", "a").want(t, "first", 202)
	from("192.0.2.1", "b").want(t, "second", 202)
	for range 3 {
		from("192.0.2.1", "c").header(t, "source", "Retry-After", "50").problem(t, "source", "rate", 429)
	}
	from("192.0.2.2, 10.0.0.1", "c").want(t, "another source", 202) // what was refused took no place
	from("192.0.2.3", "d").header(t, "route", "Retry-After", "100").problem(t, "route", "rate", 429)
	if n := i.count("oncebus_http_refused_total", "reason", "rate_per_source", "route", "signals"); n != 3 {
		t.Errorf("%v refused by source", n)
	}
	if n := i.count("oncebus_http_refused_total", "reason", "rate", "route", "signals"); n != 1 {
		t.Errorf("%v refused by route", n)
	}
	lines := b.logs.requests(t)
	if got := lines[len(lines)-2]["source"]; got != "192.0.2.2" {
		t.Errorf("source %v", got)
	}
	if got := lines[len(lines)-1]["reason"]; got != "rate" {
		t.Errorf("reason %v", got)
	}
	now = now.Add(100 * time.Second)
	from("192.0.2.3", "d").want(t, "later", 202)
}

// TestUnsignedRequestsTakeNoPlaces: who cannot sign locks nobody out who can.
func TestUnsignedRequestsTakeNoPlaces(t *testing.T) {
	b := newBench(t, signedRoutes+"      rate: {per_second: 0.01, burst: 2}\n")
	i := serveSigned(b)
	now := time.Now()
	i.now = func() time.Time { return now }
	for range 5 {
		i.post("/signals", event("x")).problem(t, "unsigned", "signature", 401)
	}
	i.post("/signals", event("a"), bearer...).want(t, "signed", 202)
	i.post("/signals", event("x")).problem(t, "unsigned again", "signature", 401)
	i.post("/signals", event("b"), bearer...).want(t, "signed again", 202)
	i.post("/signals", event("c"), bearer...).problem(t, "one too many", "rate", 429)
	i.post("/signals", event("x")).problem(t, "unsigned while full", "signature", 401)
}

// TestRateIsExact: whatever is refused at the same time, and whoever reads the
// clock first, as many come in as the rate has room for.
func TestRateIsExact(t *testing.T) {
	const perSecond, burst, seconds, senders = 100, 10, 3, 8
	for _, behind := range []time.Duration{0, 50 * time.Millisecond} { // of some senders' clock
		l := newLimiter(rules.Rate{PerSecond: perSecond, Burst: burst})
		began := time.Now()
		var admitted, steps atomic.Int64
		for range burst {
			if l.take(began) == 0 {
				admitted.Add(1)
			}
		}
		var sending sync.WaitGroup
		for sender := range senders {
			sending.Go(func() {
				for {
					n := steps.Add(1)
					if n > seconds*10_000 {
						return
					}
					now := began.Add(time.Duration(n) * 100 * time.Microsecond)
					if sender%2 == 0 {
						now = now.Add(-behind)
					}
					if l.take(now) == 0 {
						admitted.Add(1)
					}
				}
			})
		}
		sending.Wait()
		for l.take(began.Add(seconds*time.Second+time.Microsecond)) == 0 { // which is more than sums of fractions are off
			admitted.Add(1)
		}
		if n := admitted.Load(); n != burst+perSecond*seconds {
			t.Errorf("clocks %v apart: %d of %d were admitted", behind, n, burst+perSecond*seconds)
		}
	}
}

func TestSourcesAreBounded(t *testing.T) {
	s := newSources(rules.Rate{PerSecond: 0.001, Burst: 1})
	now := time.Now()
	addr := netip.MustParseAddr("10.0.0.0")
	for range sourcesMax + 1000 {
		if s.take(addr, now) > 0 {
			t.Fatal("a new source is refused")
		}
		addr = addr.Next()
	}
	if s.by.Len() != sourcesMax {
		t.Errorf("%d sources are known", s.by.Len())
	}
	if s.take(addr.Prev(), now) == 0 {
		t.Error("the last source is not refused")
	}
	if s.take(netip.MustParseAddr("10.0.0.0"), now) > 0 {
		t.Error("a forgotten source is refused")
	}
	s.take(netip.MustParseAddr("2001:db8::1"), now)
	if s.take(netip.MustParseAddr("2001:db8::ffff:2"), now) == 0 || s.take(netip.MustParseAddr("2001:db8:0:1::1"), now) > 0 {
		t.Error("an IPv6 network of 64 bits is one source")
	}
}

func TestSource(t *testing.T) {
	trusted, err := Config{TrustedProxies: []string{"10.0.0.0/8", "fd00::1"}}.trustedProxies()
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		peer string
		hops []string
		want string
	}{
		{"192.0.2.1:80", nil, "192.0.2.1"},
		{"192.0.2.1:80", []string{"1.1.1.1"}, "192.0.2.1"}, // not trusted
		{"10.1.1.1:80", []string{"1.1.1.1"}, "1.1.1.1"},
		{"10.1.1.1:80", []string{"9.9.9.9, 1.1.1.1"}, "1.1.1.1"}, // what the client wrote itself
		{"10.1.1.1:80", []string{"9.9.9.9", "1.1.1.1, 10.2.2.2"}, "1.1.1.1"},
		{"10.1.1.1:80", []string{"9.9.9.9, nonsense, 10.2.2.2"}, "10.2.2.2"},
		{"10.1.1.1:80", []string{"1.1.1.1:4711"}, "1.1.1.1"},
		{"10.1.1.1:80", nil, "10.1.1.1"},
		{"[::ffff:10.1.1.1]:80", []string{"2001:db8::1"}, "2001:db8::1"},
		{"[fd00::1]:80", []string{"[2001:db8::1]:443"}, "2001:db8::1"},
		{"[fe80::1%eth0]:80", nil, "fe80::1"},
		{"@", []string{"1.1.1.1"}, "invalid IP"},
	} {
		r := &http.Request{RemoteAddr: c.peer, Header: http.Header{"X-Forwarded-For": c.hops}}
		if got := sourceOf(r, trusted).String(); got != c.want {
			t.Errorf("%s %q: %s, want %s", c.peer, c.hops, got, c.want)
		}
	}
}

// TestBusy: one request in hand is as many as there may be.
func TestBusy(t *testing.T) {
	b := newBench(t, withHTTP("timeout: 50s"))
	i := b.serve(func(c *Config) { c.MaxRequests = 1 })
	release := b.holdBack(i)
	first := i.later("/signals", event("a"))
	b.wait("the first to be in hand", func() bool { return i.Requests() == 1 })
	i.post("/signals", event("b")).header(t, "busy", "Retry-After", "1").problem(t, "busy", "busy", 503)
	i.post("/nowhere", "").problem(t, "elsewhere", "not-found", 404)
	if i.count("oncebus_http_requests_in_flight") != 1 || i.count("oncebus_http_refused_total", "reason", "requests") != 1 {
		t.Error("the metrics do not say so")
	}
	release()
	(<-first).want(t, "first", 202)
}

// holdBack stops the processor, so that no verdict comes until the returned
// function is called.
func (b *bench) holdBack(i *instance) (release func()) {
	b.t.Helper()
	i.post("/signals", event("before")).want(b.t, "before", 202) // the front has connected
	b.stop()
	return b.judge
}

// TestBodiesShareMemory: a body for which there is no memory is refused, and
// what is refused gives its memory back.
func TestBodiesShareMemory(t *testing.T) {
	b := newBench(t, withHTTP("max_body: 100000"))
	i := b.serve(func(c *Config) { c.MaxBodyBytes = 100_000 })
	held := i.begin("/signals", 90_000)
	if _, err := held.Write([]byte(strings.Repeat(" ", 80_000))); err != nil {
		t.Fatal(err)
	}
	b.wait("the body to be in memory", func() bool { return i.count("oncebus_http_body_bytes") >= 80_000 })
	i.post("/signals", event("small")+strings.Repeat(" ", 30_000)).header(t, "full", "Retry-After", "1").problem(t, "full", "busy", 503)
	i.post("/signals", event("small")).want(t, "small", 202)
	if _, err := held.Write([]byte(event("held") + strings.Repeat(" ", 10_000-len(event("held"))))); err != nil {
		t.Fatal(err)
	}
	if status, _ := held.answer(t); status != 202 {
		t.Errorf("status %d", status)
	}
	if i.count("oncebus_http_body_bytes") != 0 || i.count("oncebus_http_refused_total", "reason", "bodies") != 1 {
		t.Error("the metrics do not say so")
	}
	i.post("/signals", event("again")+strings.Repeat(" ", 60_000)).want(t, "again", 202)
}

// slow is a request that comes in by pieces.
type slow struct{ net.Conn }

// begin sends the head of a request.
func (i *instance) begin(path string, length int) slow {
	i.b.t.Helper()
	conn, err := (&net.Dialer{}).DialContext(i.b.t.Context(), "tcp", i.addr)
	if err != nil {
		i.b.t.Fatal(err)
	}
	i.b.t.Cleanup(func() { _ = conn.Close() })
	if _, err := fmt.Fprintf(conn, "POST %s HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n", path, length); err != nil {
		i.b.t.Fatal(err)
	}
	return slow{conn}
}

// answer returns the status, and whether the connection ends with it.
func (s slow) answer(t *testing.T) (status int, closes bool) {
	t.Helper()
	response, err := http.ReadResponse(bufio.NewReader(s), nil)
	if err != nil {
		t.Fatal(err)
	}
	_ = response.Body.Close()
	return response.StatusCode, response.Close
}

// TestSlowClients: who sends nothing, half a head or half a body is told or cut
// off when the read timeout is over, and holds nothing after that.
func TestSlowClients(t *testing.T) {
	b := newBench(t, signalRoutes)
	i := b.serve(func(c *Config) { c.ReadTimeout = time.Second })
	body := i.begin("/signals", 100)
	if _, err := body.Write([]byte("{")); err != nil {
		t.Fatal(err)
	}
	if status, closes := body.answer(t); status != 408 || !closes {
		t.Errorf("half a body: %d, closes %v", status, closes)
	}
	for _, head := range []string{"", "POST /signals HTTP/1.1\r\nHost:"} {
		conn, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", i.addr)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := conn.Write([]byte(head)); err != nil {
			t.Fatal(err)
		}
		// It returns when the server closes the connection.
		if answer, err := bufio.NewReader(conn).ReadString('\n'); err == nil && !strings.Contains(answer, "408") {
			t.Errorf("after %q: %q", head, answer)
		}
		_ = conn.Close()
	}
	b.wait("nothing to be in hand", func() bool { return i.Requests() == 0 && i.count("oncebus_http_body_bytes") == 0 })
	cut := i.begin("/signals", 100)
	b.wait("the request to be in hand", func() bool { return i.Requests() == 1 })
	_ = cut.Close()
	b.wait("it to be given up", func() bool { return i.Requests() == 0 })
}

// TestWaitIsLongerThanReadTimeout: the time to read a request is not the time
// to wait for its verdict.
func TestWaitIsLongerThanReadTimeout(t *testing.T) {
	b := newBench(t, withHTTP("timeout: 2s"))
	i := b.serve(func(c *Config) { c.ReadTimeout = 500 * time.Millisecond })
	b.holdBack(i)
	i.post("/signals", event("a")).problem(t, "no verdict", "verdict-timeout", 504)
}

func TestLongHeaders(t *testing.T) {
	i := newBench(t, signalRoutes).serve(func(c *Config) { c.MaxHeaderBytes = 2048 })
	conn := i.begin("/signals HTTP/1.1\r\nX-Long: "+strings.Repeat("x", 8<<10)+"\r\nX-Rest:", 0)
	if status, _ := conn.answer(t); status != 431 {
		t.Errorf("status %d", status)
	}
}

func TestTimeouts(t *testing.T) {
	for _, c := range []struct {
		choice, problem string
		status          int
	}{{"504", "verdict-timeout", 504}, {"202", "", 202}} {
		b := newBench(t, withHTTP("timeout: 1s", "on_timeout: "+c.choice))
		i := b.serve(nil)
		for status := 0; status != 202; { // the first verdict may take longer than that
			status = i.post("/signals", event("before")).StatusCode
			if status == http.StatusConflict {
				break
			}
		}
		b.stop()
		got := i.post("/signals", event("a")).header(t, c.choice, "Oncebus-Verdict", "")
		if len(got.Header.Get("Oncebus-Key")) != 64 {
			t.Errorf("no key: %v", got.Header)
		}
		if c.problem == "" {
			got.want(t, c.choice, c.status, `{"status":"accepted"}`)
		} else {
			got.header(t, c.choice, "Retry-After", "1").problem(t, c.choice, c.problem, c.status)
		}
		// To send it again is safe.
		b.judge()
		b.wait("a verdict", func() bool { return i.post("/signals", event("a")).StatusCode == http.StatusConflict })
	}
}

// TestBusAway: with the broker gone a request is refused at once, or held until
// its wait is over.
func TestBusAway(t *testing.T) {
	for _, choice := range []string{"reject", "wait"} {
		b := newBench(t, withHTTP("timeout: 300ms", "on_kafka_unavailable: "+choice))
		i := b.serve(nil)
		b.stop()
		b.cluster.Close()
		b.wait("the front to notice", func() bool { return i.front.Ready() != nil })
		i.post("/signals", event("a")).header(t, choice, "Retry-After", "1").problem(t, choice, "kafka-unavailable", 503)
		lines := b.logs.requests(t)
		if took := time.Duration(lines[len(lines)-1]["duration"].(float64)); (took >= 300*time.Millisecond) != (choice == "wait") {
			t.Errorf("%s: it took %v", choice, took)
		}
	}
}

// TestNotReadyYet: before the front knows the app nothing is derived.
func TestNotReadyYet(t *testing.T) {
	for _, choice := range []string{"reject", "wait"} {
		b := newBench(t, withHTTP("timeout: 50s", "on_kafka_unavailable: "+choice))
		front, err := processor.NewFront(b.config("door").AppConfig, b.routes, b.logger())
		if err != nil {
			t.Fatal(err)
		}
		i := b.open(front, nil)
		i.start()
		if choice == "reject" {
			i.post("/signals", event("a")).problem(t, choice, "kafka-unavailable", 503)
			continue
		}
		held := i.later("/signals", event("a"))
		b.wait("it to be in hand", func() bool { return i.Requests() == 1 })
		b.background("front", front.Run)
		(<-held).want(t, "held", 202)
	}
}

func TestTooLargeForItsTopic(t *testing.T) {
	b := newBench(t, strings.Replace(withHTTP("max_body: 4194304"), "    output:", "    on_missing_key: forward\n    output:", 1))
	i := b.serve(nil)
	i.post("/signals", "{}"+strings.Repeat(" ", 3<<20)).problem(t, "over the topic's limit", "too-large", 413)
}

// TestClientThatGoesAway holds nothing.
func TestClientThatGoesAway(t *testing.T) {
	b := newBench(t, withHTTP("timeout: 50s"))
	i := b.serve(nil)
	b.holdBack(i)
	conn := i.begin("/signals", len(event("a")))
	if _, err := conn.Write([]byte(event("a"))); err != nil {
		t.Fatal(err)
	}
	b.wait("the request to be in hand", func() bool { return i.Requests() == 1 })
	_ = conn.Close()
	b.wait("it to be given up", func() bool { return i.count("oncebus_http_requests_total", "code", "499", "response", "gone") == 1 })
}
