package ingress

import (
	"net/netip"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"oncebus/dedup/rules"
)

func TestRates(t *testing.T) {
	t.Parallel()
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
	from("192.0.2.2, 10.0.0.1", "c").want(t, "another source", 202) // rejected requests used no token
	from("192.0.2.3", "d").header(t, "route", "Retry-After", "100").problem(t, "route", "rate", 429)
	if n := i.count("oncebus_http_refused_total", "reason", "rate_per_source", "route", "signals"); n != 3 {
		t.Errorf("%v refused by source", n)
	}
	if n := i.count("oncebus_http_refused_total", "reason", "rate", "route", "signals"); n != 1 {
		t.Errorf("%v refused by route", n)
	}
	lines := b.requests()
	if got := lines[len(lines)-2]["source"]; got != "192.0.2.2" {
		t.Errorf("source %v", got)
	}
	if got := lines[len(lines)-1]["reason"]; got != "rate" {
		t.Errorf("reason %v", got)
	}
	now = now.Add(100 * time.Second)
	from("192.0.2.3", "d").want(t, "later", 202)
}

// TestUnsignedRequestsUseNoRate: unsigned requests leave the rate to signed ones.
func TestUnsignedRequestsUseNoRate(t *testing.T) {
	t.Parallel()
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

// TestRateIsExact: concurrent rejections and clocks that differ do not change how
// many requests the rate allows.
func TestRateIsExact(t *testing.T) {
	const perSecond, burst, seconds, senders = 100, 10, 3, 8
	for _, behind := range []time.Duration{0, 50 * time.Millisecond} { // the clock of some senders
		l := newRateLimiter(rules.Rate{PerSecond: perSecond, Burst: burst})
		began := time.Now()
		var admitted, steps atomic.Int64
		send := func(now time.Time) {
			if l.allow(now) == 0 {
				admitted.Add(1)
			}
		}
		for range burst {
			send(began)
		}
		var sending sync.WaitGroup
		for sender := range senders {
			behind := behind * time.Duration(sender%2)
			sending.Go(func() {
				for n := steps.Add(1); n <= seconds*10_000; n = steps.Add(1) {
					send(began.Add(time.Duration(n)*100*time.Microsecond - behind))
				}
			})
		}
		sending.Wait()
		for l.allow(began.Add(seconds*time.Second+time.Microsecond)) == 0 { // a microsecond exceeds the error of summed fractions
			admitted.Add(1)
		}
		if n := admitted.Load(); n != burst+perSecond*seconds {
			t.Errorf("clocks %v apart: %d of %d were admitted", behind, n, burst+perSecond*seconds)
		}
	}
}

func TestSourcesAreBounded(t *testing.T) {
	s := sourceLimiters{rules.Rate{PerSecond: 0.001, Burst: 1}, newRateLimiters[netip.Addr]()}
	now := time.Now()
	addr := netip.MustParseAddr("10.0.0.0")
	for range limitersMax + 1000 {
		if s.allow(addr, now) > 0 {
			t.Fatal("a new source is refused")
		}
		addr = addr.Next()
	}
	if s.by.by.Len() != limitersMax {
		t.Errorf("%d sources are tracked", s.by.by.Len())
	}
	if s.allow(addr.Prev(), now) == 0 {
		t.Error("the last source is not refused")
	}
	if s.allow(netip.MustParseAddr("10.0.0.0"), now) > 0 {
		t.Error("a dropped source is rejected")
	}
	s.allow(netip.MustParseAddr("2001:db8::1"), now)
	if s.allow(netip.MustParseAddr("2001:db8::ffff:2"), now) == 0 || s.allow(netip.MustParseAddr("2001:db8:0:1::1"), now) > 0 {
		t.Error("an IPv6 network of 64 bits is one source")
	}
}
