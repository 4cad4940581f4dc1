package main

import (
	"context"
	"errors"
	"log/slog"

	"oncebus/cmd/oncebus/cli"
	"oncebus/cmd/oncebus/page"
	"oncebus/cmd/oncebus/settings"
	"oncebus/dedup/rules"
	"oncebus/processor"
)

// runCommand is 'oncebus run'.
func runCommand() cli.Command {
	return service{Command: cli.Command{
		Name: "run", About: "run the service; 'oncebus run --help' lists its settings",
		Long: "Runs the service. It has no options. Its settings are environment variables; an empty one\n" +
			"counts as unset. With ONCEBUS_INGRESS_ADDR it also accepts events by HTTP, as 'oncebus\n" +
			"ingress' does. Exit codes: 0 stopped as requested, 1 failed while running, 2 wrong settings\n" +
			"or routes (it contacted no broker and wrote nothing).",
		Example: "ONCEBUS_BROKERS=localhost:9092 ONCEBUS_ROUTES=routes.yaml oncebus run",
	}, load: settings.LoadRun, serve: serve}.command()
}

// serve runs the processor and the admin server, and also the ingress if it has an address.
func serve(ctx context.Context, s settings.Settings, routes *rules.Routes, kept *page.Log, log *slog.Logger) int {
	registry := newRegistry()
	s.Processor.Config = s.Processor.WithBudget() // the processor and the ingress share this budget
	proc, err := processor.New(s.Processor, routes, registry, log)
	if err != nil {
		log.Error("wrong settings", "error", err)
		return cli.ExitWrong
	}
	stopSpans, err := exportSpans(ctx, s, proc, log)
	if err != nil {
		log.Error("wrong settings", "error", err)
		return cli.ExitWrong
	}
	defer stopSpans()
	state := func(brief bool) any {
		if brief {
			return proc.State().Brief()
		}
		return proc.State()
	}
	source := page.Source{Role: page.RoleRun, States: func() []processor.State { return []processor.State{proc.State()} }, Routes: routes.Routes, Log: kept}
	if s.Ingress.Addr == "" {
		return supervise(ctx, s, registry, log, work{ready: proc.Ready, state: state, run: proc.Run, page: source})
	}
	requests, code := openIngress(ctx, s, routes, registry, log)
	if requests == nil {
		return code
	}
	defer requests.Close() //nolint:errcheck // Run has closed it, unless it did not start
	return supervise(ctx, s, registry, log, work{
		ready: func() error { return errors.Join(proc.Ready(), requests.Ready()) },
		state: state,
		page:  source,
		run: func(ctx context.Context) error {
			// In-flight requests wait for verdicts, so the processor must not stop before the ingress has sent
			// its last response.
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
