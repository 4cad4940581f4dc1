package ingress

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"strconv"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/net/netutil"

	"oncebus/dedup/rules"
	"oncebus/processor"
)

// Server takes requests in.
type Server struct {
	cfg     Config
	front   *processor.Front
	log     *slog.Logger
	now     func() time.Time
	doors   *doors
	trusted []netip.Prefix
	metrics *metrics
	openAPI []byte

	// Outcomes have room of their own: copies that wait for them must not
	// keep them out.
	events, outcomes *room

	certificates *certificates // nil without TLS
	handler      http.Handler  // the server itself, and what is around it
}

// New checks settings and routes and prepares a server. It opens no listener.
func New(cfg Config, routes *rules.Routes, front *processor.Front, registry prometheus.Registerer, log *slog.Logger) (*Server, error) {
	if err := errors.Join(cfg.Validate(), cfg.ValidateRoutes(routes)); err != nil {
		return nil, err
	}
	ds, err := newDoors(cfg, routes)
	if err != nil {
		return nil, err
	}
	s := &Server{
		cfg: cfg, front: front, log: log, now: time.Now, doors: ds, metrics: newMetrics(registry),
	}
	s.events, s.outcomes = newRoom(cfg, s.metrics), newRoom(cfg, s.metrics)
	if s.openAPI, err = OpenAPI(routes); err != nil {
		return nil, err
	}
	if s.trusted, err = cfg.trustedProxies(); err != nil {
		return nil, err
	}
	if cfg.TLSCertFile != "" {
		if s.certificates, err = newCertificates(cfg, s.metrics, log); err != nil {
			return nil, err
		}
	}
	for _, k := range ds.keyrings {
		k.log, k.count = log, s.metrics.reloads(reloadSecrets)
	}
	s.metrics.reloads(reloadCertificates)
	for _, r := range routes.Routes {
		if r.HTTP != nil {
			s.metrics.prepare(r.Name)
		}
	}
	s.handler = s
	return s, nil
}

// Around has every request pass through what around makes of the server's own
// handler, which sees request and answer as a client does. It comes before Serve.
func (s *Server) Around(around func(http.Handler) http.Handler) { s.handler = around(s.handler) }

// lastWords is how long those may take that are answered because the time to
// drain is over.
const lastWords = time.Second

// errDrained ends the wait of requests when the time to drain is over.
var errDrained = errors.New("the server stops")

// Serve serves on listener until ctx is done. Then no new request is taken, and
// those in hand have Config.Drain to end; whoever waits longer is told that
// there is no verdict. It returns nil after that, and an error only if it could
// not go on before. The front has to run until Serve has returned. Serve can be
// called once.
func (s *Server) Serve(ctx context.Context, listener net.Listener) error {
	base, cutOff := context.WithCancelCause(context.Background())
	defer cutOff(nil)
	server := s.httpServer(base)
	ended := make(chan error, 1)
	limited := netutil.LimitListener(listener, s.cfg.MaxConnections)
	go func() {
		if s.certificates == nil {
			ended <- server.Serve(limited)
			return
		}
		server.TLSConfig = s.certificates.config()
		ended <- server.ServeTLS(limited, "", "")
	}()
	select {
	case err := <-ended:
		err = errors.Join(err, server.Close())
		cutOff(errDrained)
		s.waitForRequests()
		return err
	case <-ctx.Done():
	}
	s.log.Info("ingress drains", "requests", s.Requests(), "drain_timeout", s.cfg.Drain)
	draining, drained := context.WithTimeout(context.Background(), s.cfg.Drain)
	defer drained()
	stop := context.AfterFunc(draining, func() { cutOff(errDrained) })
	defer stop()
	last, end := context.WithTimeout(context.Background(), s.cfg.Drain+lastWords)
	defer end()
	if err := server.Shutdown(last); err != nil {
		s.log.Warn("open http connections cut off", "requests", s.Requests(), "error", err)
		_ = server.Close() // what it closes is given up
	}
	if err := <-ended; !errors.Is(err, http.ErrServerClosed) {
		s.log.Warn("ingress listener", "error", err)
	}
	cutOff(errDrained)
	s.waitForRequests()
	return nil
}

// Requests returns how many requests are in hand.
func (s *Server) Requests() int { return s.events.requests.count() + s.outcomes.requests.count() }

// waitForRequests returns when none is in hand.
func (s *Server) waitForRequests() {
	s.events.requests.wait()
	s.outcomes.requests.wait()
}

func (s *Server) httpServer(base context.Context) *http.Server {
	protocols := &http.Protocols{}
	protocols.SetHTTP1(true)
	protocols.SetHTTP2(true)
	protocols.SetUnencryptedHTTP2(true)
	return &http.Server{
		Handler: s.handler,
		// OPTIONS * would be answered without us.
		DisableGeneralOptionsHandler: true,

		Protocols:         protocols,
		ReadHeaderTimeout: s.cfg.ReadTimeout,
		ReadTimeout:       s.cfg.ReadTimeout,
		WriteTimeout:      s.cfg.WriteTimeout,
		IdleTimeout:       s.cfg.IdleTimeout,
		MaxHeaderBytes:    s.cfg.MaxHeaderBytes,
		ErrorLog:          slog.NewLogLogger(s.log.Handler(), slog.LevelWarn),
		BaseContext:       func(net.Listener) context.Context { return base },
	}
}

// ServeHTTP implements http.Handler. For a client that is gone it panics with
// http.ErrAbortHandler, which ends the connection, or the stream of HTTP/2,
// without an answer: to return would be a 200.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	rq := &request{start: s.now(), source: sourceOf(r, s.trusted)}
	a := s.dispatch(w, r, rq)
	if !a.gone {
		s.write(w, a)
	}
	s.account(r, rq, a)
	if a.gone {
		panic(http.ErrAbortHandler)
	}
}

// Values of headers that every answer has; nobody changes them.
var noStore, noSniff = []string{"no-store"}, []string{"nosniff"}

// write sends an answer.
func (s *Server) write(w http.ResponseWriter, a *response) {
	h := w.Header()
	for name, values := range a.header {
		h[name] = values
	}
	h["Cache-Control"], h["X-Content-Type-Options"] = noStore, noSniff
	if a.status == http.StatusNoContent || a.status == http.StatusResetContent || a.status == http.StatusNotModified {
		w.WriteHeader(a.status)
		return
	}
	if a.contentType != "" {
		h.Set("Content-Type", a.contentType)
	} else {
		h["Content-Type"] = nil // it would be guessed
	}
	h.Set("Content-Length", strconv.Itoa(len(a.body)))
	w.WriteHeader(a.status)
	// A client that went away is nobody to tell.
	_, _ = w.Write(a.body) //nolint:gosec // G705: no browser takes it for a page, see nosniff; a recorded outcome is its executor's
}

// account notes what became of a request. Of what it brought only its path is
// shown, which has no secret, and of that not everything if it is none of ours.
func (s *Server) account(r *http.Request, rq *request, a *response) {
	took := s.now().Sub(rq.start)
	s.metrics.requests.WithLabelValues(rq.route, strconv.Itoa(a.status), a.name).Inc()
	if rq.route != "" {
		s.metrics.seconds.WithLabelValues(rq.route).Observe(took.Seconds())
	}
	if !s.log.Enabled(r.Context(), slog.LevelInfo) {
		return
	}
	path := r.URL.Path
	if len(path) > pathShown {
		path = path[:pathShown] + "..."
	}
	attrs := []slog.Attr{
		slog.String("route", rq.route), slog.String("method", r.Method), slog.String("path", path), slog.Int("status", a.status),
		slog.String("response", a.name), slog.String("verdict", a.verdict), slog.Int("bytes", rq.bytes),
		slog.Duration("duration", took), slog.String("source", rq.source.String()),
	}
	if id := traceID(r.Header.Get("Traceparent")); id != "" {
		attrs = append(attrs, slog.String("trace_id", id))
	}
	if a.reason != "" {
		attrs = append(attrs, slog.String("reason", a.reason))
	}
	s.log.LogAttrs(r.Context(), slog.LevelInfo, "request", attrs...)
}

// pathShown is how much of a path the log has, in bytes.
const pathShown = 200

// traceID returns the trace's id in a traceparent (W3C Trace Context, section
// 3.2.2), or "" if it is none.
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

// inHand counts requests and holds them to a limit.
type inHand struct {
	mu   sync.Mutex
	free *sync.Cond // told when none is left
	n    int
	most int
}

func newInHand(most int) *inHand {
	h := &inHand{most: most}
	h.free = sync.NewCond(&h.mu)
	return h
}

func (h *inHand) enter() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.n >= h.most {
		return false
	}
	h.n++
	return true
}

func (h *inHand) leave() {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.n--; h.n == 0 {
		h.free.Broadcast()
	}
}

func (h *inHand) count() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.n
}

// wait returns when none is left.
func (h *inHand) wait() {
	h.mu.Lock()
	defer h.mu.Unlock()
	for h.n > 0 {
		h.free.Wait()
	}
}
