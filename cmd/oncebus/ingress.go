package main

import (
	"context"
	"errors"
	"log/slog"
	"net"

	"github.com/prometheus/client_golang/prometheus"

	"oncebus/cmd/oncebus/cli"
	"oncebus/dedup/rules"
	"oncebus/processor"
	"oncebus/processor/ingress"
)

// runIngress is 'oncebus ingress': it takes events in and judges none.
func runIngress(ctx context.Context, args []string, p cli.Process) int {
	fs := newServiceFlags("ingress", "Takes events in by HTTP at ONCEBUS_INGRESS_ADDR, puts them on the bus, and answers with\n"+
		"what the processes of 'oncebus run' decide. Its routes file and ONCEBUS_KEY_SECRET are\n"+
		"theirs. It has no options and keeps no state; its settings are environment variables, of\n"+
		"which ONCEBUS_STATE_*, _DISK_* and _WORKERS mean nothing to it. Exit codes as for 'run'.")
	return startService(ctx, fs, args, p, true, serveIngress)
}

func serveIngress(ctx context.Context, s settings, routes *rules.Routes, log *slog.Logger) int {
	registry := newRegistry()
	door, code := openEntrance(ctx, s, routes, registry, log)
	if door == nil {
		return code
	}
	defer door.listener.Close() //nolint:errcheck // only open still if nothing was served
	return supervise(ctx, s, registry, log, work{ready: door.ready, state: door.state, run: door.run})
}

// entrance is where events come in: the front on the bus, and the server.
type entrance struct {
	front    *processor.Front
	server   *ingress.Server
	listener net.Listener
}

// openEntrance prepares an entrance. Nil means that the process ends with the
// code.
func openEntrance(ctx context.Context, s settings, routes *rules.Routes, registry prometheus.Registerer, log *slog.Logger) (*entrance, int) {
	e := &entrance{}
	var err error
	if e.front, err = processor.NewFront(s.Processor.AppConfig, routes, log); err != nil {
		log.Error("wrong settings", "error", err)
		return nil, cli.ExitWrong
	}
	if e.server, err = ingress.New(s.Ingress, routes, e.front, registry, log); err != nil {
		log.Error("wrong settings", "error", err)
		return nil, cli.ExitWrong
	}
	var listen net.ListenConfig
	if e.listener, err = listen.Listen(ctx, "tcp", s.Ingress.Addr); err != nil {
		log.Error("http address cannot be used, choose another ONCEBUS_INGRESS_ADDR", "addr", s.Ingress.Addr, "error", err)
		return nil, cli.ExitFailed
	}
	log.Info("ingress listening", "addr", e.listener.Addr().String())
	return e, cli.ExitStopped
}

func (e *entrance) ready() error { return e.front.Ready() }

// state is the page of an ingress.
func (e *entrance) state() any {
	page := struct {
		Ready    bool   `json:"ready"`
		Why      string `json:"why,omitempty"`
		Requests int    `json:"requests"`
	}{Requests: e.server.Requests()}
	if err := e.front.Ready(); err != nil {
		page.Why = err.Error()
	} else {
		page.Ready = true
	}
	return page
}

// run serves until ctx is done and everybody is answered. The front ends last:
// who waits for a verdict gets it from there.
func (e *entrance) run(ctx context.Context) error {
	serving, fail := context.WithCancelCause(ctx)
	defer fail(nil)
	fronting, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	ended := make(chan error, 1)
	go func() {
		err := e.front.Run(fronting)
		if err != nil {
			fail(err)
		}
		ended <- err
	}()
	err := e.server.Serve(serving, e.listener)
	stop()
	return errors.Join(err, <-ended)
}
