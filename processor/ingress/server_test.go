package ingress

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

// TestPlainHTTP2: a port without TLS serves both protocols.
func TestPlainHTTP2(t *testing.T) {
	t.Parallel()
	i := newBench(t, signalRoutes).serve(nil)
	protocols := &http.Protocols{}
	protocols.SetUnencryptedHTTP2(true)
	transport := &http.Transport{Protocols: protocols}
	defer transport.CloseIdleConnections()
	got, err := i.try(&http.Client{Transport: transport, Timeout: 60 * time.Second}, i.request("POST", "/signals", strings.NewReader(event("a"))))
	if err != nil {
		t.Fatal(err)
	}
	if got.want(t, "h2c", 202); got.ProtoMajor != 2 {
		t.Errorf("HTTP/%d", got.ProtoMajor)
	}
	if got := i.post("/signals", event("a")).want(t, "HTTP/1.1", 409); got.ProtoMajor != 1 {
		t.Errorf("HTTP/%d", got.ProtoMajor)
	}
}

// TestDrain: a stopping server accepts no connection and completes in-flight
// requests.
func TestDrain(t *testing.T) {
	t.Parallel()
	b := newBench(t, withHTTP("timeout: 50s"))
	i := b.serve(nil)
	release := b.stopJudging(i)
	waiting := i.later("/signals", event("a"))
	b.wait("a request to be in flight", func() bool { return i.Requests() == 1 })
	stopped := make(chan struct{})
	go func() {
		i.stop()
		close(stopped)
	}()
	b.wait("the listener to be closed", func() bool {
		conn, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", i.addr)
		if err == nil {
			_ = conn.Close()
		}
		return err != nil
	})
	select {
	case <-stopped:
		t.Fatal("stopped while a request waits")
	default:
	}
	release()
	got := <-waiting
	if got.want(t, "waiting", 202); !got.Close {
		t.Error("the connection stays open")
	}
	<-stopped
}

// TestDrainEnds: requests that wait longer than Config.Drain get
// verdict-timeout.
func TestDrainEnds(t *testing.T) {
	t.Parallel()
	b := newBench(t, withHTTP("timeout: 50s"))
	i := b.serve(func(c *Config) { c.Drain = 2 * time.Second })
	b.stopJudging(i)
	arrive := b.arrivals("app-repartition")
	waiting := i.later("/signals", event("a"))
	arrive(event("a"), 1) // else the answer would be that Kafka has not acknowledged it
	i.stop()
	(<-waiting).problem(t, "waiting", "verdict-timeout", 504)
	if i.Requests() != 0 {
		t.Error("requests are in flight after the stop")
	}
}

func TestServeFails(t *testing.T) {
	t.Parallel()
	b := newBench(t, signalRoutes)
	i := b.serve(nil)
	listener, err := net.Listen("tcp", "127.0.0.1:0") //nolint:noctx // closed at once
	if err != nil {
		t.Fatal(err)
	}
	_ = listener.Close()
	if err := i.Serve(t.Context(), listener); !errors.Is(err, net.ErrClosed) {
		t.Error(err)
	}
}

// TestGarbage: bytes that are no request get an error or are disconnected.
func TestGarbage(t *testing.T) {
	t.Parallel()
	i := newBench(t, signalRoutes).serve(func(c *Config) { c.ReadTimeout = time.Second })
	for _, garbage := range []string{
		"\x16\x03\x01\x02\x00", "PRI * HTTP/2.0\r\n\r\nXX\r\n\r\n", "POST /signals HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: gzip\r\n\r\n",
		"POST /signals HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab",
		"POST /signals HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n", "OPTIONS * HTTP/1.1\r\nHost: a\r\n\r\n",
		"POST /signals HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\n\xff\xfe\x00{}",
	} {
		conn, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", i.addr)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := conn.Write([]byte(garbage)); err != nil {
			t.Fatal(err)
		}
		if err := conn.(*net.TCPConn).CloseWrite(); err != nil {
			t.Fatal(err)
		}
		response, _ := io.ReadAll(bufio.NewReader(conn)) // any end of the connection is valid
		if bytes.Contains(response, []byte(" 500 ")) || bytes.HasPrefix(response, []byte("HTTP/1.1 2")) {
			t.Errorf("%q: %q", garbage, response)
		}
		_ = conn.Close()
	}
	i.post("/signals", event("a")).want(t, "an event after the garbage", 202)
	if strings.Contains(i.b.logs.String(), "panic") {
		t.Error("a handler panicked")
	}
}

func TestLongHeaders(t *testing.T) {
	t.Parallel()
	i := newBench(t, signalRoutes).serve(func(c *Config) { c.MaxHeaderBytes = 2048 })
	conn := i.begin("/signals HTTP/1.1\r\nX-Long: "+strings.Repeat("x", 8<<10)+"\r\nX-Rest:", 0)
	if status, _ := conn.response(t); status != 431 {
		t.Errorf("status %d", status)
	}
}

// TestHeadersOverTheLimitGetAProblem: over HTTP/1 and HTTP/2, and the next request is
// accepted.
func TestHeadersOverTheLimitGetAProblem(t *testing.T) {
	t.Parallel()
	const most = 2048
	i := newBench(t, signalRoutes).serve(func(c *Config) { c.MaxHeaderBytes = most })
	protocols := &http.Protocols{}
	protocols.SetUnencryptedHTTP2(true)
	transport := &http.Transport{Protocols: protocols}
	t.Cleanup(transport.CloseIdleConnections)
	document := loadDocument(t, i.b.routes)
	for name, client := range map[string]*http.Client{
		"HTTP/1": i.b.http,
		"HTTP/2": {Transport: &documented{t: t, next: transport, document: document}},
	} {
		send := func(headers ...string) reply {
			got, err := i.try(client, i.request("POST", "/signals", strings.NewReader(event(name)), headers...))
			if err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			return got
		}
		for n, length := range []int{1000, 2000, 3000, 500} {
			got := send("X-Long", strings.Repeat("x", length))
			switch {
			case length >= most-100:
				got.problem(t, fmt.Sprint(name, length), "headers-too-large", 431)
			case n == 0:
				got.want(t, name, 202)
			default:
				got.want(t, name, 409)
			}
		}
		many := []string{}
		for n := range 54 {
			many = append(many, fmt.Sprintf("X-%03d", n), strings.Repeat("x", 30))
		}
		send(many...).problem(t, name+", many", "headers-too-large", 431)
	}
	if n := i.count("oncebus_http_requests_total", "response", "headers-too-large", "code", "431"); n != 6 {
		t.Errorf("%v requests are counted, want 6", n)
	}
}

// TestHeaderFlood: headers over the limit, long or many, get a 431 or are
// disconnected.
func TestHeaderFlood(t *testing.T) {
	i, before := attackBench(t)
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
			if response, err := io.ReadAll(conn); err == nil && !strings.HasPrefix(string(response), "HTTP/1.1 431 ") {
				t.Errorf("response %.60q", response)
			}
		})
	}
	i.boundedUntil("header flood", &sending, before)
	i.over("header flood", before)
}

// TestRapidResets: HTTP/2 streams that are opened and reset immediately
// (CVE-2023-44487) release everything.
func TestRapidResets(t *testing.T) {
	i, before := attackBench(t)
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

// resetStreams opens and resets n streams, or fewer if the server disconnects.
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

// TestSlowHeadsAreBounded: an incomplete head uses no limit of requests.
func TestSlowHeadsAreBounded(t *testing.T) {
	i, before := attackBench(t)
	conns := make([]net.Conn, attackers)
	for n := range conns {
		conns[n] = i.dial()
		if _, err := fmt.Fprintf(conns[n], "POST /signals HTTP/1.1\r\nHost: a\r\nX-Slow: %s", strings.Repeat("x", 8<<10)); err != nil {
			t.Fatal(err)
		}
	}
	i.post("/signals", event("other")).want(t, "another client", 202)
	i.bounded("slow heads", before)
	for _, conn := range conns {
		_ = conn.Close()
	}
	i.over("slow heads", before)
}
