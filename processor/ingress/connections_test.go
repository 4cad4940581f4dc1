package ingress

import (
	"bytes"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	"oncebus/processor/kafkatest"
)

// patient sets timeouts that no test reaches.
func patient(c *Config) {
	c.ReadTimeout, c.WriteTimeout, c.IdleTimeout = 50*time.Minute, time.Hour, time.Hour
}

// postOnce sends a request over a connection of its own.
func (i *instance) postOnce(path, body string) (reply, error) {
	transport := &http.Transport{DisableKeepAlives: true}
	defer transport.CloseIdleConnections()
	return i.try(&http.Client{Transport: transport, Timeout: 60 * time.Second}, i.request(http.MethodPost, path, strings.NewReader(body)))
}

// http2Head returns frames of HTTP/2: the preface, settings, and the headers of a
// request with the body, or without their end.
func http2Head(t *testing.T, body string, end bool) []byte {
	t.Helper()
	var out, fields bytes.Buffer
	out.WriteString(http2.ClientPreface)
	framer := http2.NewFramer(&out, nil)
	encoder := hpack.NewEncoder(&fields)
	for _, f := range [][2]string{{":method", "POST"}, {":scheme", "http"}, {":path", "/signals"}, {":authority", "a"}} {
		_ = encoder.WriteField(hpack.HeaderField{Name: f[0], Value: f[1]}) // into memory
	}
	if err := errors.Join(framer.WriteSettings(), framer.WriteSettingsAck(),
		framer.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: fields.Bytes(), EndHeaders: end})); err != nil {
		t.Fatal(err)
	}
	if end {
		if err := framer.WriteData(1, true, []byte(body)); err != nil {
			t.Fatal(err)
		}
	}
	return out.Bytes()
}

// TestNewConnectionReplacesOneWithoutARequest: at the limit, clients that are idle,
// have sent nothing or part of a head make room for one that sends a request.
func TestNewConnectionReplacesOneWithoutARequest(t *testing.T) {
	t.Parallel()
	const most = 4
	b := newBench(t, signalRoutes)
	for what, text := range map[string]string{
		"nothing sent":             "",
		"part of a head":           "POST /signals HTTP/1.1\r\nHost: a\r\nX-Slow: ",
		"idle after a request":     whole("/signals", event("a")),
		"part of the next head":    whole("/signals", event("a")) + "PO",
		"HTTP/2, idle":             http2.ClientPreface + "\x00\x00\x00\x04\x00\x00\x00\x00\x00",
		"HTTP/2, part of a head":   string(http2Head(t, "", false)),
		"HTTP/2, after a request":  string(http2Head(t, event("a"), true)),
		"HTTP/2, part of preface":  http2.ClientPreface[:20],
		"HTTP/2, part of a frame":  http2.ClientPreface + "\x00\x00",
		"bytes that are not HTTP.": "\x16\x03\x01",
	} {
		i := b.serve(func(c *Config) {
			patient(c)
			c.MaxConnections = most
		})
		conns := make([]net.Conn, most)
		for n := range conns {
			conns[n] = i.dial()
			if _, err := io.WriteString(conns[n], text); err != nil {
				t.Fatal(err)
			}
		}
		b.wait("the connections to be accepted", func() bool { return i.count("oncebus_http_connections") == most })
		if strings.Contains(text, "{") {
			b.wait("their requests", func() bool { return i.count("oncebus_http_requests_total") == most && i.Requests() == 0 })
		}
		for n := range 2 * most {
			got, err := i.postOnce("/signals", event(fmt.Sprint(what, n)))
			if err != nil {
				t.Fatalf("%s: %v", what, err)
			}
			got.want(t, what, 202)
		}
		if n := i.count("oncebus_http_connections_replaced_total"); n < 1 {
			t.Errorf("%s: %v connections were replaced", what, n)
		}
		for _, conn := range conns {
			_ = conn.Close()
		}
		i.stop()
	}
}

// TestLongestWithoutARequestIsReplaced: not the newest, which may be about to send its request, nor one that just had its response.
func TestLongestWithoutARequestIsReplaced(t *testing.T) {
	t.Parallel()
	b := newBench(t, signalRoutes)
	i := b.serve(func(c *Config) {
		patient(c)
		c.MaxConnections = 3
	})
	var conns []net.Conn
	for opened, closed := range []int{0: -1, 1: -1, 2: -1, 3: 0, 4: 2} {
		conns = append(conns, i.dial())
		b.wait("it to be accepted", func() bool {
			return int(i.count("oncebus_http_connections")+i.count("oncebus_http_connections_replaced_total")) == opened+1
		})
		if closed < 0 {
			continue
		}
		if err := conns[closed].SetReadDeadline(time.Now().Add(60 * time.Second)); err != nil {
			t.Fatal(err)
		}
		if _, err := conns[closed].Read(make([]byte, 1)); errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("connection %d is open, although %d are", closed, opened+1)
		}
		if _, err := io.WriteString(conns[1], whole("/signals", event(fmt.Sprint(opened)))); err != nil {
			t.Fatal(err)
		}
		if status, _ := (slow{conns[1]}).response(t); status != 202 {
			t.Errorf("status %d", status)
		}
		b.wait("its response to be over", func() bool { return i.Requests() == 0 })
	}
}

// TestConnectionsWithRequestsAreNotReplaced: a new connection waits until one of them
// has its response.
func TestConnectionsWithRequestsAreNotReplaced(t *testing.T) {
	t.Parallel()
	b := newBench(t, withHTTP("timeout: 50s"))
	i := b.serve(func(c *Config) { c.MaxConnections = 2 })
	release := b.stopJudging(i)
	b.http.CloseIdleConnections()
	conns := []slow{i.begin("/signals", len(event("a"))), i.begin("/signals", len(event("b")))}
	for n, conn := range conns {
		if _, err := io.WriteString(conn, event(string(rune('a'+n)))); err != nil {
			t.Fatal(err)
		}
	}
	b.wait("two to wait", func() bool { return i.Requests() == 2 })
	third := make(chan reply, 1)
	go func() {
		got, err := i.postOnce("/signals", event("c"))
		if err != nil {
			t.Error(err)
		}
		third <- got
	}()
	release()
	for _, conn := range conns {
		if status, _ := conn.response(t); status != 202 {
			t.Errorf("status %d", status)
		}
	}
	(<-third).want(t, "third", 202)
}

// TestSlowHeadsEnd: a head of HTTP/1 that does not end closes its connection after ReadTimeout, on a fresh connection and on
// one that had a request, and IdleTimeout ends every other connection that has no request, whatever it sends.
func TestSlowHeadsEnd(t *testing.T) {
	t.Parallel()
	b := newBench(t, signalRoutes)
	after := string(http2Head(t, event("a"), true))
	for name, c := range map[string]struct {
		change func(*Config)
		cases  map[string][2]string // what is sent before and after the first response
	}{
		"READ_TIMEOUT": {func(c *Config) { c.ReadTimeout, c.IdleTimeout = time.Second, time.Hour }, map[string][2]string{
			"a head":                  {"", "POST /signals HTTP/1.1\r\nX-Slow: "},
			"its next request":        {whole("/signals", event("a")), "POST"},
			"HTTP/2, a part of begin": {"", http2.ClientPreface[:16]},
		}},
		"IDLE_TIMEOUT": {func(c *Config) { c.IdleTimeout = time.Second }, map[string][2]string{
			"a byte":                      {whole("/signals", event("a")), "P"},
			"HTTP/2":                      {"", string(http2Head(t, "", false))},
			"HTTP/2, its next request":    {after, "\x00\x00\x01\x01\x00\x00\x00\x00\x03\x82"},
			"HTTP/2, headers without end": {after, "\x00\x00\x01\x01\x01\x00\x00\x00\x03\x82\x00\x00\x00\x09\x00\x00\x00\x00\x03"},
			"HTTP/2, part of a frame":     {after, "\x00"},
			"HTTP/2, a part after a ping": {after, "\x00\x00\x08\x06\x00\x00\x00\x00\x00abcdefgh\x00\x00\x01"},
		}},
	} {
		i := b.serve(c.change)
		for what, parts := range c.cases {
			conn, answered := i.dial(), i.count("oncebus_http_requests_total")
			if _, err := io.WriteString(conn, parts[0]); err != nil {
				t.Fatal(err)
			}
			if parts[0] != "" {
				b.wait("the first request", func() bool { return i.count("oncebus_http_requests_total") > answered && i.Requests() == 0 })
			}
			_, _ = io.WriteString(conn, parts[1]) // IdleTimeout may have closed it
			if err := conn.SetReadDeadline(time.Now().Add(60 * time.Second)); err != nil {
				t.Fatal(err)
			}
			var timeout net.Error
			if _, err := io.Copy(io.Discard, conn); errors.As(err, &timeout) && timeout.Timeout() {
				t.Errorf("%s, %s: the connection stays open", name, what)
			}
		}
	}
}

// TestTLSConnectionsAreBounded: the bound holds inside TLS, too, and for a client that
// begins no handshake.
func TestTLSConnectionsAreBounded(t *testing.T) {
	t.Parallel()
	b := newBench(t, signalRoutes)
	dir, authority := t.TempDir(), kafkatest.NewAuthority(t, "authority")
	cert, key := authority.Issue("server", time.Now().Add(time.Hour))
	writeCertificate(t, dir, cert, key)
	i := b.serve(func(c *Config) {
		patient(c)
		c.MaxConnections = 1
		c.TLSCertFile, c.TLSKeyFile = filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem")
	})
	i.url = "https://" + i.addr
	i.dial() // begins no handshake
	b.wait("it to be accepted", func() bool { return i.count("oncebus_http_connections") == 1 })
	second := tls.Client(i.dial(), &tls.Config{RootCAs: authority.Pool(), ServerName: "server", NextProtos: []string{"h2"}})
	if _, err := second.Write(http2Head(t, event("a"), true)); err != nil {
		t.Fatal(err)
	}
	b.wait("its request", func() bool { return i.count("oncebus_http_requests_total", "code", "202") == 1 && i.Requests() == 0 })
	if n := i.count("oncebus_http_connections_replaced_total"); n != 1 {
		t.Errorf("%v connections were replaced", n)
	}
	plain := i.dial()
	if _, err := io.WriteString(plain, whole("/signals", event("a"))); err != nil {
		t.Fatal(err)
	}
	if text, _ := io.ReadAll(plain); !strings.Contains(string(text), "the server speaks TLS: use https") {
		t.Errorf("a request without TLS: %q", text)
	}
	if !strings.Contains(b.logs.String(), "tls handshake failed") {
		t.Error("the log has no failed handshake")
	}
}
