package ingress

import (
	"bytes"
	"fmt"
	"net"
	"net/http"
	"runtime"
	runtimemetrics "runtime/metrics"
	"strings"
	"sync"
	"testing"
	"time"
)

// TestBusy: with a limit of one, a second request is rejected.
func TestBusy(t *testing.T) {
	t.Parallel()
	b := newBench(t, withHTTP("timeout: 50s"))
	i := b.serve(func(c *Config) { c.MaxRequests = 1 })
	release := b.stopJudging(i)
	first := i.later("/signals", event("a"))
	b.wait("the first to be in flight", func() bool { return i.Requests() == 1 })
	i.post("/signals", event("b")).header(t, "busy", "Retry-After", "1").problem(t, "busy", "busy", 503)
	i.post("/nowhere", "").problem(t, "elsewhere", "not-found", 404)
	if i.count("oncebus_http_requests_in_flight") != 1 || i.count("oncebus_http_refused_total", "reason", "requests") != 1 {
		t.Error("wrong metrics")
	}
	release()
	(<-first).want(t, "first", 202)
}

// TestBodiesShareMemory: a body without memory is rejected, and releases what it
// had reserved.
func TestBodiesShareMemory(t *testing.T) {
	t.Parallel()
	b := newBench(t, withHTTP("max_body: 100000"))
	i := b.serve(func(c *Config) {
		patient(c)
		c.MaxBodyBytes, c.MaxRequestsPerSource = 100_000, c.MaxRequests
	})
	first := i.begin("/signals", 90_000)
	if _, err := first.Write([]byte(strings.Repeat(" ", 80_000))); err != nil {
		t.Fatal(err)
	}
	b.wait("the body to be in memory", func() bool { return i.count("oncebus_http_body_bytes") >= 80_000 })
	i.post("/signals", event("small")+strings.Repeat(" ", 30_000)).header(t, "full", "Retry-After", "1").problem(t, "full", "busy", 503)
	i.post("/signals", event("small")).want(t, "small", 202)
	if _, err := first.Write([]byte(event("first") + strings.Repeat(" ", 10_000-len(event("first"))))); err != nil {
		t.Fatal(err)
	}
	if status, _ := first.response(t); status != 202 {
		t.Errorf("status %d", status)
	}
	if i.count("oncebus_http_body_bytes") != 0 || i.count("oncebus_http_refused_total", "reason", "bodies") != 1 {
		t.Error("wrong metrics")
	}
	i.post("/signals", event("again")+strings.Repeat(" ", 60_000)).want(t, "again", 202)
}

// heap returns the bytes that the last collection found in use in the test's
// process.
func heap() int64 {
	runtime.GC()
	runtime.GC() // memory that the first collection's finalizers released
	live := []runtimemetrics.Sample{{Name: "/gc/heap/live:bytes"}}
	runtimemetrics.Read(live)
	return int64(live[0].Value.Uint64())
}

const (
	attackers = 64
	// bodiesMost is the memory of all bodies. A body is copied as it grows and
	// parsed as JSON, so the heap may have four times that, plus connectionMost
	// for each connection: buffers, and headers of MaxHeaderBytes. Without
	// limits each body would have a MiB.
	bodiesMost, connectionMost = 4 << 20, 64 << 10
	heapMost                   = 4*bodiesMost + attackers*connectionMost
)

// attackBench returns a server with tight limits, and the heap before an attack.
func attackBench(t *testing.T) (*instance, int64) {
	t.Helper()
	b := newBench(t, withHTTP("max_body: 1048576"))
	i := b.serve(func(c *Config) {
		c.MaxBodyBytes, c.MaxRequests, c.MaxRequestsPerSource = bodiesMost, attackers, attackers
		c.ReadTimeout, c.WriteTimeout = time.Minute, 5*time.Minute // no attack times out
	})
	i.post("/signals", event("first")).want(t, "first", 202)
	return i, heap()
}

// bounded checks the heap during an attack.
func (i *instance) bounded(what string, before int64) {
	i.b.t.Helper()
	grown := heap() - before
	// Objects allocated while a collection marks count as in use, which takes
	// long on a busy machine. Memory that is in use is so each time.
	for again := 0; again < 5 && grown > heapMost; again++ {
		grown = min(grown, heap()-before)
	}
	if grown > heapMost {
		i.b.t.Errorf("%s: the heap has grown by %d bytes", what, grown)
	}
}

// boundedUntil checks the heap repeatedly until the attack ends.
func (i *instance) boundedUntil(what string, attack *sync.WaitGroup, before int64) {
	i.b.t.Helper()
	over := make(chan struct{})
	go func() {
		attack.Wait()
		close(over)
	}()
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case <-over:
			return
		case <-tick.C:
			i.bounded(what, before)
		}
	}
}

// over checks that the server released all that the attack used.
func (i *instance) over(what string, before int64) {
	i.b.t.Helper()
	i.b.wait(what+" to use no limit", func() bool { return i.Requests() == 0 && i.count("oncebus_http_body_bytes") == 0 })
	// The broker and the processor of the bench use the same heap.
	i.b.wait("the memory of "+what+" to come back", func() bool { return heap()-before < 6<<20 })
	// The server may just have taken up what an attacker sent last.
	var last reply
	i.b.wait("room after "+what, func() bool {
		last = i.post("/signals", event(what))
		return last.StatusCode != http.StatusServiceUnavailable
	})
	last.want(i.b.t, "after "+what, 202)
}

// TestWaitingDuplicatesDoNotBlockOutcomes: duplicates use all limits of events
// while they wait, and the outcome is accepted.
func TestWaitingDuplicatesDoNotBlockOutcomes(t *testing.T) {
	t.Parallel()
	b := newBench(t, claimRoutes)
	i := b.serve(func(c *Config) {
		c.MaxRequests, c.MaxRequestsPerSource, c.MaxBodyBytes, c.Secrets = 2, 2, 2<<20, Secrets{"EXECUTOR": {Value: "token-of-executors"}}
	})
	arrive := b.arrivals("app-repartition")
	large := `{"id":"a","x":"` + strings.Repeat("x", 400_000) + `"}`
	i.post("/operations", large).want(t, "first", 201)
	duplicates := []<-chan reply{i.later("/operations", large), i.later("/operations", large)}
	arrive(large, 3)
	if i.Requests() != 2 || i.count("oncebus_http_requests_in_flight") != 2 || i.count("oncebus_http_body_bytes") < 800_000 {
		t.Error("wrong metrics of two waiting requests")
	}
	i.post("/operations", event("b")).problem(t, "a third", "busy", 503)
	token := b.tokens("operations.unique", 1)[0]
	i.postOutcome("/operations", token, "completed", strings.Repeat("x", 500_000)+"done").want(t, "outcome", 202)
	for _, d := range duplicates {
		(<-d).want(t, "duplicate", 200, "done")
	}
	b.wait("nothing to be in flight", func() bool {
		return i.Requests() == 0 && i.count("oncebus_http_requests_in_flight") == 0 && i.count("oncebus_http_body_bytes") == 0
	})
}

// TestSlowBodiesAreBounded: bodies that never end use no more memory than the
// limit; announced bytes use none.
func TestSlowBodiesAreBounded(t *testing.T) {
	i, before := attackBench(t)
	conns := make([]net.Conn, attackers)
	for n := range conns {
		conns[n] = i.dial()
		if _, err := fmt.Fprint(conns[n], "POST /signals HTTP/1.1\r\nHost: a\r\nContent-Length: 1048576\r\n\r\n{"); err != nil {
			t.Fatal(err)
		}
	}
	i.b.wait("all to be in flight", func() bool { return i.Requests() == attackers })
	if used := i.count("oncebus_http_body_bytes"); used > attackers*firstReadBytes {
		t.Errorf("%v bytes are reserved for bodies of one byte each", used)
	}
	i.post("/signals", event("one more")).problem(t, "one more", "busy", 503)
	// Then each sends half a MiB: some are rejected, the others stay in flight.
	var sending sync.WaitGroup
	for _, conn := range conns {
		sending.Go(func() { _, _ = conn.Write(bytes.Repeat([]byte(" "), 512<<10)) }) // may be cut off
	}
	i.b.wait("bodies to be refused", func() bool { return i.count("oncebus_http_refused_total", "reason", "bodies") > 0 })
	i.bounded("slow bodies", before)
	for _, conn := range conns {
		_ = conn.Close()
	}
	sending.Wait()
	i.over("slow bodies", before)
}
