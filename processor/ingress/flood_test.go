package ingress

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kmsg"

	"oncebus/processor/front"
)

// floodRoutes are a route with a token and verdicts, one whose responses need no verdict, and one
// whose signature is over the body, which is read before a stranger is known.
var floodRoutes = strings.Replace(withHTTP("timeout: 50s"), "scheme: none", "scheme: bearer, secret: A", 1) + `  - name: others
    topics: [others.raw]
    key: [{field: id}]
    window: 1h
    output: others.unique
    dead_letter: dead
    http: {path: /others, signature: {scheme: bearer, secret: B}, answer: async, timeout: 50s, on_kafka_unavailable: wait}
  - name: hooks
    topics: [hooks.raw]
    key: [{field: id}]
    window: 1h
    output: hooks.unique
    dead_letter: dead
    http: {path: /hooks, signature: {scheme: hmac, secret: A, header: X-Sum}, answer: async}
`

func (b *bench) serveFlood(change func(*Config)) *instance {
	return b.serve(func(c *Config) {
		c.MaxRequests = 24
		c.TrustedProxies = []string{"127.0.0.0/8"} // so that a request names its client
		c.Secrets = Secrets{"A": {Value: "token-of-sender-a"}, "B": {Value: "token-of-sender-b"}}
		if change != nil {
			change(c)
		}
	})
}

// from returns the headers of a client's request. With token "" it is unsigned.
func from(client, token string) []string {
	headers := []string{"X-Forwarded-For", client, "X-Sum", strings.Repeat("00", 32)}
	if token != "" {
		headers = append(headers, "Authorization", "Bearer "+token)
	}
	return headers
}

// holdOpen sends n requests whose bodies do not end, of sent bytes so far, and waits
// until the server has counted in requests in flight.
func (i *instance) holdOpen(client, token, path string, n, sent, in int) {
	i.b.t.Helper()
	for range n {
		conn := i.dial()
		if _, err := fmt.Fprint(conn, raw(path, strings.Repeat(" ", sent), 1<<20, from(client, token)...)); err != nil {
			i.b.t.Fatal(err)
		}
	}
	i.b.wait(fmt.Sprintf("%d requests of %s to be in flight", in, client), func() bool { return i.Requests() == in })
}

// TestStrangersLeaveRoomForSenders: clients without the secret occupy a part of the
// requests, before their bodies arrive, on every path; senders are answered meanwhile.
func TestStrangersLeaveRoomForSenders(t *testing.T) {
	t.Parallel()
	i := newBench(t, floodRoutes).serveFlood(patient)
	i.holdOpen("192.0.2.1", "", "/hooks", 30, 0, 12)
	i.post("/hooks", event("a"), from("192.0.2.1", "")...).header(t, "the stranger", "Retry-After", "1").problem(t, "the stranger", "busy", 503)
	i.post("/others", event("a"), from("192.0.2.1", "")...).want(t, "the stranger without a token", 401)
	for n := range 20 {
		i.post("/signals", event(fmt.Sprint(n)), from("192.0.2.2", "token-of-sender-a")...).want(t, "a sender", 202)
		i.post("/others", event(fmt.Sprint(n)), from("192.0.2.2", "token-of-sender-b")...).want(t, "another sender", 202)
	}
	// Three more: the twelve that are free are divided, too.
	for n, in := range []int{18, 21, 23} {
		i.holdOpen(fmt.Sprintf("192.0.2.%d", 11+n), "", "/hooks", 12, 0, in)
	}
	i.post("/signals", event("b"), from("192.0.2.2", "token-of-sender-a")...).want(t, "a sender among many strangers", 202)
	if i.count("oncebus_http_refused_total", "reason", "requests_per_source", "route", "hooks") == 0 {
		t.Error("wrong metrics")
	}
}

// TestHeadIsRefusedWithoutAPlace: what the head decides is answered while all places are taken, and before a byte of the body.
// Then the signature of the body decides, for which a place is needed.
func TestHeadIsRefusedWithoutAPlace(t *testing.T) {
	t.Parallel()
	routes := strings.Replace(floodRoutes, "header: X-Sum}", "header: X-Sum, timestamp_header: X-Time, tolerance: 5m}", 1)
	i := newBench(t, routes).serveFlood(func(c *Config) {
		patient(c)
		c.MaxRequests = 1
	})
	now := strconv.FormatInt(time.Now().Unix(), 10)
	i.holdOpen("192.0.2.1", "token-of-sender-a", "/signals", 1, 0, 1)
	sum := strings.Repeat("00", 32)
	for name, c := range map[string]struct {
		path    string
		length  int
		status  int
		headers []string
	}{
		"no signature":            {"/hooks", 1000, 401, []string{"X-Time", now}},
		"no timestamp":            {"/hooks", 1000, 401, []string{"X-Sum", sum}},
		"two signatures":          {"/hooks", 1000, 401, []string{"X-Sum", sum, "X-Sum", sum, "X-Time", now}},
		"a malformed signature":   {"/hooks", 1000, 401, []string{"X-Sum", sum[1:], "X-Time", now}},
		"a stale timestamp":       {"/hooks", 1000, 401, []string{"X-Sum", sum, "X-Time", "1767225600"}},
		"no token":                {"/signals", 1000, 401, nil},
		"another token":           {"/others", 1000, 401, []string{"Authorization", "Bearer token-of-sender-a"}},
		"a coding":                {"/hooks", 1000, 415, []string{"X-Sum", sum, "X-Time", now, "Content-Encoding", "gzip"}},
		"a long body":             {"/hooks", 10 << 20, 413, []string{"X-Sum", sum, "X-Time", now}},
		"a long one with a token": {"/others", 10 << 20, 413, []string{"Authorization", "Bearer token-of-sender-b"}},
		"all that the head has":   {"/hooks", 1000, 503, []string{"X-Sum", sum, "X-Time", now}},
	} {
		conn := i.dial()
		if _, err := fmt.Fprint(conn, raw(c.path, "{", c.length, append(c.headers, "X-Forwarded-For", "192.0.2.2")...)); err != nil {
			t.Fatal(err)
		}
		if status, _ := (slow{conn}).response(t); status != c.status {
			t.Errorf("%s: status %d, want %d", name, status, c.status)
		}
	}
	if n := i.Requests(); n != 1 {
		t.Errorf("%d requests in flight", n)
	}
}

// TestStrangersLeaveMemoryForSenders: the same with the memory of bodies.
func TestStrangersLeaveMemoryForSenders(t *testing.T) {
	t.Parallel()
	i := newBench(t, floodRoutes).serveFlood(func(c *Config) { c.MaxBodyBytes = 1 << 20 })
	body := event("large") + strings.Repeat(" ", 300<<10)
	i.post("/signals", body, from("192.0.2.2", "token-of-sender-a")...).want(t, "before", 202)
	for n := 1; n <= 8; n++ {
		conn := i.dial()
		if _, err := fmt.Fprint(conn, raw("/hooks", "", 200<<10, from("192.0.2.1", "")...)); err != nil {
			t.Fatal(err)
		}
		_, _ = fmt.Fprint(conn, strings.Repeat(" ", 150<<10)) // may be refused
	}
	i.b.wait("bodies to be refused", func() bool { return i.count("oncebus_http_refused_total", "reason", "bodies_per_source") >= 5 })
	i.post("/signals", body+" ", from("192.0.2.2", "token-of-sender-a")...).want(t, "a sender", 409)
}

// TestRouteLeavesRoomForOthers: the signed requests of one route, from many addresses,
// wait for verdicts that do not come. The other route is answered meanwhile, and so
// is a wrong signature.
func TestRouteLeavesRoomForOthers(t *testing.T) {
	t.Parallel()
	b := newBench(t, floodRoutes)
	i := b.serveFlood(nil)
	i.post("/signals", event("before"), from("192.0.2.2", "token-of-sender-a")...).want(t, "before", 202)
	b.stop()
	var waiting []<-chan reply
	for n := range 16 {
		waiting = append(waiting, i.later("/signals", event(fmt.Sprint(n)), from(fmt.Sprintf("192.0.2.%d", 10+n), "token-of-sender-a")...))
		b.wait("the next to wait", func() bool { return i.Requests() == n+1 })
	}
	got := i.post("/signals", event("more"), from("192.0.2.3", "token-of-sender-a")...).problem(t, "one more", "busy", 503)
	if got.Detail != ofEndpoint || i.count("oncebus_http_refused_total", "reason", "requests_per_route", "route", "signals") != 1 {
		t.Errorf("wrong detail %q or metrics", got.Detail)
	}
	for n := range 20 {
		i.post("/others", event(fmt.Sprint(n)), from("192.0.2.3", "token-of-sender-b")...).want(t, "the other route", 202)
	}
	i.post("/others", event("a"), from("192.0.2.3", "token-of-sender-a")...).problem(t, "unsigned", "signature", 401)
	b.judge()
	for _, w := range waiting {
		(<-w).want(t, "waiting", 202)
	}
}

// TestStrangersWithoutATokenOccupyNothing: where no body is needed to know a sender, a request without
// the token is refused before its body, however many come from however many addresses. None is asked
// for its body, and none holds a request or memory.
func TestStrangersWithoutATokenOccupyNothing(t *testing.T) {
	t.Parallel()
	i := newBench(t, floodRoutes).serveFlood(patient)
	for n := range 60 {
		conn := i.dial()
		headers := from(fmt.Sprintf("192.0.2.%d", n%30), "")
		if n%3 == 0 {
			headers = from(fmt.Sprintf("192.0.2.%d", n%30), "not-the-token-of-a-sender")
		}
		if n%2 == 0 {
			headers = append(headers, "Expect", "100-continue")
		}
		if _, err := fmt.Fprint(conn, raw([]string{"/signals", "/others"}[n%2], "{", 1000, headers...)); err != nil {
			t.Fatal(err)
		}
		if err := conn.SetReadDeadline(time.Now().Add(60 * time.Second)); err != nil {
			t.Fatal(err)
		}
		if status, _ := (slow{conn}).response(t); status != 401 {
			t.Fatalf("stranger %d: status %d", n, status)
		}
		i.post("/signals", event(fmt.Sprint(n)), from("192.0.2.1", "token-of-sender-a")...).want(t, "a sender", 202)
	}
	i.b.wait("nothing to be in flight", func() bool { return i.Requests() == 0 && i.count("oncebus_http_body_bytes") == 0 })
}

// TestMaxRequestsOfARoute: the route's own bound replaces the common one. A request counts when its
// body is there.
func TestMaxRequestsOfARoute(t *testing.T) {
	t.Parallel()
	b := newBench(t, strings.Replace(floodRoutes, "scheme: bearer, secret: A}", "scheme: bearer, secret: A}\n      max_requests: 2", 1))
	i := b.serveFlood(patient)
	i.holdOpen("192.0.2.1", "token-of-sender-a", "/signals", 1, 0, 1)
	i.post("/signals", event("a"), from("192.0.2.2", "token-of-sender-a")...).want(t, "one without its body does not count", 202)
	b.stop()
	first := i.later("/signals", event("b"), from("192.0.2.2", "token-of-sender-a")...)
	b.wait("one to wait", func() bool { return i.Requests() == 2 })
	second := i.later("/signals", event("c"), from("192.0.2.3", "token-of-sender-a")...)
	b.wait("two to wait", func() bool { return i.Requests() == 3 })
	i.post("/signals", event("d"), from("192.0.2.4", "token-of-sender-a")...).problem(t, "one more", "busy", 503)
	i.post("/others", event("d"), from("192.0.2.4", "token-of-sender-b")...).want(t, "the other route", 202)
	b.judge()
	(<-first).want(t, "first", 202)
	(<-second).want(t, "second", 202)
}

// TestLimitsAreDivided: whatever the sequence of requests, what is free is never used
// up by a few, and everything comes back.
func TestLimitsAreDivided(t *testing.T) {
	cfg := DefaultConfig()
	cfg.MaxRequests, cfg.MaxBodyBytes = 1000, 1<<20
	for _, flooders := range []int{1, 2, 9, 99} {
		l := newRequestLimits(cfg, 2, newMetrics(prometheus.NewRegistry()))
		var all []*reservation
		usages := []endpointUsage{{}, {}}
		for refused := 0; refused < flooders; {
			refused = 0
			for n := range flooders {
				r, err := l.reserve(netip.AddrFrom4([4]byte{192, 0, 2, byte(n)}), &usages[0], true)
				if err != nil {
					refused++
					continue
				}
				all = append(all, r)
				_ = r.grow(1000) // may be refused
			}
		}
		most := cfg.MaxRequests * flooders / (flooders + 1)
		if n := l.count(); n > most+flooders || n < most-flooders {
			t.Errorf("%d sources have %d requests, want about %d", flooders, n, most)
		}
		r, err := l.reserve(netip.MustParseAddr("192.0.2.200"), &usages[0], true)
		if err != nil {
			t.Fatalf("%d sources: another one: %v", flooders, err)
		}
		if err := r.grow(1000); err != nil {
			t.Errorf("%d sources: the memory of another one: %v", flooders, err)
		}
		if err := r.verify(); err != nil {
			t.Errorf("%d sources: the endpoint of another one: %v", flooders, err)
		}
		for _, r := range append(all, r) {
			r.release()
		}
		if l.total != (usage{}) || len(l.sources) != 0 || usages[0] != (endpointUsage{}) {
			t.Errorf("%d sources: %+v, %d sources, %+v remain", flooders, l.total, len(l.sources), usages)
		}
	}
}

// TestRejectedBodyIsNotAwaited: a client that sends its body slowly, and that a limit
// rejects, occupies neither a request nor, until ReadTimeout, a connection.
func TestRejectedBodyIsNotAwaited(t *testing.T) {
	t.Parallel()
	i := newBench(t, floodRoutes).serveFlood(func(c *Config) {
		patient(c)
		c.MaxRequests = 1
	})
	i.holdOpen("192.0.2.1", "", "/hooks", 1, 0, 1)
	conn := i.dial()
	if _, err := fmt.Fprint(conn, raw("/signals", "{", 1000, from("192.0.2.2", "token-of-sender-a")...)); err != nil {
		t.Fatal(err)
	}
	if err := conn.SetReadDeadline(time.Now().Add(60 * time.Second)); err != nil {
		t.Fatal(err)
	}
	if status, _ := (slow{conn}).response(t); status != 503 {
		t.Errorf("status %d", status)
	}
	// The rest of the body does not arrive, so the connection ends.
	var timeout net.Error
	if _, err := io.Copy(io.Discard, conn); errors.As(err, &timeout) && timeout.Timeout() {
		t.Error("the connection stays open")
	}
}

// stuckRoutes are floodRoutes and a third route, whose events go straight to its topic.
var stuckRoutes = floodRoutes + `  - name: stuck
    topics: [stuck.raw]
    prepartitioned: true
    key: [{field: id}]
    window: 1h
    output: stuck.unique
    dead_letter: dead
    http: {path: /stuck, signature: {scheme: none}, timeout: 50s, on_kafka_unavailable: wait}
`

// serveBuffer starts a server that may have this many events wait for Kafka.
func (b *bench) serveBuffer(records, bytes int) *instance {
	b.t.Helper()
	f, err := front.NewIngressClient(b.config("ingress").Config, b.routes, prometheus.NewRegistry(), b.logger())
	if err != nil {
		b.t.Fatal(err)
	}
	f.RecordsMax, f.BytesMax = records, bytes
	i := b.open(f, func(c *Config) {
		c.Secrets = Secrets{"A": {Value: "token-of-sender-a"}, "B": {Value: "token-of-sender-b"}}
	})
	b.background("front", f.Run)
	i.start()
	b.wait("the client to be ready", func() bool { return f.Ready() == nil })
	return i
}

// refuseProduces makes the broker refuse the records for some partitions of a topic, all
// without partitions, until the returned function is called.
func (b *bench) refuseProduces(topic string, partitions ...int32) (end func()) {
	b.t.Helper()
	fault := b.cluster.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.Produce}, Topic: topic, Partitions: partitions, Err: kerr.NotEnoughReplicas, Count: -1})
	return func() { fault.Remove() }
}

// TestFloodThatWaitsForKafkaLeavesRoomForOthers: Kafka takes none of one path's events,
// which wait, many or large. Then that path alone is refused. Every other gets its
// verdict, and the waiting ones get theirs in the end.
func TestFloodThatWaitsForKafkaLeavesRoomForOthers(t *testing.T) {
	t.Parallel()
	b := newBench(t, stuckRoutes)
	for name, c := range map[string]struct{ records, bytes, size int }{
		"many":  {30, 64 << 20, 0},
		"large": {16_384, 1 << 20, 50 << 10},
	} {
		i := b.serveBuffer(c.records, c.bytes)
		end := b.refuseProduces("stuck.raw")
		flooded := func(n int) string { return event(fmt.Sprint(name, n)) + strings.Repeat(" ", c.size) }
		var waiting []<-chan reply
		refused := func() int { return int(i.count("oncebus_http_requests_total", "code", "503")) }
		for n := 0; refused() == 0; n++ {
			waiting = append(waiting, i.later("/stuck", flooded(n)))
			b.wait("the next to wait or to be refused", func() bool { return i.Requests()+refused() == n+1 })
		}
		// On a slow machine the request before may be refused, too.
		if most := len(waiting) - refused(); most < 10 || most > 20 {
			t.Errorf("%s: %d events of the path wait for Kafka, want two thirds", name, most)
		}
		early := refused()
		if n := i.count("oncebus_http_refused_total", "reason", "buffered_per_route", "route", "stuck"); int(n) != early {
			t.Errorf("%s: %v were refused for the buffer, want %d", name, n, early)
		}
		for n := range 20 {
			i.post("/signals", event(fmt.Sprint(name, n)), "Authorization", "Bearer token-of-sender-a").want(t, name+": a verdict of another path", 202)
			i.post("/others", flooded(n), "Authorization", "Bearer token-of-sender-b").want(t, name+": another path", 202)
		}
		got := i.post("/stuck", flooded(-1)).header(t, name, "Retry-After", "1").problem(t, name, "busy", 503)
		if got.Detail != ofEndpoint {
			t.Errorf("%s: detail %q", name, got.Detail)
		}
		end()
		for n, w := range waiting {
			r := <-w
			if r.Response != nil && r.StatusCode == http.StatusServiceUnavailable && early > 0 {
				early--
				continue
			}
			r.want(t, fmt.Sprint(name, ": waiting ", n), 202)
		}
	}
}

// TestPartitionThatTakesNothingLeavesRoomForOthers: the events of all other partitions
// get verdicts, although those of one partition wait for Kafka.
func TestPartitionThatTakesNothingLeavesRoomForOthers(t *testing.T) {
	t.Parallel()
	b := newBench(t, signalRoutes)
	i := b.serveBuffer(20, 64<<20)
	const ids = 160
	for n := range ids {
		i.post("/signals", event(fmt.Sprint(n))).want(t, "before", 202)
	}
	stuck := map[string]bool{}
	for _, r := range b.read("app-repartition", ids) {
		stuck[string(r.Value)] = r.Partition == 0
	}
	end := b.refuseProduces("app-repartition", 0)
	var waiting []<-chan reply
	for n := range ids {
		if stuck[event(fmt.Sprint(n))] {
			waiting = append(waiting, i.later("/signals", event(fmt.Sprint(n))))
		}
	}
	b.wait("half of the buffer to wait for Kafka, and the other events to be refused", func() bool {
		return i.Requests() == 10 && int(i.count("oncebus_http_requests_total", "code", "503")) == len(waiting)-10
	})
	for n := range ids {
		if !stuck[event(fmt.Sprint(n))] {
			i.post("/signals", event(fmt.Sprint(n))).want(t, "another partition", 409)
		}
	}
	end()
	answers := map[int]int{}
	for _, w := range waiting {
		answers[(<-w).StatusCode]++
	}
	if answers[409] != 10 || answers[503] != len(waiting)-10 {
		t.Errorf("responses of the partition: %v, want ten times 409, else 503", answers)
	}
}
