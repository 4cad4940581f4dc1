package ingress

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"
)

// TestSlowClients: after the read timeout a client that sent nothing, half a
// head or half a body gets a 408 or is disconnected, and uses no limit.
func TestSlowClients(t *testing.T) {
	t.Parallel()
	b := newBench(t, signalRoutes)
	i := b.serve(func(c *Config) { c.ReadTimeout = time.Second })
	body := i.begin("/signals", 100)
	if _, err := body.Write([]byte("{")); err != nil {
		t.Fatal(err)
	}
	if status, closes := body.response(t); status != 408 || !closes {
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
		if line, err := bufio.NewReader(conn).ReadString('\n'); err == nil && !strings.Contains(line, "408") {
			t.Errorf("after %q: %q", head, line)
		}
		_ = conn.Close()
	}
	b.wait("nothing to be in flight", func() bool { return i.Requests() == 0 && i.count("oncebus_http_body_bytes") == 0 })
	cut := i.begin("/signals", 100)
	b.wait("the request to be in flight", func() bool { return i.Requests() == 1 })
	_ = cut.Close()
	b.wait("the request to end", func() bool { return i.Requests() == 0 })
}

// TestWaitIsLongerThanReadTimeout: the read timeout does not bound the wait for
// the verdict.
func TestWaitIsLongerThanReadTimeout(t *testing.T) {
	t.Parallel()
	b := newBench(t, withHTTP("timeout: 2s"))
	i := b.serve(func(c *Config) { c.ReadTimeout = 500 * time.Millisecond })
	b.stopJudging(i)
	i.post("/signals", event("a")).problem(t, "no verdict", "verdict-timeout", 504)
}

// endless repeats a text without end.
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

// TestHostileBodiesAreRefused: bodies that are too large, compressed or not JSON
// get their problem, many at once, and are not read to their end.
func TestHostileBodiesAreRefused(t *testing.T) {
	i, _ := attackBench(t)
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
		{"bomb without its coding", bomb.String(), bomb.Len(), "", []int{400, 503}},
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
				body = io.LimitReader(body, int64(a.length)) // the client waits for the end of the response
			}
			r := i.request(http.MethodPost, "/signals", body)
			r.ContentLength = int64(a.length)
			if a.coding != "" {
				r.Header.Set("Content-Encoding", a.coding)
			}
			got, err := i.try(i.b.http, r)
			if err != nil {
				return // the response may be lost while the client still sends
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
