package ingress

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"log/slog"
	"math"
	"net"
	"net/http"
	"strings"
	"sync"
	"time"
)

// connection is an accepted connection. Of HTTP/1 it sees what net/http keeps from
// the handler: framing headers that net/http removes, and its own responses to
// malformed HTTP, which become problems.
//
// With TLS it wraps the TLS connection, so net/http sees a plain one. It recognises
// HTTP/2 by the preface then, as it does without TLS.
type connection struct {
	net.Conn
	server *Server
	place  *place // nil in a test without a limit

	// Only reads use these, and net/http does one at a time.
	shook   bool  // the TLS handshake is over
	refused error // why it failed

	mu      sync.Mutex // net/http reads in the background while a handler runs
	framing framing
	// handled is set while a handler, not net/http, has the request.
	handled bool
	// chunkMax is the longest chunk that the handler reads; math.MaxInt64 before it knows.
	chunkMax int64
}

// watchedListener accepts connections as *connection.
type watchedListener struct {
	net.Listener
	server *Server
}

func (l *watchedListener) Accept() (net.Conn, error) {
	conn, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	c := &connection{Conn: conn, server: l.server}
	if secure, ok := conn.(*tls.Conn); ok {
		conn = secure.NetConn()
	}
	c.place, _ = conn.(*place)
	return c, nil
}

// watch returns a listener of the server's connections, with TLS if it has
// certificates.
func (s *Server) watch(l net.Listener) net.Listener {
	if s.certificates != nil {
		l = tls.NewListener(l, s.certificates.Config())
	}
	return &watchedListener{l, s}
}

type connectionKey struct{}

// withConnection makes the connection of a request known to its handler.
func withConnection(ctx context.Context, conn net.Conn) context.Context {
	return context.WithValue(ctx, connectionKey{}, conn)
}

// connectionState is the server's ConnState.
func connectionState(conn net.Conn, state http.ConnState) {
	// Between the end of a response and the next handler, only net/http responds.
	if c, ok := conn.(*connection); ok && (state == http.StateActive || state == http.StateIdle) {
		c.mu.Lock()
		c.handled = false
		c.mu.Unlock()
		if c.place != nil {
			c.place.setActive(state == http.StateActive)
		}
	}
}

// beginRequest marks that a handler has the request. It reports whether the framing of
// the message is ambiguous: the connection must close after the response (RFC 9112,
// section 6.1).
func beginRequest(r *http.Request) (ambiguous bool) {
	c, ok := r.Context().Value(connectionKey{}).(*connection)
	if !ok || r.ProtoMajor != 1 {
		return false
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.handled, c.chunkMax = true, math.MaxInt64
	return c.framing.begin(r)
}

// boundChunks lets a read of the body fail at once where a chunk alone is over the limit. net/http would wait for its bytes.
func boundChunks(r *http.Request, limit int) {
	if c, ok := r.Context().Value(connectionKey{}).(*connection); ok {
		c.mu.Lock()
		c.chunkMax = int64(limit)
		c.mu.Unlock()
	}
}

func (c *connection) Read(p []byte) (int, error) {
	if conn, ok := c.Conn.(*tls.Conn); ok && !c.shook {
		c.shook, c.refused = true, c.handshake(conn)
	}
	if c.refused != nil {
		return 0, c.refused
	}
	for {
		c.mu.Lock()
		limit := c.chunkMax
		over := c.handled && c.framing.chunked && c.framing.left > limit
		c.mu.Unlock()
		if over {
			return 0, &http.MaxBytesError{Limit: limit}
		}
		n, err := c.Conn.Read(p)
		received := n > 0
		c.mu.Lock()
		if c.framing.between() { // net/http itself ignores empty lines behind a POST alone
			n = copy(p, bytes.TrimLeft(p[:n], "\r\n"))
		}
		c.framing.scan(p[:n])
		c.mu.Unlock()
		if received && c.place != nil {
			c.place.received(p[:n])
		}
		if n > 0 || !received || err != nil {
			return n, err
		}
	}
}

// handshake does what net/http does for a TLS connection. net/http has set the read
// deadline.
func (c *connection) handshake(conn *tls.Conn) error {
	_ = conn.SetWriteDeadline(time.Now().Add(c.server.cfg.ReadTimeout))
	err := conn.HandshakeContext(context.Background())
	if err == nil {
		return conn.SetWriteDeadline(time.Time{})
	}
	var header tls.RecordHeaderError
	if errors.As(err, &header) && header.Conn != nil && looksLikeHTTP(header.RecordHeader) {
		_, _ = header.Conn.Write(problemMalformed.respond("the server speaks TLS: use https").implicit()) // the client may have disconnected
		err = errors.New("the client sent HTTP without TLS")
	}
	c.server.log.LogAttrs(context.Background(), slog.LevelWarn, "tls handshake failed", slog.String("peer", c.RemoteAddr().String()), slog.Any("error", err))
	return &net.OpError{Op: "read", Net: "tcp", Err: err} // net/http responds to no error of this type
}

// looksLikeHTTP reports whether the first bytes of a connection begin a request.
func looksLikeHTTP(begin [5]byte) bool {
	for _, method := range []string{"GET /", "HEAD ", "POST ", "PUT /", "PATCH", "OPTIO", "DELET"} {
		if string(begin[:]) == method {
			return true
		}
	}
	return false
}

// Write replaces a response of net/http itself by the problem with its status.
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
	c.server.metrics.requests.WithLabelValues("", response.statusText(), response.name).Inc()
	c.server.log.LogAttrs(context.Background(), slog.LevelInfo, "malformed request",
		slog.Int("status", response.status), slog.String("response", response.name), slog.String("reason", detail), slog.String("peer", c.RemoteAddr().String()))
	if _, err := c.Conn.Write(response.implicit()); err != nil {
		return 0, err
	}
	return len(p), nil
}

// implicitProblems are the problems by the status of net/http's own responses.
var implicitProblems = map[int]problem{
	http.StatusBadRequest:                  problemMalformed,
	http.StatusExpectationFailed:           problemExpectation,
	http.StatusRequestHeaderFieldsTooLarge: problemHeaders,
	http.StatusNotImplemented:              problemTransferEncoding,
	http.StatusHTTPVersionNotSupported:     problemVersion,
}

// implicitResponse reads a response that net/http itself writes. The detail is its
// text, which quotes nothing of the request.
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
