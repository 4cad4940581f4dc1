package ingress

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"oncebus/dedup/rules"
	"oncebus/processor/front"
	"oncebus/processor/security"
)

// Server is the HTTP server that receives events and outcomes.
type Server struct {
	cfg       Config
	front     *front.IngressClient
	log       *slog.Logger
	now       func() time.Time
	endpoints *endpoints
	trusted   []netip.Prefix
	metrics   *metrics
	openAPI   struct{ plain, compressed []byte } // used if Config.OpenAPI is set

	// Requests with outcomes have separate limits, because duplicates that wait for an outcome must not block
	// that outcome. Requests that ask for an outcome (lookups) have separate limits, too, because senders that
	// wait must not block them. Followers have separate limits, because they stay connected.
	events, outcomes, lookups, followers *requestLimits
	stopping                             context.Context //nolint:containedctx // of the server: done when Serve ends followers
	stop                                 context.CancelFunc

	certificates *security.ServerCertificates // nil without TLS
	handler      http.Handler                 // the server itself, possibly wrapped
}

// New checks the settings and routes and prepares a server. It opens no listener. front submits the events to
// Kafka and must run until Serve has returned.
func New(cfg Config, routes *rules.Routes, front *front.IngressClient, registry prometheus.Registerer, log *slog.Logger) (*Server, error) {
	if err := errors.Join(cfg.Validate(), cfg.ValidateRoutes(routes)); err != nil {
		return nil, err
	}
	es, err := newEndpoints(cfg, routes)
	if err != nil {
		return nil, err
	}
	s := &Server{
		cfg: cfg, front: front, log: log, now: time.Now, endpoints: es, metrics: newMetrics(registry),
	}
	s.stopping, s.stop = context.WithCancel(context.Background())
	s.events, s.outcomes = newRequestLimits(cfg, len(es.events), s.metrics), newRequestLimits(cfg, len(es.outcomes), s.metrics)
	s.lookups, s.followers = newRequestLimits(cfg, len(es.events), s.metrics), newRequestLimits(cfg, len(es.followed), s.metrics)
	if cfg.OpenAPI {
		if s.openAPI.plain, err = OpenAPI(routes); err != nil {
			return nil, err
		}
		s.openAPI.compressed = gzipped(s.openAPI.plain)
	}
	if s.trusted, err = cfg.trustedProxies(); err != nil {
		return nil, err
	}
	if cfg.TLSCertFile != "" {
		if s.certificates, err = newCertificates(cfg, s.metrics, log); err != nil {
			return nil, err
		}
	}
	for _, k := range es.keyrings {
		k.log, k.reloads = log, s.metrics.reloadCounters(reloadSecrets)
	}
	s.metrics.reloadCounters(reloadCertificates)
	registry.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "oncebus_http_kept_events",
		Help: "Events on disk that wait until Kafka is back, of routes with on_kafka_unavailable: keep. /state has the time of the oldest one."},
		func() float64 { return float64(front.KeptEvents()) }))
	for _, r := range routes.Routes {
		if r.HTTP != nil {
			s.metrics.prepare(r.Name)
		}
	}
	s.handler = s
	return s, nil
}

// Around wraps the server's handler. The wrapper sees requests and responses as the client sees them. Call it
// before Serve.
func (s *Server) Around(around func(http.Handler) http.Handler) { s.handler = around(s.handler) }

// lastResponses bounds the time to send the responses to the requests that Serve ends when Config.Drain is
// over.
const lastResponses = time.Second

// errDrained ends the requests that are in flight when Config.Drain is over.
var errDrained = errors.New("the server stops")

// Serve serves on listener until ctx is done. Then it accepts no new request and gives the in-flight requests
// Config.Drain to complete; requests that still wait after that get a 503 or 504. Serve returns nil once all
// requests have ended. It returns an error only if the listener failed before ctx was done. Serve can be called
// only once.
func (s *Server) Serve(ctx context.Context, listener net.Listener) error {
	base, cancelRequests := context.WithCancelCause(context.Background())
	defer cancelRequests(nil)
	server := s.httpServer(base)
	ended := make(chan error, 1)
	if bounded, action := s.cfg.BoundConnections(); bounded != "" {
		s.log.Warn("open files limit the connections", "finding", bounded, "action", action)
	}
	go func() { ended <- server.Serve(s.limit(listener)) }()
	select {
	case err := <-ended:
		s.stop()
		err = errors.Join(err, server.Close())
		cancelRequests(errDrained)
		s.waitIdle()
		return err
	case <-ctx.Done():
	}
	s.stop()
	s.log.Info("ingress drains", "requests", s.Requests(), "drain_timeout", s.cfg.Drain)
	draining, drained := context.WithTimeout(context.Background(), s.cfg.Drain)
	defer drained()
	stop := context.AfterFunc(draining, func() { cancelRequests(errDrained) })
	defer stop()
	closing, closed := context.WithTimeout(context.Background(), s.cfg.Drain+lastResponses)
	defer closed()
	if err := server.Shutdown(closing); err != nil {
		s.log.Warn("open http connections closed", "requests", s.Requests(), "error", err)
		_ = server.Close() // the listener is closed already, and so are the connections
	}
	if err := <-ended; !errors.Is(err, http.ErrServerClosed) {
		s.log.Warn("ingress listener failed", "error", err)
	}
	cancelRequests(errDrained)
	s.waitIdle()
	return nil
}

// Requests returns the number of in-flight requests.
func (s *Server) Requests() int {
	return s.events.count() + s.outcomes.count() + s.lookups.count() + s.followers.count()
}

// waitIdle returns when no request is in flight.
func (s *Server) waitIdle() {
	s.events.waitIdle()
	s.outcomes.waitIdle()
	s.lookups.waitIdle()
	s.followers.waitIdle()
}

func (s *Server) httpServer(base context.Context) *http.Server {
	protocols := &http.Protocols{}
	protocols.SetHTTP1(true)
	protocols.SetHTTP2(true)
	protocols.SetUnencryptedHTTP2(true)
	return &http.Server{
		Handler: s.handler,
		// Without this, net/http would respond to OPTIONS * itself.
		DisableGeneralOptionsHandler: true,

		Protocols:         protocols,
		ReadHeaderTimeout: s.cfg.ReadTimeout,
		ReadTimeout:       s.cfg.ReadTimeout,
		WriteTimeout:      s.cfg.WriteTimeout,
		IdleTimeout:       s.cfg.IdleTimeout,
		// This is above the limit that ServeHTTP checks, so that most requests over the limit get a problem:
		// over HTTP/2, net/http itself would respond to a request that it refuses with an HTML page.
		MaxHeaderBytes: 2 * s.cfg.MaxHeaderBytes,
		ErrorLog:       slog.NewLogLogger(s.log.Handler(), slog.LevelWarn),
		BaseContext:    func(net.Listener) context.Context { return base },
		ConnContext:    withConnection,
		ConnState:      connectionState,
	}
}
