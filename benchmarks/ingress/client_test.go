//go:build unix

package main

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"oncebus/benchmarks/internal/openloop"
)

// TestReadResponse passes every response in one piece and byte by byte.
func TestReadResponse(t *testing.T) {
	for _, test := range []struct {
		text   string
		status int
		fails  string
	}{
		{"HTTP/1.1 202 Accepted\r\nContent-Length: 2\r\nDate: x\r\n\r\n{}", 202, ""},
		{"HTTP/1.1 409 Conflict\r\ncontent-length: 0\r\n\r\n", 409, ""},
		{"HTTP/1.1 202 Accepted\r\nContent-Length: 5\r\n\r\n{}", 0, "unexpected EOF"},
		{"HTTP/1.1 202 Accepted\r\n", 0, "unexpected EOF"},
		{"", 0, "unexpected EOF"},
		{"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", 0, "no Content-Length"},
		{"HTTP/1.1 200 OK\r\nContent-Length: many\r\n\r\n", 0, "is not a length"},
		{"SSH-2.0 hello\r\n\r\n", 0, "not a status line"},
		{"HTTP/1.1 202 Accepted\r\nContent-Length: 1\r\n\r\n{}", 0, "follow it"},
		{"HTTP/1.1 202 Accepted\r\nContent-Length: 9999\r\n\r\n" + strings.Repeat("x", 9999), 0, "more than 4096 bytes"},
	} {
		for _, piece := range []int{len(test.text) + 1, 1} {
			if piece == 1 && test.fails == "follow it" {
				continue // a complete response before those bytes
			}
			near, far := net.Pipe()
			go func() {
				for text := test.text; text != ""; {
					n := min(piece, len(text))
					if _, err := io.WriteString(far, text[:n]); err != nil {
						break
					}
					text = text[n:]
				}
				_ = far.Close()
			}()
			k := &connection{net: near, in: make([]byte, responseMax)}
			status, err := k.readResponse()
			_ = near.Close()
			if status != test.status || (err == nil) != (test.fails == "") || err != nil && !strings.Contains(err.Error(), test.fails) {
				t.Errorf("%q, %d bytes at a time: status %d, error %v; want %d, %q", test.text, piece, status, err, test.status, test.fails)
			}
		}
	}
}

// gate is a server that responds when the test allows it: 202 to the first request of
// an event, 409 to the others.
type gate struct {
	*httptest.Server

	open chan struct{}
	mu   sync.Mutex
	seen map[int]bool
}

func newGate(t *testing.T) *gate {
	t.Helper()
	g := &gate{open: make(chan struct{}), seen: map[int]bool{}}
	g.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			t.Error(err)
		}
		<-g.open
		g.mu.Lock()
		defer g.mu.Unlock()
		event := eventOf(body)
		if g.seen[event] {
			w.WriteHeader(http.StatusConflict)
			return
		}
		g.seen[event] = true
		w.WriteHeader(http.StatusAccepted)
		fmt.Fprint(w, "{}")
	}))
	t.Cleanup(g.Close)
	return g
}

// dialGate connects a client, whose responses go to list.
func dialGate(t *testing.T, g *gate, connections int, list *responses, event func(int) int, due func(int) time.Duration, now func() time.Duration) *client {
	t.Helper()
	c, err := dial(context.Background(), g.Listener.Addr().String(), connections, event,
		func(n, status int) { list.take(n, status, due(n), now()) }, func(err error) { t.Error(err) })
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.close(); err != nil {
			t.Error(err)
		}
	})
	return c
}

// TestOpenLoopCountsTheWaitForAConnection: there are two connections, and the server
// responds only when all requests are due, so all others wait in the queue. Each gets
// a response, and its latency counts from its due time: the first request waits
// longer than the last by the whole schedule.
func TestOpenLoopCountsTheWaitForAConnection(t *testing.T) {
	schedule := openloop.Schedule{Rate: 1000, Measured: 2 * time.Second, Duplicates: 10}
	g, list := newGate(t), newResponses(schedule.Events())
	list.expect(schedule.Events())
	var mu sync.Mutex
	var at time.Duration // advances only when the generator waits
	clock := openloop.Clock{
		Now:   func() time.Duration { mu.Lock(); defer mu.Unlock(); return at },
		Sleep: func(d time.Duration) { mu.Lock(); defer mu.Unlock(); at += d },
	}
	c := dialGate(t, g, 2, list, schedule.First, schedule.Due, clock.Now)
	gen := openloop.Generator{Schedule: schedule, Clock: clock, Send: c.submit}
	if err := gen.Run(context.Background()); err != nil {
		t.Fatal(err)
	}
	close(g.open)
	<-list.whole
	if want := schedule.Events() - 2; c.waited != want {
		t.Errorf("%d requests waited for a connection, want %d", c.waited, want)
	}
	duplicates := 0
	for n, a := range list.list {
		if a.got-a.due != clock.Now()-schedule.Due(n) {
			t.Fatalf("request %d took %v, want all the time since it was due, %v", n, a.got-a.due, clock.Now()-schedule.Due(n))
		}
		if a.status == http.StatusConflict {
			duplicates++
		}
	}
	if duplicates == 0 || len(g.seen) != schedule.Events()-duplicates {
		t.Errorf("%d duplicates and %d events among %d requests", duplicates, len(g.seen), schedule.Events())
	}
}

// TestClosedLoopEnds: the client sends until loop returns false, and is then idle.
func TestClosedLoopEnds(t *testing.T) {
	const requests = 500
	g, list := newGate(t), newResponses(requests)
	close(g.open)
	list.expect(requests)
	none := func(int) time.Duration { return 0 }
	c := dialGate(t, g, 7, list, func(n int) int { return n }, none, func() time.Duration { return 0 })
	n := 0
	c.run(func() (int, bool) {
		n++
		return n - 1, n <= requests
	})
	<-list.whole
	if err := c.rest(t.Context()); err != nil {
		t.Fatal(err)
	}
	if len(g.seen) != requests {
		t.Errorf("%d requests arrived, want %d", len(g.seen), requests)
	}
}

// TestClientReportsALostConnection: it is not a response.
func TestClientReportsALostConnection(t *testing.T) {
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	go func() {
		conn, err := listener.Accept()
		if err != nil {
			return
		}
		_, _ = io.ReadFull(conn, make([]byte, 10))
		_ = conn.Close()
	}()
	failed := make(chan error, 2)
	c, err := dial(t.Context(), listener.Addr().String(), 1, func(n int) int { return n }, func(int, int) { t.Error("a response") }, func(err error) { failed <- err })
	if err != nil {
		t.Fatal(err)
	}
	c.submit(3)
	if err := <-failed; !strings.Contains(err.Error(), "request 3") {
		t.Errorf("%v, want the request's number", err)
	}
	_ = c.close()
}
