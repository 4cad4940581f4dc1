package main

import (
	"context"
	"errors"
	"log/slog"
	"net"

	"oncebus/dedup"
	"oncebus/processor"
)

var errStopping = errors.New("stopping")

// runService is 'oncebus run': everything is validated first, then served and
// run until ctx is done.
func runService(ctx context.Context, args []string, p process) int {
	fs := newFlags("run", "", "Runs the service. It has no options; its settings are environment variables, and an\n"+
		"empty one counts as not set. Exit codes: 0 stopped as asked, 1 failed while running,\n"+
		"2 wrong settings or routes (nothing was connected or written).")
	usage := fs.Usage
	fs.Usage = func() {
		usage()
		printf(fs.Output(), "\nSettings [default]:\n")
		printSettings(fs.Output())
	}
	if _, code, done := parseFlags(fs, args, 0, p); done {
		return code
	}
	s, routes, err := load(p.environ, "")
	if err != nil {
		printf(p.stderr, "%v\n", err)
		return exitWrong
	}
	log := newLogger(p.stderr, s.LogLevel, s.LogFormat)
	log.LogAttrs(ctx, slog.LevelInfo, "starting", slog.String("version", version()), slog.Int("routes", len(routes.Routes)),
		slog.GroupAttrs("settings", s.attrs()...))
	for _, name := range unknownVariables(p.environ) {
		log.Warn("no such setting, ignored", "variable", name)
	}
	running, ended := context.WithCancel(ctx)
	defer ended()
	go boundHeap(running, p.environ)
	return serve(ctx, s, routes, log)
}

// serve runs the processor and the HTTP server beside it. The server comes
// first and goes last, so that probes see a start and a stop from outside.
func serve(ctx context.Context, s settings, routes *dedup.Routes, log *slog.Logger) int {
	registry := newRegistry()
	proc, err := processor.New(s.Processor, routes, registry, log)
	if err != nil {
		log.Error("wrong settings", "error", err)
		return exitWrong
	}
	var listen net.ListenConfig
	listener, err := listen.Listen(ctx, "tcp", s.HTTPAddr)
	if err != nil {
		log.Error("http address cannot be used, choose another ONCEBUS_HTTP_ADDR", "addr", s.HTTPAddr, "error", err)
		return exitFailed
	}
	running, fail := context.WithCancelCause(ctx)
	defer fail(nil)
	ready := func() error {
		if running.Err() != nil {
			return errStopping
		}
		return proc.Ready()
	}
	server := serveHTTP(listener, newHandler(registry, ready, func() any { return proc.State() }, log), log, fail)
	log.Info("http listening", "addr", listener.Addr().String())

	runErr := proc.Run(running)
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
		return exitFailed
	}
	log.Info("stopped")
	return exitStopped
}
