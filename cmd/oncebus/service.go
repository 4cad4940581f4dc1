package main

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"log/slog"
	"net"

	"github.com/prometheus/client_golang/prometheus"

	"oncebus/cmd/oncebus/access"
	"oncebus/cmd/oncebus/cli"
	"oncebus/cmd/oncebus/page"
	"oncebus/cmd/oncebus/settings"
	"oncebus/dedup/rules"
)

var errStopping = errors.New("stopping")

// service is a command that runs until it is asked to stop. It has no flags; its help lists the settings.
type service struct {
	cli.Command
	load  func(environ []string) (settings.Settings, *rules.Routes, error)
	serve func(context.Context, settings.Settings, *rules.Routes, *page.Log, *slog.Logger) int
}

// run validates settings and routes before it connects to any broker.
func (c service) run(ctx context.Context, _ []string, p cli.Process) int {
	s, routes, err := c.load(p.Environ)
	if err != nil {
		cli.Printf(p.Stderr, "%v\n", err)
		if routes != nil { // the routes name further settings: their secrets
			for _, name := range settings.Unknown(p.Environ, routes) {
				cli.Printf(p.Stderr, "%s: no setting has this name%s\n", name, meantSetting(name))
			}
		}
		return cli.ExitWrong
	}
	kept := &page.Log{}
	log := slog.New(kept.Handler(cli.NewLogger(p.Stderr, s.LogLevel, s.LogFormat).Handler()))
	log.LogAttrs(ctx, slog.LevelInfo, "starting", slog.String("version", version()), slog.Int("routes", len(routes.Routes)),
		slog.GroupAttrs("settings", s.Attrs()...))
	for _, name := range settings.Unknown(p.Environ, routes) {
		log.Warn("unknown setting ignored", "variable", name, "meant", settings.Nearest(name))
	}
	running, ended := context.WithCancel(ctx)
	defer ended()
	go boundHeap(running, p.Environ)
	return c.serve(ctx, s, routes, kept, log)
}

// meantSetting returns a question with the setting that a variable most likely means; "" if there is none.
func meantSetting(variable string) string {
	if name := settings.Nearest(variable); name != "" {
		return "; did you mean " + name + "?"
	}
	return ""
}

// command returns the command, whose help lists the settings.
func (c service) command() cli.Command {
	c.Run = c.run
	c.More = func(w io.Writer) {
		cli.Printf(w, "\nSettings [default]:\n")
		settings.Print(w)
	}
	return c.Command
}

// work has the functions and figures of a service that supervise runs.
type work struct {
	ready func() error
	state func(brief bool) any
	run   func(context.Context) error // must return when its context is done
	page  page.Source                 // supervise adds the fields that it knows itself
}

// supervise runs a service together with the admin server, and returns the exit code. The admin server starts
// first and stops last, so that probes can see the service start and stop.
func supervise(ctx context.Context, s settings.Settings, registry *prometheus.Registry, log *slog.Logger, what work) int {
	var listen net.ListenConfig
	listener, err := listen.Listen(ctx, "tcp", s.AdminAddr)
	if err != nil {
		log.Error("listen for admin pages failed; choose another ONCEBUS_ADMIN_ADDR", "addr", s.AdminAddr, "error", err)
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
	server, err := serveAdmin(ctx, listener, s, registry, log, ready, what, fail)
	if err != nil {
		log.Error("wrong settings", "error", errors.Join(err, listener.Close()))
		return cli.ExitWrong
	}
	log.Info("http listening", "addr", listener.Addr().String())

	runErr := what.run(running)
	// If the admin server failed, its error is the cause of running. After an ordinary stop ctx is done, and
	// there is no error to report.
	if cause := context.Cause(running); cause != nil && ctx.Err() == nil {
		runErr = errors.Join(runErr, cause)
	}
	if err := server.stop(ctx); err != nil {
		log.Warn("admin server aborted open requests", "error", err)
	}
	if runErr != nil {
		log.Error("failed", "error", runErr)
		return cli.ExitFailed
	}
	log.Info("stopped")
	return cli.ExitStopped
}

// admin is the admin server together with the live page, which is nil if it is switched off.
type admin struct {
	*httpServer

	page      *page.Page
	endPage   func()
	pageEnded chan struct{} // closed after the last reading of the page
}

// serveAdmin starts the admin server on a listener. It calls failed if the server ends before stop is called.
func serveAdmin(ctx context.Context, listener net.Listener, s settings.Settings, registry *prometheus.Registry, log *slog.Logger, ready func() error, what work, failed func(error)) (*admin, error) {
	s.Admin.WarnOpen(listener.Addr().String(), log)
	guard, err := access.New(s.Admin, registry, log)
	if err != nil {
		return nil, err
	}
	a := &admin{endPage: func() {}, pageEnded: make(chan struct{})}
	if s.Admin.Page {
		source := what.page
		source.Version, source.App, source.Instance, source.Metrics, source.Ready = version(), s.Processor.AppID, s.Processor.InstanceID, registry, ready
		a.page = page.New(source)
		running, end := context.WithCancel(context.WithoutCancel(ctx))
		a.endPage = func() { end(); a.page.Close() }
		go func() { defer close(a.pageEnded); a.page.Run(running) }()
	} else {
		close(a.pageEnded)
	}
	if config := guard.TLS(); config != nil {
		listener = tls.NewListener(listener, config)
	}
	a.httpServer = serveHTTP(listener, newHandler(registry, ready, what.state, a.page, guard.Protect, log), log, failed)
	return a, nil
}

// stop ends the streams of the page and then the server. stop waits for the last reading of the page at most as
// long as for open requests, because the process must end even if a reading hangs.
func (a *admin) stop(ctx context.Context) error {
	bounded, cancel := context.WithTimeout(context.WithoutCancel(ctx), httpStopTimeout)
	defer cancel()
	a.endPage()
	err := a.httpServer.stop(ctx)
	select {
	case <-a.pageEnded:
	case <-bounded.Done():
	}
	return err
}
