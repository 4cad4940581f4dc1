package ingress

import (
	"bufio"
	"crypto/hmac"
	"crypto/sha256"
	"crypto/tls"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"syscall"
	"testing"
	"time"
)

// reply is a response with its body.
type reply struct {
	*http.Response
	text string
}

// send sends a request; headers are name, value, name, value.
func (i *instance) send(method, path, body string, headers ...string) reply {
	i.b.t.Helper()
	r, err := i.try(i.b.http, i.request(method, path, strings.NewReader(body), headers...))
	if err != nil {
		i.b.t.Fatal(err)
	}
	return r
}

func (i *instance) post(path, body string, headers ...string) reply {
	i.b.t.Helper()
	return i.send(http.MethodPost, path, body, headers...)
}

func (i *instance) request(method, path string, body io.Reader, headers ...string) *http.Request {
	i.b.t.Helper()
	r, err := http.NewRequestWithContext(i.b.t.Context(), method, i.url+path, body)
	if err != nil {
		i.b.t.Fatal(err)
	}
	for n := 0; n < len(headers); n += 2 {
		r.Header.Add(headers[n], headers[n+1])
	}
	return r
}

func (i *instance) try(client *http.Client, r *http.Request) (reply, error) {
	response, err := client.Do(r)
	if err != nil {
		return reply{}, err
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	return reply{response, string(text)}, err
}

// later sends a request and returns a channel for its reply.
func (i *instance) later(path, body string, headers ...string) <-chan reply {
	i.b.t.Helper()
	r := i.request(http.MethodPost, path, strings.NewReader(body), headers...)
	received := make(chan reply, 1)
	go func() {
		got, err := i.try(i.b.http, r)
		if err != nil {
			i.b.t.Error(err)
		}
		received <- got
	}()
	return received
}

// want checks the status, and that the body contains the texts.
func (r reply) want(t *testing.T, what string, status int, contains ...string) reply {
	t.Helper()
	if r.Response == nil {
		t.Fatalf("%s: no reply", what)
	}
	if r.StatusCode != status {
		t.Errorf("%s: status %d, want %d: %s", what, r.StatusCode, status, r.text)
	}
	for _, text := range contains {
		if !strings.Contains(r.text, text) {
			t.Errorf("%s: the body %q does not contain %q", what, r.text, text)
		}
	}
	return r
}

// problem checks that the reply is the named problem.
func (r reply) problem(t *testing.T, what, name string, status int) problemBody {
	t.Helper()
	r.want(t, what, status)
	var p problemBody
	if err := json.Unmarshal([]byte(r.text), &p); err != nil {
		t.Fatalf("%s: %v: %q", what, err, r.text)
	}
	if p.Type != "/problems/"+name || p.Status != status || p.Title == "" || r.Header.Get("Content-Type") != "application/problem+json" {
		t.Errorf("%s: want problem %s with status %d: %s: %s", what, name, status, r.Header.Get("Content-Type"), r.text)
	}
	return p
}

func (r reply) header(t *testing.T, what, name, value string) reply {
	t.Helper()
	if got := r.Header.Get(name); got != value {
		t.Errorf("%s: header %s is %q, want %q", what, name, got, value)
	}
	return r
}

// secure returns a separate client for a server with TLS.
func (i *instance) secure(config *tls.Config, http2 bool) *http.Client {
	transport := &http.Transport{TLSClientConfig: config, ForceAttemptHTTP2: http2}
	i.b.t.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Transport: transport, Timeout: 60 * time.Second}
}

// dial opens a connection for raw bytes.
func (i *instance) dial() net.Conn {
	i.b.t.Helper()
	conn, err := (&net.Dialer{}).DialContext(i.b.t.Context(), "tcp", i.addr)
	if err != nil {
		i.b.t.Fatal(err)
	}
	i.b.t.Cleanup(func() { _ = conn.Close() })
	return conn
}

// slow is a request that is sent in pieces.
type slow struct{ net.Conn }

// begin sends the head of a request.
func (i *instance) begin(path string, length int) slow {
	i.b.t.Helper()
	conn, err := (&net.Dialer{}).DialContext(i.b.t.Context(), "tcp", i.addr)
	if err != nil {
		i.b.t.Fatal(err)
	}
	i.b.t.Cleanup(func() { _ = conn.Close() })
	if _, err := fmt.Fprintf(conn, "POST %s HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n", path, length); err != nil {
		i.b.t.Fatal(err)
	}
	return slow{conn}
}

// response returns the status, and whether the connection closes.
func (s slow) response(t *testing.T) (status int, closes bool) {
	t.Helper()
	response, err := http.ReadResponse(bufio.NewReader(s), nil)
	if err != nil {
		t.Fatal(err)
	}
	_ = response.Body.Close()
	return response.StatusCode, response.Close
}

// half is a client that closes its sending side and still reads.
type half struct {
	*net.TCPConn
	t *testing.T
}

func (i *instance) halfClose(text string) half {
	i.b.t.Helper()
	conn := i.dial().(*net.TCPConn) //nolint:forcetypeassert // the network is tcp
	if _, err := io.WriteString(conn, text); err != nil {
		i.b.t.Fatal(err)
	}
	return half{conn, i.b.t}
}

// responses closes the sending side and returns the responses until the server
// closes the connection. An implicit response of net/http fails the test.
func (h half) responses() []reply {
	h.t.Helper()
	if err := h.CloseWrite(); err != nil {
		h.t.Fatal(err)
	}
	var all []reply
	for in := bufio.NewReader(h); ; {
		response, err := http.ReadResponse(in, nil)
		if errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, syscall.ECONNRESET) {
			return all
		}
		if err != nil {
			h.t.Fatal(err)
		}
		text, err := io.ReadAll(response.Body)
		if err != nil {
			h.t.Fatal(err)
		}
		_ = response.Body.Close()
		if response.Header.Get("X-Content-Type-Options") != "nosniff" {
			h.t.Fatalf("a response of net/http: %s %v %q", response.Status, response.Header, text)
		}
		all = append(all, reply{response, string(text)})
	}
}

// raw is the bytes of a request.
func raw(path, body string, length int, headers ...string) string {
	var more strings.Builder
	for n := 0; n < len(headers); n += 2 {
		fmt.Fprintf(&more, "%s: %s\r\n", headers[n], headers[n+1])
	}
	return fmt.Sprintf("POST %s HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n%s\r\n%s", path, length, &more, body)
}

func whole(path, body string, headers ...string) string {
	return raw(path, body, len(body), headers...)
}

// onlyReader hides a reader's length.
type onlyReader struct{ r *strings.Reader }

func (o *onlyReader) Read(p []byte) (int, error) { return o.r.Read(p) }

func sign(secret, body string) string {
	mac := hmac.New(sha256.New, []byte(secret))
	mac.Write([]byte(body))
	return hex.EncodeToString(mac.Sum(nil))
}
