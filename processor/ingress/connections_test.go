package ingress

import (
	"bytes"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
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
		if n := i.count("oncebus_http_connections_closed_total", "reason", "replaced"); n < 1 {
			t.Errorf("%s: %v connections were replaced", what, n)
		}
		for _, conn := range conns {
			_ = conn.Close()
		}
		i.stop()
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

// TestSlowHeadsEnd: a head that does not end closes its connection after ReadTimeout,
// on a fresh connection and on one that had a request. IdleTimeout would be an hour.
func TestSlowHeadsEnd(t *testing.T) {
	t.Parallel()
	b := newBench(t, signalRoutes)
	i := b.serve(func(c *Config) { c.ReadTimeout, c.IdleTimeout = 2*time.Second, time.Hour })
	after := string(http2Head(t, event("a"), true))
	cases := map[string][2]string{
		"HTTP/1":                       {"", "POST /signals HTTP/1.1\r\nX-Slow: "},
		"HTTP/1, its next request":     {whole("/signals", event("a")), "PO"},
		"HTTP/2":                       {"", string(http2Head(t, "", false))},
		"HTTP/2, its next request":     {after, "\x00\x00\x01\x01\x00\x00\x00\x00\x03\x82"},
		"HTTP/2, headers without end":  {after, "\x00\x00\x01\x01\x01\x00\x00\x00\x03\x82\x00\x00\x00\x09\x00\x00\x00\x00\x03"},
		"HTTP/2, part of a frame":      {after, "\x00"},
		"HTTP/2, part of its payload":  {after, "\x00\x00\x08\x06\x00\x00\x00\x00\x00abc"},
		"HTTP/2, part of the preface":  {"", http2.ClientPreface[:16]},
		"HTTP/2, a part after a ping":  {after, "\x00\x00\x08\x06\x00\x00\x00\x00\x00abcdefgh\x00\x00\x01"},
		"HTTP/2, settings and a piece": {"", http2.ClientPreface + "\x00\x00\x00\x04\x00\x00\x00\x00\x00\x00\x00\x01\x01"},
	}
	conns, first := map[string]net.Conn{}, 0
	write := func(what, text string) {
		t.Helper()
		if conns[what] == nil {
			conns[what] = i.dial()
		}
		if _, err := io.WriteString(conns[what], text); err != nil {
			t.Fatal(err)
		}
	}
	for what, parts := range cases {
		if parts[0] != "" {
			write(what, parts[0])
		}
		if strings.Contains(parts[0], event("a")) {
			first++
		}
	}
	b.wait("the first requests", func() bool { return int(i.count("oncebus_http_requests_total")) == first && i.Requests() == 0 })
	for what, parts := range cases {
		write(what, parts[1])
	}
	for what, conn := range conns {
		if err := conn.SetReadDeadline(time.Now().Add(60 * time.Second)); err != nil {
			t.Fatal(err)
		}
		var timeout net.Error
		if _, err := io.Copy(io.Discard, conn); errors.As(err, &timeout) && timeout.Timeout() {
			t.Errorf("%s: the connection stays open", what)
		}
	}
	// net/http bounds the first head, too.
	if n := int(i.count("oncebus_http_connections_closed_total", "reason", "slow")); n < first || n > len(cases) {
		t.Errorf("%d connections are counted as slow, want %d to %d", n, first, len(cases))
	}
}

// TestHeadReader: split at any byte, only complete frames without an open head are no
// incomplete head.
func TestHeadReader(t *testing.T) {
	text := http2Head(t, event("a"), true)
	complete := []int{} // positions in text after which no head is incomplete
	reader := bytes.NewReader(text[len(http2.ClientPreface):])
	framer := http2.NewFramer(nil, reader)
	for {
		complete = append(complete, len(text)-reader.Len())
		if _, err := framer.ReadFrame(); err != nil {
			break
		}
	}
	for step := 1; step < 30; step++ {
		var h headReader
		for at := 0; at < len(text); {
			n := min(step, len(text)-at)
			h.read(text[at : at+n])
			at += n
			if got, want := h.incomplete(), !slices.Contains(complete, at); got != want {
				t.Errorf("%d bytes at a time: after %d incomplete is %v", step, at, got)
			}
			h.setActive(false) // HTTP/2 depends on its frames alone
		}
	}
	var h headReader
	h.read([]byte("PRI * HTTP/1.1\r\n"))
	if !h.incomplete() {
		t.Error("a head of HTTP/1 is not incomplete")
	}
	h.setActive(true)
	if h.read([]byte("a body")); h.incomplete() {
		t.Error("a body is an incomplete head")
	}
	if h.setActive(false); h.incomplete() {
		t.Error("an idle connection has an incomplete head")
	}
	if h.read([]byte("P")); !h.incomplete() {
		t.Error("a second head is not incomplete")
	}
}

// addressed is a connection with an address of the peer.
type addressed struct {
	net.Conn
	addr netip.Addr
}

func (a addressed) RemoteAddr() net.Addr {
	return net.TCPAddrFromAddrPort(netip.AddrPortFrom(a.addr, 1))
}

// addressedListener accepts connections of its channel.
type addressedListener struct {
	net.Listener
	next chan net.Conn
}

func (l addressedListener) Accept() (net.Conn, error) { return <-l.next, nil }

// TestSourceWithMostConnectionsLosesOne: of the sources, the one with most connections
// without a request loses its longest.
func TestSourceWithMostConnectionsLosesOne(t *testing.T) {
	cfg := DefaultConfig()
	cfg.MaxConnections = 5
	next := make(chan net.Conn, 1)
	l := newConnections(addressedListener{next: next}, cfg, newMetrics(prometheus.NewRegistry()))
	var open []string
	name := map[*place]string{}
	accept := func(what, addr string) *place {
		t.Helper()
		near, far := net.Pipe()
		t.Cleanup(func() { _ = far.Close() })
		next <- addressed{near, netip.MustParseAddr(addr)}
		conn, err := l.Accept()
		if err != nil {
			t.Fatal(err)
		}
		c := conn.(*place) //nolint:forcetypeassert // it makes no others
		name[c] = what
		open = open[:0]
		for c, what := range name {
			if !c.gone {
				open = append(open, what)
			}
		}
		slices.Sort(open)
		return c
	}
	want := func(names string) {
		t.Helper()
		if got := strings.Join(open, " "); got != names {
			t.Errorf("open are %s, want %s", got, names)
		}
	}
	a1 := accept("a1", "192.0.2.1")
	accept("b1", "2001:db8::1")
	accept("a2", "192.0.2.1")
	accept("a3", "192.0.2.1")
	a1.setActive(true)
	accept("b2", "2001:db8::2") // the same network
	want("a1 a2 a3 b1 b2")
	accept("c1", "192.0.2.3") // both have two that are idle: b1 is the oldest
	want("a1 a2 a3 b2 c1")
	accept("d1", "192.0.2.4")
	want("a1 a3 b2 c1 d1")
	a1.setActive(false) // a has two again, a3 is the longest
	accept("a4", "192.0.2.1")
	want("a1 a4 b2 c1 d1")
	if l.open != 5 {
		t.Errorf("%d are open", l.open)
	}
	for c := range name {
		_ = c.Close()
		_ = c.Close() // net/http may close twice
	}
	if l.open != 0 || len(l.idle) != 0 {
		t.Errorf("%d are open, %d sources are idle", l.open, len(l.idle))
	}
}

// TestTLSConnectionsAreBounded: the bounds hold inside TLS, too, and for a client that
// begins no handshake.
func TestTLSConnectionsAreBounded(t *testing.T) {
	t.Parallel()
	b := newBench(t, signalRoutes)
	dir, authority := t.TempDir(), kafkatest.NewAuthority(t, "authority")
	cert, key := authority.Issue("server", time.Now().Add(time.Hour))
	writeCertificate(t, dir, cert, key)
	i := b.serve(func(c *Config) {
		patient(c)
		c.ReadTimeout, c.MaxConnections = 10*time.Second, 1
		c.TLSCertFile, c.TLSKeyFile = filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem")
	})
	i.url = "https://" + i.addr
	i.dial() // begins no handshake
	b.wait("it to be accepted", func() bool { return i.count("oncebus_http_connections") == 1 })
	dribble := tls.Client(i.dial(), &tls.Config{RootCAs: authority.Pool(), ServerName: "server", NextProtos: []string{"h2"}})
	if _, err := dribble.Write(http2Head(t, event("a"), true)); err != nil {
		t.Fatal(err)
	}
	b.wait("its request", func() bool { return i.count("oncebus_http_requests_total", "code", "202") == 1 && i.Requests() == 0 })
	if n := i.count("oncebus_http_connections_closed_total", "reason", "replaced"); n != 1 {
		t.Errorf("%v connections were replaced", n)
	}
	if _, err := dribble.Write([]byte("\x00\x00\x01\x01\x00\x00\x00\x00\x03\x82")); err != nil {
		t.Fatal(err)
	}
	if err := dribble.SetReadDeadline(time.Now().Add(60 * time.Second)); err != nil {
		t.Fatal(err)
	}
	var timeout net.Error
	if _, err := io.Copy(io.Discard, dribble); errors.As(err, &timeout) && timeout.Timeout() {
		t.Error("the connection stays open")
	}
	if n := i.count("oncebus_http_connections_closed_total", "reason", "slow"); n != 1 {
		t.Errorf("%v connections were slow", n)
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
