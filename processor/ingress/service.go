package ingress

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"net/http"

	"github.com/prometheus/client_golang/prometheus"

	"oncebus/dedup/rules"
	"oncebus/processor/app"
	"oncebus/processor/front"
)

// Service is a Server with its listener and the ingress client that produces its
// events.
type Service struct {
	addr     string
	keep     int // bytes
	front    *front.IngressClient
	server   *Server
	listener net.Listener // nil before Listen
}

// NewService checks settings and routes and prepares a service. It opens no listener
// and connects to nothing. app has the settings of the ingress client.
func NewService(
	cfg Config, app app.Config, routes *rules.Routes, registry prometheus.Registerer, log *slog.Logger,
) (*Service, error) {
	front, err := front.NewIngressClient(app, routes, registry, log)
	if err != nil {
		return nil, err
	}
	server, err := New(cfg, routes, front, registry, log)
	if err != nil {
		return nil, err
	}
	return &Service{addr: cfg.Addr, keep: cfg.KeepBytes, front: front, server: server}, nil
}

// Around is Server.Around. Call it before Run.
func (s *Service) Around(around func(http.Handler) http.Handler) { s.server.Around(around) }

// KeepIn opens the file of the events that wait for Kafka, below the directory of the process's state.
// Call it before Run.
func (s *Service) KeepIn(stateDir string) error { return s.front.KeepIn(stateDir, s.keep) }

// Listen opens the listener at Config.Addr. Call it before Run.
func (s *Service) Listen(ctx context.Context) (err error) {
	var listen net.ListenConfig
	s.listener, err = listen.Listen(ctx, "tcp", s.addr)
	return err
}

// Addr returns the address of the listener, after Listen.
func (s *Service) Addr() net.Addr { return s.listener.Addr() }

// Close closes the listener of a service that did not run; Run closes it too.
func (s *Service) Close() error { return s.listener.Close() }

// Ready returns nil when the service accepts events, else the reason why not. One that keeps events
// while Kafka is unavailable stays ready: a load balancer would send it none.
func (s *Service) Ready() error {
	if s.front.Keeps() {
		return nil
	}
	return s.front.Ready()
}

// ServiceState is what a service shows at /state.
type ServiceState struct {
	Ready    bool   `json:"ready"`
	Why      string `json:"why,omitempty"` // it is not ready
	Requests int    `json:"requests"`      // in flight
	// Kept are the events that wait on disk until Kafka is back; nil where no route keeps any.
	Kept *front.Kept `json:"kept,omitempty"`
}

// State returns the state of the service.
func (s *Service) State() ServiceState {
	state := ServiceState{Requests: s.server.Requests(), Kept: s.front.Kept()}
	if err := s.front.Ready(); err != nil {
		state.Why = err.Error()
	} else {
		state.Ready = true
	}
	return state
}

// Run serves until ctx is done and every request in flight has its response. The
// ingress client ends last, because it delivers the verdicts those requests wait for.
func (s *Service) Run(ctx context.Context) error {
	serving, fail := context.WithCancelCause(ctx)
	defer fail(nil)
	fronting, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	ended := make(chan error, 1)
	go func() {
		err := s.front.Run(fronting)
		if err != nil {
			fail(err)
		}
		ended <- err
	}()
	err := s.server.Serve(serving, s.listener)
	stop()
	return errors.Join(err, <-ended)
}
