package main

import (
	"context"
	"errors"
	"flag"
	"log/slog"
	"net"

	"github.com/prometheus/client_golang/prometheus"

	"oncebus/cmd/oncebus/cli"
	"oncebus/dedup/rules"
	"oncebus/processor"
)

var errStopping = errors.New("stopping")

// runService is 'oncebus run': everything is validated first, then served and
// run until ctx is done.
func runService(ctx context.Context, args []string, p cli.Process) int {
	fs := newServiceFlags("run", "Runs the service. It has no options; its settings are environment variables, and an\n"+
		"empty one counts as not set. With ONCEBUS_INGRESS_ADDR it takes events in by HTTP too,\n"+
		"as 'oncebus ingress' does. Exit codes: 0 stopped as asked, 1 failed while running,\n"+
		"2 wrong settings or routes (nothing was connected or written).")
	return startService(ctx, fs, args, p, false, serve)
}

// newServiceFlags are the flags of a command that serves: its help has the
// settings.
func newServiceFlags(name, about string) *flag.FlagSet {
	fs := cli.NewFlags(name, "", about)
	usage := fs.Usage
	fs.Usage = func() {
		usage()
		cli.Printf(fs.Output(), "\nSettings [default]:\n")
		printSettings(fs.Output())
	}
	return fs
}

// startService reads the settings and serves with them; ingress says that it is
// nothing without one.
func startService(
	ctx context.Context, fs *flag.FlagSet, args []string, p cli.Process, ingress bool,
	serve func(context.Context, settings, *rules.Routes, *slog.Logger) int,
) int {
	if _, code, done := cli.ParseFlags(fs, args, 0, p); done {
		return code
	}
	s, routes, err := loadServing(p.Environ, ingress)
	if err != nil {
		cli.Printf(p.Stderr, "%v\n", err)
		return cli.ExitWrong
	}
	log := cli.NewLogger(p.Stderr, s.LogLevel, s.LogFormat)
	log.LogAttrs(ctx, slog.LevelInfo, "starting", slog.String("version", version()), slog.Int("routes", len(routes.Routes)),
		slog.GroupAttrs("settings", s.attrs()...))
	for _, name := range unknownVariables(p.Environ, routes) {
		log.Warn("no such setting, ignored", "variable", name)
	}
	running, ended := context.WithCancel(ctx)
	defer ended()
	go boundHeap(running, p.Environ)
	return serve(ctx, s, routes, log)
}

// serve runs the processor, the ingress if it has an address, and the HTTP
// server of probes beside them.
func serve(ctx context.Context, s settings, routes *rules.Routes, log *slog.Logger) int {
	registry := newRegistry()
	proc, err := processor.New(s.Processor, routes, registry, log)
	if err != nil {
		log.Error("wrong settings", "error", err)
		return cli.ExitWrong
	}
	if s.Ingress.Addr == "" {
		return supervise(ctx, s, registry, log, work{ready: proc.Ready, state: func() any { return proc.State() }, run: proc.Run})
	}
	door, code := openEntrance(ctx, s, routes, registry, log)
	if door == nil {
		return code
	}
	defer door.listener.Close() //nolint:errcheck // only open still if nothing was served
	return supervise(ctx, s, registry, log, work{
		ready: func() error { return errors.Join(proc.Ready(), door.ready()) },
		state: func() any { return proc.State() },
		run: func(ctx context.Context) error {
			// Requests wait for verdicts, so the processor goes on until the
			// last of them has its answer.
			judging, stop := context.WithCancel(context.WithoutCancel(ctx))
			defer stop()
			ctx, end := context.WithCancel(ctx)
			defer end()
			ended := make(chan error, 1)
			go func() {
				ended <- door.run(ctx)
				stop()
			}()
			err := proc.Run(judging)
			end()
			return errors.Join(err, <-ended)
		},
	})
}

// work is what a process does.
type work struct {
	ready func() error
	state func() any
	run   func(context.Context) error // until the context is done
}

// supervise runs a service and the HTTP server of probes beside it. The server
// comes first and goes last, so that probes see a start and a stop from outside.
func supervise(ctx context.Context, s settings, registry *prometheus.Registry, log *slog.Logger, what work) int {
	var listen net.ListenConfig
	listener, err := listen.Listen(ctx, "tcp", s.AdminAddr)
	if err != nil {
		log.Error("http address cannot be used, choose another ONCEBUS_ADMIN_ADDR", "addr", s.AdminAddr, "error", err)
		return cli.ExitFailed
	}
	running, fail := context.WithCancelCause(ctx)
	defer fail(nil)
	ready := func() error {
		if running.Err() != nil {
			return errStopping
		}
		return what.ready()
	}
	server := serveHTTP(listener, newHandler(registry, ready, what.state, log), log, fail)
	log.Info("http listening", "addr", listener.Addr().String())

	runErr := what.run(running)
	// The cause is the HTTP server's error where that ended the run; an
	// ordinary stop has the outer context's.
	if cause := context.Cause(running); cause != nil && ctx.Err() == nil {
		runErr = errors.Join(runErr, cause)
	}
	if err := server.stop(ctx); err != nil {
		log.Warn("open http requests cut off", "error", err)
	}
	if runErr != nil {
		log.Error("failed", "error", runErr)
		return cli.ExitFailed
	}
	log.Info("stopped")
	return cli.ExitStopped
}
