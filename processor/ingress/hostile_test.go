package ingress

import (
	"bytes"
	"compress/gzip"
	"fmt"
	"io"
	"net"
	"net/http"
	"runtime"
	runtimemetrics "runtime/metrics"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

// dial opens a connection that speaks for itself.
func (i *instance) dial() net.Conn {
	i.b.t.Helper()
	conn, err := (&net.Dialer{}).DialContext(i.b.t.Context(), "tcp", i.addr)
	if err != nil {
		i.b.t.Fatal(err)
	}
	i.b.t.Cleanup(func() { _ = conn.Close() })
	return conn
}

// heap is what a collection found in use, by all of the test's process; what
// was made and dropped since does not count.
func heap() int64 {
	runtime.GC()
	runtime.GC() // what the first one's finalizers released
	live := []runtimemetrics.Sample{{Name: "/gc/heap/live:bytes"}}
	runtimemetrics.Read(live)
	return int64(live[0].Value.Uint64())
}

const (
	attackers = 64
	// bodiesMost is what all bodies may take. A body is copied as it grows and
	// read as JSON, so the heap gets four times that, and connectionMost for
	// each connection: buffers, and headers of MaxHeaderBytes. Without limits
	// each body would be a MiB.
	bodiesMost, connectionMost = 4 << 20, 64 << 10
	heapMost                   = 4*bodiesMost + attackers*connectionMost
)

// hostileBench is a server with tight limits, and the heap that it began with.
func hostileBench(t *testing.T) (*instance, int64) {
	t.Helper()
	b := newBench(t, withHTTP("max_body: 1048576"))
	i := b.serve(func(c *Config) {
		c.MaxBodyBytes, c.MaxRequests = bodiesMost, attackers
		c.ReadTimeout, c.WriteTimeout = time.Minute, 5*time.Minute // no attack ends by itself
	})
	i.post("/signals", event("first")).want(t, "first", 202)
	return i, heap()
}

// bounded checks the heap at some moment of an attack.
func (i *instance) bounded(what string, before int64) {
	i.b.t.Helper()
	grown := heap() - before
	// What is made while a collection marks counts as in use, and on a busy
	// machine that takes long: what is held shows each time.
	for again := 0; again < 5 && grown > heapMost; again++ {
		grown = min(grown, heap()-before)
	}
	if grown > heapMost {
		i.b.t.Errorf("%s: the heap has grown by %d bytes", what, grown)
	}
}

// boundedUntil does so again and again until the attack is over.
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

// over checks that an attack leaves nothing behind.
func (i *instance) over(what string, before int64) {
	i.b.t.Helper()
	i.b.wait(what+" to hold nothing", func() bool { return i.Requests() == 0 && i.count("oncebus_http_body_bytes") == 0 })
	// The broker and the processor of the bench live in the same heap.
	i.b.wait("the memory of "+what+" to come back", func() bool { return heap()-before < 6<<20 })
	i.post("/signals", event(what)).want(i.b.t, "after "+what, 202)
}

// TestSlowBodiesAreBounded: bodies that never end hold no more memory than all
// bodies may; what is announced and does not come costs nothing.
func TestSlowBodiesAreBounded(t *testing.T) {
	i, before := hostileBench(t)
	conns := make([]net.Conn, attackers)
	for n := range conns {
		conns[n] = i.dial()
		if _, err := fmt.Fprint(conns[n], "POST /signals HTTP/1.1\r\nHost: a\r\nContent-Length: 1048576\r\n\r\n{"); err != nil {
			t.Fatal(err)
		}
	}
	i.b.wait("all to be in hand", func() bool { return i.Requests() == attackers })
	if held := i.count("oncebus_http_body_bytes"); held > attackers*firstRead {
		t.Errorf("%v bytes are held for bodies of one byte each", held)
	}
	i.post("/signals", event("one more")).problem(t, "one more", "busy", 503)
	// Then each sends half a MiB: some are refused, the others wait on.
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

// TestSlowHeadsAreBounded: a head that comes byte by byte is no request yet.
func TestSlowHeadsAreBounded(t *testing.T) {
	i, before := hostileBench(t)
	conns := make([]net.Conn, attackers)
	for n := range conns {
		conns[n] = i.dial()
		if _, err := fmt.Fprintf(conns[n], "POST /signals HTTP/1.1\r\nHost: a\r\nX-Slow: %s", strings.Repeat("x", 8<<10)); err != nil {
			t.Fatal(err)
		}
	}
	i.post("/signals", event("beside")).want(t, "somebody else", 202)
	i.bounded("slow heads", before)
	for _, conn := range conns {
		_ = conn.Close()
	}
	i.over("slow heads", before)
}

// endless is a text over and over.
type endless struct {
	text string
	at   int
}

func (e *endless) Read(p []byte) (int, error) {
	for n := 0; n < len(p); {
		copied := copy(p[n:], e.text[e.at:])
		n, e.at = n+copied, (e.at+copied)%len(e.text)
	}
	return len(p), nil
}

// TestHostileBodiesAreRefused: what is too large, packed or no JSON gets its
// problem, from many at once, and is not read to its end.
func TestHostileBodiesAreRefused(t *testing.T) {
	i, _ := hostileBench(t)
	var bomb bytes.Buffer
	packer := gzip.NewWriter(&bomb)
	_, _ = packer.Write(make([]byte, 64<<20)) // into memory
	_ = packer.Close()
	attacks := []struct {
		name   string
		body   string // over and over, if it is longer
		length int
		coding string
		status []int
	}{
		{"announced too large", `{"id":[`, 1 << 40, "", []int{413}},
		{"chunked without an end", `{"id":[`, -1, "", []int{413, 503}},
		{"bomb", bomb.String(), bomb.Len(), "gzip", []int{415}},
		{"bomb, chunked", bomb.String(), -1, "x-gzip", []int{415}},
		{"bomb that says nothing", bomb.String(), bomb.Len(), "", []int{400, 503}},
		{"deep", `{"id":`, 600_000, "", []int{400, 503}},
		{"many names", `{"id":1,"a":[],`, 600_000, "", []int{400, 503}},
		{"zeros", "\x00", 1 << 20, "", []int{400, 503}},
	}
	before := heap()
	var sending sync.WaitGroup
	for n := range attackers {
		a := attacks[n%len(attacks)]
		sending.Go(func() {
			body := io.Reader(&endless{text: a.body})
			if a.length >= 0 {
				body = io.LimitReader(body, int64(a.length)) // the client looks for more
			}
			r := i.request(http.MethodPost, "/signals", body)
			r.ContentLength = int64(a.length)
			if a.coding != "" {
				r.Header.Set("Content-Encoding", a.coding)
			}
			got, err := i.try(i.b.http, r)
			if err != nil {
				return // the answer may be lost where the client goes on sending
			}
			for _, status := range a.status {
				if got.StatusCode == status {
					return
				}
			}
			t.Errorf("%s: status %d, want one of %d: %s", a.name, got.StatusCode, a.status, got.text)
		})
	}
	i.boundedUntil("hostile bodies", &sending, before)
	i.over("hostile bodies", before)
	if strings.Contains(i.b.logs.String(), "panic") {
		t.Error("a handler panicked")
	}
}

// TestHeaderFlood: headers beyond the limit are answered 431 or cut off, be they
// long or many.
func TestHeaderFlood(t *testing.T) {
	i, before := hostileBench(t)
	var sending sync.WaitGroup
	for n := range attackers {
		conn := i.dial()
		sending.Go(func() {
			_, _ = io.WriteString(conn, "POST /signals HTTP/1.1\r\nHost: a\r\n")
			for range 5000 {
				if _, err := fmt.Fprintf(conn, "X-%d: %d\r\n", n, n); err != nil {
					break
				}
			}
			if answer, err := io.ReadAll(conn); err == nil && !strings.HasPrefix(string(answer), "HTTP/1.1 431 ") {
				t.Errorf("answer %.60q", answer)
			}
		})
	}
	i.boundedUntil("header flood", &sending, before)
	i.over("header flood", before)
}

// TestRapidResets: streams of HTTP/2 that are opened and reset at once
// (CVE-2023-44487) leave nothing behind.
func TestRapidResets(t *testing.T) {
	i, before := hostileBench(t)
	var sending sync.WaitGroup
	for range 8 {
		conn := i.dial()
		sending.Go(func() {
			go func() { _, _ = io.Copy(io.Discard, conn) }() // ends with the connection
			resetStreams(conn, 2000)
		})
	}
	i.boundedUntil("rapid resets", &sending, before)
	i.over("rapid resets", before)
}

// resetStreams opens streams and resets each at once, until n were or the
// server hangs up.
func resetStreams(conn net.Conn, n int) {
	defer conn.Close()
	if _, err := io.WriteString(conn, http2.ClientPreface); err != nil {
		return
	}
	framer := http2.NewFramer(conn, nil)
	if framer.WriteSettings() != nil {
		return
	}
	var head bytes.Buffer
	encoder := hpack.NewEncoder(&head)
	for stream := range uint32(n) {
		head.Reset()
		for _, field := range [][2]string{{":method", "POST"}, {":scheme", "http"}, {":path", "/signals"}, {":authority", "a"}} {
			_ = encoder.WriteField(hpack.HeaderField{Name: field[0], Value: field[1]}) // into memory
		}
		id := 2*stream + 1
		if framer.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: head.Bytes(), EndHeaders: true}) != nil ||
			framer.WriteData(id, false, []byte("{")) != nil || framer.WriteRSTStream(id, http2.ErrCodeCancel) != nil {
			return
		}
	}
}
