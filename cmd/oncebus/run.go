package main

import (
	"context"
	"errors"
	"log/slog"

	"oncebus/cmd/oncebus/cli"
	"oncebus/cmd/oncebus/settings"
	"oncebus/dedup/rules"
	"oncebus/processor"
)

// runService is 'oncebus run': everything is validated first, then served and
// run until ctx is done.
func runService(ctx context.Context, args []string, p cli.Process) int {
	return service{name: "run", about: "Runs the service. It has no options; its settings are environment variables, and an\n" +
		"empty one counts as not set. With ONCEBUS_INGRESS_ADDR it takes events in by HTTP too,\n" +
		"as 'oncebus ingress' does. Exit codes: 0 stopped as asked, 1 failed while running,\n" +
		"2 wrong settings or routes (nothing was connected or written).",
		load: settings.LoadRun, serve: serve,
	}.run(ctx, args, p)
}

// serve runs the processor, the ingress if it has an address, and the HTTP
// server of probes beside them.
func serve(ctx context.Context, s settings.Settings, routes *rules.Routes, log *slog.Logger) int {
	registry := newRegistry()
	proc, err := processor.New(s.Processor, routes, registry, log)
	if err != nil {
		log.Error("wrong settings", "error", err)
		return cli.ExitWrong
	}
	if s.Ingress.Addr == "" {
		return supervise(ctx, s, registry, log, work{ready: proc.Ready, state: func() any { return proc.State() }, run: proc.Run})
	}
	requests, code := openIngress(ctx, s, routes, registry, log)
	if requests == nil {
		return code
	}
	defer requests.Close() //nolint:errcheck // only open still if nothing was served
	return supervise(ctx, s, registry, log, work{
		ready: func() error { return errors.Join(proc.Ready(), requests.Ready()) },
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
				ended <- requests.Run(ctx)
				stop()
			}()
			err := proc.Run(judging)
			end()
			return errors.Join(err, <-ended)
		},
	})
}
