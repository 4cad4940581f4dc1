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

// request has what the server collects about an http.Request while it responds.
type request struct {
	start    time.Time
	source   netip.Addr
	id       string // for the log and the response
	route    string // for metrics and log
	key      string // the dedup key, in hexadecimal digits; "" until it is derived
	request  string // the sender's request id, where the route names it
	bytes    int    // of the body
	limits   *reservation
	received time.Time // when the server verified the signature; becomes the event's time
}

// ServeHTTP implements http.Handler. If the client has disconnected, ServeHTTP panics with
// http.ErrAbortHandler, which closes the connection or the HTTP/2 stream: if it returned instead, net/http
// would send a 200.
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

// dispatch lets the endpoint of the path respond. It compares the path as the client sent it, without decoding:
// the path of a route has no percent-encoding, so an encoded path is unknown. A proxy's rule for a path
// therefore applies to every request that reaches the endpoint of that path.
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

// allowAsking is the value of Allow for a path that receives nothing.
const allowAsking = http.MethodGet + ", " + http.MethodHead

// asks reports whether a request only asks for something. HEAD is a GET whose response has no body (RFC 9110,
// section 9.3.2); net/http leaves the body out.
func asks(r *http.Request) bool { return r.Method == http.MethodGet || r.Method == http.MethodHead }

// refusedBody is how long net/http may go on to read the body of a request that the server rejected by its
// head, so that the connection can serve another request.
const refusedBody = time.Second

// leaveBody bounds the time to read the rest of a request that the server rejects by its head.
func (s *Server) leaveBody(w http.ResponseWriter) {
	_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(refusedBody)) // works on every connection of http.Server
}

// headerLineBytes is the length of a header line of HTTP/1 without name and value; headerFieldBytes is what
// HTTP/2 adds to the length of name and value (RFC 9113, section 6.5.2).
const headerLineBytes, headerFieldBytes = 4, 32

// headerBytes returns the size of the request line and the headers, counted as the request's HTTP version
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

// admit lets take respond if the limits allow one more request. It counts the request after its head was
// accepted and before its body is read. The endpoint counts the request at once if verified is true; otherwise
// reservation.verify makes the endpoint count it once the signature is verified.
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

// rejectBusy rejects a request because it would exceed one of the limits.
func (s *Server) rejectBusy(rq *request, err error) *response {
	for _, l := range limitReasons {
		if errors.Is(err, l.err) {
			return s.reject(rq, l.reason, busy(l.detail))
		}
	}
	return s.reject(rq, reasonRequests, busy(""))
}

// reject counts and returns the response to a request that a limit or the signature check rejected.
func (s *Server) reject(rq *request, reason string, r *response) *response {
	s.metrics.refused.WithLabelValues(rq.route, reason).Inc()
	r.reason = reason
	return r
}

// pathLogBytes is how many bytes of a path the log shows.
const pathLogBytes = 200

// recordAttrs is the largest number of attributes in a log line of record.
const recordAttrs = 14

// record counts a response and logs it. The log shows the path and the ids of the request, but no payload and
// no secret.
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

// masked replaces the secrets of all routes in a text that a sender chose: some senders put their token into
// the path or into an id.
func (s *Server) masked(text string) string {
	for _, k := range s.endpoints.keyrings {
		for _, secret := range k.secrets() {
			text = strings.ReplaceAll(text, string(secret), "[secret]")
		}
	}
	return text
}

// headerRequestID has the id of a request. The response repeats the id, and the log shows it.
const headerRequestID = "X-Request-Id"

// requestIDBytes is the longest X-Request-Id of a sender that the server uses.
const requestIDBytes = 128

// requestID returns the sender's X-Request-Id, or a random id if the request has no usable one.
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
