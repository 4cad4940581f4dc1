package ingress

import (
	"bufio"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"oncebus/processor/kafkatest"
)

// responsesUntilClose writes text, and returns the responses until the server closes
// the connection.
func responsesUntilClose(t *testing.T, conn io.ReadWriter, text string) []reply {
	t.Helper()
	if _, err := io.WriteString(conn, text); err != nil {
		t.Fatal(err)
	}
	var all []reply
	for in := bufio.NewReader(conn); ; {
		response, err := http.ReadResponse(in, nil)
		if errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, io.EOF) || errors.Is(err, syscall.ECONNRESET) {
			return all
		}
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(response.Body)
		if err != nil {
			t.Fatal(err)
		}
		_ = response.Body.Close()
		all = append(all, reply{response, string(body)})
	}
}

// chunked is a request with a chunked body.
func chunked(body, version string, headers ...string) string {
	return fmt.Sprintf("POST /signals HTTP/%s\r\nHost: a\r\nTransfer-Encoding: chunked\r\n%s\r\n%x\r\n%s\r\n0\r\n\r\n", version, strings.Join(headers, ""), len(body), body)
}

// last is a request after which the connection closes.
func last(id string) string { return whole("/signals", event(id), "Connection", "close") }

// TestAmbiguousFramingClosesTheConnection: a chunked message, and one of HTTP/1.0, may be the end of a smuggled request,
// since net/http shows no handler whether Content-Length came too. So nothing after it is read.
func TestAmbiguousFramingClosesTheConnection(t *testing.T) {
	t.Parallel()
	b := newBench(t, signalRoutes)
	i := b.serve(nil)
	for n, c := range []struct {
		name, text string
		answered   int
	}{
		{"both", chunked(event("0"), "1.1", "Content-Length: 4\r\n"), 1},
		{"both, the length first", strings.Replace(chunked(event("1"), "1.1"), "Transfer", "content-length: 4\r\nTransfer", 1), 1},
		{"both, line feeds only", strings.ReplaceAll(chunked(event("2"), "1.1", "CONTENT-LENGTH:4\r\n"), "\r\n", "\n"), 1},
		{"a length that is right", chunked(event("3"), "1.1", fmt.Sprintf("Content-Length: %d\r\n", len(event("3")))), 1},
		{"both, behind another request", whole("/signals", event("before")) + chunked(event("4"), "1.1", "Content-Length: 4\r\n"), 2},
		{"both, and a value that goes on", chunked(event("5"), "1.1", "Content-Length:\r\n 4\r\n"), 1},
		{"chunked alone", chunked(event("6"), "1.1"), 1},
		{"HTTP/1.0", "POST /signals HTTP/1.0\r\nConnection: keep-alive\r\nTransfer-Encoding: chunked\r\nContent-Length: 13\r\n\r\n" + `{"id":"ten!"}`, 1},
		{"a length", whole("/signals", event("7")), 2},
	} {
		got := responsesUntilClose(t, i.dial(), c.text+last(fmt.Sprint("smuggled", n)))
		if len(got) != c.answered {
			t.Errorf("%s: %d responses, want %d", c.name, len(got), c.answered)
			continue
		}
		if end := got[len(got)-1]; !end.Close {
			t.Errorf("%s: the connection stays open after %s", c.name, end.Status)
		}
	}
	for _, r := range b.read("signals.unique", 1) {
		if strings.Contains(string(r.Value), "smuggled") && !strings.Contains(string(r.Value), "smuggled8") {
			t.Errorf("the output has %s", r.Value)
		}
	}
}

// TestEmptyLinesBeforeARequest are ignored (RFC 9112, section 2.2), also behind a request without a body.
func TestEmptyLinesBeforeARequest(t *testing.T) {
	t.Parallel()
	i := newBench(t, signalRoutes).serve(nil)
	conn := i.dial()
	in := bufio.NewReader(conn)
	for n, text := range []string{"\r\n\n" + whole("/signals", event("a")), "\n" + strings.Replace(whole("/x", ""), "POST", "GET", 1), "\r\n" + whole("/signals", event("b"))} {
		for _, part := range []string{"\r\n", text} {
			if _, err := io.WriteString(conn, part); err != nil {
				t.Fatal(err)
			}
		}
		response, err := http.ReadResponse(in, nil)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := io.Copy(io.Discard, response.Body); err != nil {
			t.Fatal(err)
		}
		_ = response.Body.Close()
		if want := []int{202, 404, 202}[n]; response.StatusCode != want {
			t.Errorf("request %d: status %d, want %d", n, response.StatusCode, want)
		}
	}
}

// TestLargeChunkIsRefusedAtOnce: its size alone is over the limit, and none of its bytes are awaited.
func TestLargeChunkIsRefusedAtOnce(t *testing.T) {
	t.Parallel()
	i := newBench(t, strings.Replace(signalRoutes, "path: /signals", "path: /signals\n      max_body: 64", 1)).serve(func(c *Config) { c.ReadTimeout, c.WriteTimeout = 5*time.Minute, 10*time.Minute })
	head := "POST /signals HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"
	for name, text := range map[string]string{"the first": head + "41\r\n", "a huge one": head + "ffffffffffffffff\r\n", "the second": head + "1\r\n \r\nffffffff\r\n"} {
		got := responsesUntilClose(t, i.dial(), text)
		if len(got) != 1 || !got[0].Close {
			t.Fatalf("%s: %d responses", name, len(got))
		}
		got[0].problem(t, name, "too-large", 413)
	}
	if got := responsesUntilClose(t, i.dial(), chunked(strings.Repeat(" ", 64-len(event("a")))+event("a"), "1.1")); len(got) != 1 || got[0].StatusCode != http.StatusAccepted {
		t.Errorf("as large as the limit: %v", got)
	}
}

// TestExpectIsAnsweredByWhoIsAuthorised: without the secret no 100 asks for the body.
func TestExpectIsAnsweredByWhoIsAuthorised(t *testing.T) {
	t.Parallel()
	i := serveSigned(newBench(t, signedRoutes))
	got := responsesUntilClose(t, i.dial(), raw("/signals", "", 9, "Expect", "100-continue"))
	if len(got) != 1 {
		t.Fatalf("%d responses", len(got))
	}
	got[0].problem(t, "without the secret", "signature", 401)
	conn := i.dial()
	if _, err := io.WriteString(conn, raw("/signals", "", 9, append([]string{"Expect", "100-continue"}, bearer...)...)); err != nil {
		t.Fatal(err)
	}
	if line, err := bufio.NewReader(conn).ReadString('\n'); err != nil || line != "HTTP/1.1 100 Continue\r\n" {
		t.Errorf("with the secret: %q, %v", line, err)
	}
}

// TestSecretsAreNotLogged: not in a path, nor in an id that a sender chose.
func TestSecretsAreNotLogged(t *testing.T) {
	t.Parallel()
	b := newBench(t, signedRoutes)
	i := serveSigned(b)
	const secret = "token-of-sender-a"
	i.post("/hooks/"+secret+"/x", "").want(t, "in the path", 404)
	i.post("/hooks/token%2Dof-sender-a", "").want(t, "in the path, encoded", 404)
	i.post("/"+strings.Repeat("x", pathLogBytes-len(secret)/2)+secret, "").want(t, "at the end of what is logged", 404)
	i.post("/signals", event("a"), append([]string{"X-Request-Id", "of-" + secret}, bearer...)...).want(t, "in the id", 202)
	if text := b.logs.String(); strings.Contains(text, secret) || strings.Contains(text, secret[:len(secret)/2]+`..`) || !strings.Contains(text, "/hooks/[secret]/x") || !strings.Contains(text, "of-[secret]") {
		t.Errorf("the log has the secret, or not what is in its place:\n%s", text)
	}
}

// TestOnePathForm: a path has one form, that of the routes file, so
// that a proxy's rule for a path covers all requests with it.
func TestOnePathForm(t *testing.T) {
	t.Parallel()
	b, i := claimBench(t)
	for _, path := range []string{
		"/orders/%6futcomes", "/orders/%6Futcomes", "/orders%2foutcomes", "/%6frders/outcomes", "/%6frders", "/orders%00", "/orders%20",
		"/orders/outcomes/", "/orders//outcomes", "//orders/outcomes", "/./orders", "/x/../orders", "/x/%2e%2e/orders", "/orders;a", "/Orders", "/orders#a",
		"/orders%3Fa", "/%2forders", "/openapi%2ejson",
	} {
		conn := i.dial()
		got := responsesUntilClose(t, conn, raw(path, "", 0, "Connection", "close", "Idempotency-Key", "k"))
		if len(got) != 1 {
			t.Fatalf("%s: %d responses", path, len(got))
		}
		got[0].problem(t, path, "not-found", 404)
	}
	i.post("/orders?%6f", `{}`, "Idempotency-Key", "k").want(t, "a query", 202)
	if n := len(b.read("orders.unique", 1)); n != 1 {
		t.Errorf("%d records in the output", n)
	}
}

// TestMalformedOverTLS: with TLS, malformed and ambiguous requests get the same
// responses, and one without TLS gets a problem too.
func TestMalformedOverTLS(t *testing.T) {
	t.Parallel()
	b := newBench(t, signalRoutes)
	dir := t.TempDir()
	authority := kafkatest.NewAuthority(t, "own")
	cert, key := authority.Issue("server", time.Now().Add(time.Hour))
	writeCertificate(t, dir, cert, key)
	i := b.serve(func(c *Config) {
		c.TLSCertFile, c.TLSKeyFile = filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem")
	})
	dial := func() net.Conn {
		return tls.Client(i.dial(), &tls.Config{RootCAs: authority.Pool(), ServerName: "127.0.0.1", NextProtos: []string{"http/1.1"}})
	}
	got := responsesUntilClose(t, dial(), "POST /signals HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n")
	if len(got) != 1 {
		t.Fatalf("%d responses", len(got))
	}
	got[0].problem(t, "two hosts", "malformed", 400)
	got = responsesUntilClose(t, dial(), chunked(event("a"), "1.1", "Content-Length: 4\r\n")+last("smuggled"))
	if len(got) != 1 || !got[0].Close {
		t.Fatalf("ambiguous: %d responses", len(got))
	}
	got = responsesUntilClose(t, i.dial(), last("plain"))
	if len(got) != 1 {
		t.Fatalf("without TLS: %d responses", len(got))
	}
	if p := got[0].problem(t, "without TLS", "malformed", 400); !strings.Contains(p.Detail, "https") {
		t.Errorf("detail %q", p.Detail)
	}
	if !strings.Contains(b.logs.String(), "tls handshake failed") {
		t.Error("the handshake is not in the log")
	}
}
