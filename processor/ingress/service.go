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

// Service is a Server together with its listener and with the ingress client that produces its events.
type Service struct {
	addr     string
	keep     int // Config.KeepBytes
	front    *front.IngressClient
	server   *Server
	listener net.Listener // nil before Listen
}

// NewService checks the settings and routes and prepares a service. It opens no listener and connects to
// nothing. app has the settings with which the ingress connects to Kafka.
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

// Around wraps the server's handler, see Server.Around. Call it before Run.
func (s *Service) Around(around func(http.Handler) http.Handler) { s.server.Around(around) }

// KeepIn opens the file for the events that wait for Kafka, below the state directory of the process. Call it
// before Run.
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

// Ready returns nil if the service accepts events, and otherwise the reason why it does not. A service that
// keeps events on disk stays ready while Kafka is unavailable: otherwise a load balancer would send no events
// to the service, and it could not keep them.
func (s *Service) Ready() error {
	if s.front.Keeps() {
		return nil
	}
	return s.front.Ready()
}

// ServiceState is the state of a service as /state shows it.
type ServiceState struct {
	Ready    bool   `json:"ready"`
	Why      string `json:"why,omitempty"` // why the service is not ready
	Requests int    `json:"requests"`      // in flight
	// Kept are the events that wait on disk until Kafka is back; nil if no route keeps events on disk.
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

// Run serves until ctx is done and every in-flight request has its response. It stops the ingress client last,
// because the client delivers the verdicts that those requests wait for.
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
