package ingress

import (
	"crypto/rand"
	"encoding/hex"
	"errors"
	"log/slog"
	"net/http"
	"net/netip"
	"strconv"
	"strings"
	"time"
)

// request has the facts about an http.Request that the server collects.
type request struct {
	start    time.Time
	source   netip.Addr
	id       string // for the log and the response
	route    string // for metrics and log
	key      string // the dedup key, in hexadecimal digits; "" until it is derived
	request  string // the sender's request id, where the route names it
	bytes    int    // of the body
	limits   *reservation
	received time.Time // when the signature was verified: the event's time
}

// ServeHTTP implements http.Handler. If the client disconnected it panics with
// http.ErrAbortHandler, which closes the connection or the HTTP/2 stream: to
// return would send a 200.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if beginRequest(r) {
		w.Header().Set("Connection", "close")
	}
	rq := &request{start: s.now(), source: sourceOf(r, s.trusted), id: requestID(r.Header)}
	w.Header().Set(headerRequestID, rq.id)
	var response *response
	if headerBytes(r) > s.cfg.MaxHeaderBytes {
		s.leaveBody(w)
		response = problemHeaders.respond("")
	} else {
		response = s.dispatch(w, r, rq)
	}
	if !response.disconnected && !response.streamed {
		response.write(w)
	}
	s.record(r, rq, response)
	if response.disconnected {
		panic(http.ErrAbortHandler)
	}
}

// dispatch lets the endpoint of the path respond. The path is compared as it was sent:
// no route's path is encoded, so an encoded one is unknown, and a proxy's rule for a
// path holds for every request that gets to it.
func (s *Server) dispatch(w http.ResponseWriter, r *http.Request, rq *request) *response {
	path := r.URL.EscapedPath()
	if e, ok := s.endpoints.events[path]; ok {
		rq.route = e.routes[0].Name
		if asks(r) && e.Answer != nil {
			return s.takeKey(w, r, rq, e)
		}
		return s.takeEvent(w, r, rq, e)
	}
	if e, ok := s.endpoints.outcomes[path]; ok {
		rq.route = e.routes[0].Name
		return s.takeOutcome(w, r, rq, e)
	}
	if e, ok := s.endpoints.followed[path]; ok {
		rq.route = e.routes[0].Name
		return s.takeFollower(w, r, rq, e)
	}
	if base, name, ok := cutLocation(path); ok {
		if e := s.endpoints.events[base]; e != nil && e.Answer != nil {
			rq.route = e.routes[0].Name
			return s.takeLocation(w, r, rq, e, name)
		}
	}
	if path == openAPIPath && s.cfg.OpenAPI {
		return s.describe(r)
	}
	return problemNotFound.respond("")
}

// allowAsking are the methods of a path that takes nothing.
const allowAsking = http.MethodGet + ", " + http.MethodHead

// asks reports whether a request asks and sends nothing. HEAD is GET without the body of
// the response (RFC 9110, section 9.3.2), which net/http leaves out.
func asks(r *http.Request) bool { return r.Method == http.MethodGet || r.Method == http.MethodHead }

// refusedBody is how long net/http may read the body of a request that was rejected
// before its body, so that the connection can be used again.
const refusedBody = time.Second

// leaveBody bounds the time for the body of a request that is rejected before its body.
func (s *Server) leaveBody(w http.ResponseWriter) {
	_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(refusedBody)) // works on every connection of http.Server
}

// Bytes of a header line without name and value, and what HTTP/2 adds to a header (RFC
// 9113, section 6.5.2).
const headerLineBytes, headerFieldBytes = 4, 32

// headerBytes returns the size of a request's line and headers, as its version of HTTP
// counts them.
func headerBytes(r *http.Request) int {
	each := headerLineBytes
	n := len(r.Method) + len(r.RequestURI) + len(r.Host)
	if r.ProtoMajor == 2 {
		each = headerFieldBytes
		n += len(":method:scheme:path:authority") + len("https") + 4*each
	} else {
		n += len(r.Proto) + len("Host") + headerLineBytes + each
	}
	for name, values := range r.Header {
		for _, value := range values {
			n += len(name) + len(value) + each
		}
	}
	return n
}

// admit responds with take if the limits allow one more request. It counts the request when its head was accepted, and
// before its body is read; for its endpoint at once if it is verified by then, and else with verify.
func (s *Server) admit(w http.ResponseWriter, limits *requestLimits, rules *bodyRules, rq *request, verified bool, take func() *response) *response {
	var err error
	if rq.limits, err = limits.reserve(rq.source, &rules.usage, !verified); err != nil {
		s.leaveBody(w)
		return s.rejectBusy(rq, err)
	}
	defer rq.limits.release()
	s.metrics.inFlight.Inc()
	defer s.metrics.inFlight.Dec()
	return take()
}

// rejectBusy rejects a request because of one of the limits.
func (s *Server) rejectBusy(rq *request, err error) *response {
	for _, l := range limitReasons {
		if errors.Is(err, l.err) {
			return s.reject(rq, l.reason, busy(l.detail))
		}
	}
	return s.reject(rq, reasonRequests, busy(""))
}

// reject counts a request that a limit or a signature rejected.
func (s *Server) reject(rq *request, reason string, r *response) *response {
	s.metrics.refused.WithLabelValues(rq.route, reason).Inc()
	r.reason = reason
	return r
}

// pathLogBytes is how much of a path the log shows.
const pathLogBytes = 200

// recordAttrs is the most attributes of a line that record logs.
const recordAttrs = 14

// record counts and logs a response. Of the request the log shows the path and what
// identifies it: no payload, no secret.
func (s *Server) record(r *http.Request, rq *request, response *response) {
	took := s.now().Sub(rq.start)
	s.metrics.requests.WithLabelValues(rq.route, strconv.Itoa(response.status), response.name).Inc()
	if rq.route != "" {
		s.metrics.seconds.WithLabelValues(rq.route).Observe(took.Seconds())
	}
	if !s.log.Enabled(r.Context(), slog.LevelInfo) {
		return
	}
	path := s.masked(r.URL.Path)
	if len(path) > pathLogBytes {
		path = path[:pathLogBytes] + "..."
	}
	attrs := make([]slog.Attr, 0, recordAttrs)
	attrs = append(attrs,
		slog.String("route", rq.route), slog.String("method", r.Method), slog.String("path", path), slog.Int("status", response.status),
		slog.String("response", response.name), slog.String("verdict", response.verdict), slog.Int("bytes", rq.bytes),
		slog.Duration("duration", took), slog.String("source", rq.source.String()), slog.String("request_id", s.masked(rq.id)),
	)
	if rq.key != "" {
		attrs = append(attrs, slog.String("key", rq.key))
	}
	if rq.request != "" && fitsHeader(rq.request) {
		attrs = append(attrs, slog.String("request", s.masked(rq.request)))
	}
	if id := traceID(r.Header.Get("Traceparent")); id != "" {
		attrs = append(attrs, slog.String("trace_id", id))
	}
	if response.reason != "" {
		attrs = append(attrs, slog.String("reason", response.reason))
	}
	s.log.LogAttrs(r.Context(), slog.LevelInfo, "request", attrs...)
}

// masked replaces the secrets of the routes in a text that a sender chose: some put the token into the path, or into an id.
func (s *Server) masked(text string) string {
	for _, k := range s.endpoints.keyrings {
		for _, secret := range k.secrets() {
			text = strings.ReplaceAll(text, string(secret), "[secret]")
		}
	}
	return text
}

// headerRequestID names a request. A response repeats it, and the log has it.
const headerRequestID = "X-Request-Id"

// requestIDBytes is the most bytes of a sender's X-Request-Id that is used.
const requestIDBytes = 128

// requestID returns the sender's X-Request-Id, or a random one for a request without.
func requestID(in http.Header) string {
	if ids := in[headerRequestID]; len(ids) == 1 && ids[0] != "" && len(ids[0]) <= requestIDBytes && fitsHeader(ids[0]) {
		return ids[0]
	}
	var drawn [16]byte
	_, _ = rand.Read(drawn[:]) // never fails
	return hex.EncodeToString(drawn[:])
}

// traceID returns the trace id of a traceparent (W3C Trace Context, section
// 3.2.2), or "" if it is malformed.
func traceID(traceparent string) string {
	const begin, end = 3, 3 + 32
	if len(traceparent) < 55 || traceparent[2] != '-' || traceparent[end] != '-' {
		return ""
	}
	for _, c := range []byte(traceparent[begin:end]) {
		if (c < '0' || c > '9') && (c < 'a' || c > 'f') {
			return ""
		}
	}
	return traceparent[begin:end]
}
