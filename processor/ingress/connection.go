package ingress

import (
	"bytes"
	"container/list"
	"context"
	"crypto/tls"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"sync"
	"time"
)

// connection is an accepted connection. For HTTP/1 it observes what net/http hides from the handler: how long
// the next chunk will be, empty lines before a request, and the responses that net/http itself writes to
// malformed HTTP, which connection replaces by problems.
//
// With TLS, connection wraps the TLS connection, so that net/http treats it as a plain connection. net/http
// then recognises HTTP/2 by its preface, as it does without TLS.
type connection struct {
	net.Conn
	raw net.Conn // the TCP connection below TLS
	of  *connections

	// These fields belong to connections and are guarded by its lock.
	gone  bool
	quiet *list.Element // nil while the connection has a request

	// Only Read uses these fields, and net/http calls it from one goroutine at a time.
	shook   bool  // the TLS handshake is over
	refused error // why the TLS handshake failed

	mu      sync.Mutex // needed because net/http reads in the background while a handler runs
	framing framing
	// handled is true while a handler, and not net/http itself, writes the response.
	handled bool
	// chunkMax is the longest chunk in bytes that the handler accepts; 0 until the handler has set it.
	chunkMax uint64
}

// Close implements net.Conn.
func (c *connection) Close() error {
	c.of.mu.Lock()
	c.of.forget(c)
	c.of.mu.Unlock()
	return c.Conn.Close()
}

// connectionKey is the key under which the context of a request has its connection.
type connectionKey struct{}

// withConnection makes the connection of a request available to the handler of that request.
func withConnection(ctx context.Context, conn net.Conn) context.Context {
	return context.WithValue(ctx, connectionKey{}, conn)
}

// connectionState is the ConnState callback of the http.Server.
func connectionState(conn net.Conn, state http.ConnState) {
	// Between the end of a response and the call of the next handler, only net/http itself writes responses.
	if c, ok := conn.(*connection); ok && (state == http.StateActive || state == http.StateIdle) {
		c.mu.Lock()
		c.handled = false
		c.mu.Unlock()
		c.of.setActive(c, state == http.StateActive)
	}
}

// beginRequest marks that a handler has the request. It reports whether the connection must close after the
// response, because another reader of the same bytes, such as a proxy, could see the message end elsewhere (RFC
// 9112, section 6.1).
//
// Such a message has both Transfer-Encoding and Content-Length, or has Transfer-Encoding in HTTP/1.0. net/http
// removes one of the two headers before a handler sees them. beginRequest therefore reports true for every
// chunked message of HTTP/1.1, and for every message of HTTP/1.0.
func beginRequest(r *http.Request) (ambiguous bool) {
	c, ok := r.Context().Value(connectionKey{}).(*connection)
	if !ok || r.ProtoMajor != 1 {
		return false
	}
	c.mu.Lock()
	c.handled = true
	c.mu.Unlock()
	return len(r.TransferEncoding) > 0 || r.ProtoMinor == 0
}

// boundChunks makes a read of the body fail at once when a single chunk is over the limit, where net/http would
// wait for the bytes of the chunk. The connection closes after a chunked body, so the bound never applies to a
// later request.
func boundChunks(r *http.Request, limit int) {
	if c, ok := r.Context().Value(connectionKey{}).(*connection); ok && len(r.TransferEncoding) > 0 {
		c.mu.Lock()
		c.chunkMax = uint64(limit)
		c.mu.Unlock()
	}
}

// Read implements net.Conn. It does the TLS handshake first, fails for a chunk over the limit, and drops empty
// lines between requests.
func (c *connection) Read(p []byte) (int, error) {
	if conn, ok := c.Conn.(*tls.Conn); ok && !c.shook {
		c.shook, c.refused = true, c.handshake(conn)
	}
	if c.refused != nil {
		return 0, c.refused
	}
	for {
		c.mu.Lock()
		limit, chunk := c.chunkMax, c.framing.chunk()
		c.mu.Unlock()
		if limit > 0 && chunk > limit {
			return 0, &http.MaxBytesError{Limit: int64(limit)}
		}
		n, err := c.Conn.Read(p)
		received := n > 0
		c.mu.Lock()
		if c.framing.between() { // net/http itself ignores empty lines behind a POST alone
			n = copy(p, bytes.TrimLeft(p[:n], "\r\n"))
		}
		c.framing.scan(p[:n])
		c.mu.Unlock()
		if n > 0 || !received || err != nil {
			return n, err
		}
	}
}

// handshake does the TLS handshake, as net/http does for a TLS connection. net/http has set the read deadline
// already.
func (c *connection) handshake(conn *tls.Conn) error {
	_ = conn.SetWriteDeadline(time.Now().Add(c.of.server.cfg.ReadTimeout))
	err := conn.HandshakeContext(context.Background())
	if err == nil {
		return conn.SetWriteDeadline(time.Time{})
	}
	var header tls.RecordHeaderError
	if errors.As(err, &header) && header.Conn != nil { // the client sent no TLS, and so most likely HTTP
		_, _ = header.Conn.Write(problemMalformed.respond("the server speaks TLS: use https").implicit()) // the client may have disconnected
	}
	c.of.server.log.LogAttrs(context.Background(), slog.LevelWarn, "tls handshake failed", slog.String("peer", c.RemoteAddr().String()), slog.Any("error", err))
	return &net.OpError{Op: "read", Net: "tcp", Err: err} // net/http responds to no error of this type
}

// Write replaces a response that net/http itself writes by the problem that has the same status.
func (c *connection) Write(p []byte) (int, error) {
	c.mu.Lock()
	handled := c.handled
	c.mu.Unlock()
	if handled {
		return c.Conn.Write(p)
	}
	status, detail, ok := implicitResponse(p)
	if !ok {
		return c.Conn.Write(p) // HTTP/2
	}
	problem, known := implicitProblems[status]
	if !known {
		problem = problemMalformed
	}
	response := problem.respond(detail)
	c.of.server.metrics.requests.WithLabelValues("", response.statusText(), response.name).Inc()
	c.of.server.log.LogAttrs(context.Background(), slog.LevelInfo, "malformed request",
		slog.Int("status", response.status), slog.String("response", response.name), slog.String("reason", detail), slog.String("peer", c.RemoteAddr().String()))
	if _, err := c.Conn.Write(response.implicit()); err != nil {
		return 0, err
	}
	return len(p), nil
}

// implicitProblems has the problem for each status of the responses that net/http itself writes.
var implicitProblems = map[int]problem{
	http.StatusBadRequest:                  problemMalformed,
	http.StatusExpectationFailed:           problemExpectation,
	http.StatusRequestHeaderFieldsTooLarge: problemHeaders,
	http.StatusNotImplemented:              problemTransferEncoding,
	http.StatusHTTPVersionNotSupported:     problemVersion,
}

// implicitResponse parses a response that net/http itself writes. The detail is the text of that response,
// which quotes nothing of the request.
func implicitResponse(p []byte) (status int, detail string, ok bool) {
	head, ok := bytes.CutPrefix(p, []byte("HTTP/1.1 "))
	if !ok {
		return 0, "", false
	}
	line, _, _ := bytes.Cut(head, []byte("\r\n"))
	code, text, _ := strings.Cut(string(line), " ")
	status, err := parseStatus(code)
	if err != nil {
		return 0, "", false
	}
	_, detail, _ = strings.Cut(text, ": ")
	return status, detail, true
}
