package main

import (
	"context"
	"log/slog"

	"github.com/prometheus/client_golang/prometheus"

	"oncebus/cmd/oncebus/cli"
	"oncebus/cmd/oncebus/settings"
	"oncebus/dedup/rules"
	"oncebus/processor/ingress"
)

// runIngress is 'oncebus ingress': it takes events in and judges none.
func runIngress(ctx context.Context, args []string, p cli.Process) int {
	return service{name: "ingress", about: "Takes events in by HTTP at ONCEBUS_INGRESS_ADDR, puts them on the bus, and answers with\n" +
		"what the processes of 'oncebus run' decide. Its routes file and ONCEBUS_KEY_SECRET are\n" +
		"theirs. It has no options and keeps no state; its settings are environment variables, of\n" +
		"which ONCEBUS_STATE_*, _DISK_* and _WORKERS mean nothing to it. Exit codes as for 'run'.",
		load: settings.LoadIngress, serve: serveIngress,
	}.run(ctx, args, p)
}

func serveIngress(ctx context.Context, s settings.Settings, routes *rules.Routes, log *slog.Logger) int {
	registry := newRegistry()
	requests, code := openIngress(ctx, s, routes, registry, log)
	if requests == nil {
		return code
	}
	defer requests.Close() //nolint:errcheck // only open still if nothing was served
	return supervise(ctx, s, registry, log, work{ready: requests.Ready, state: func() any { return requests.State() }, run: requests.Run})
}

// openIngress returns an ingress that listens. Nil means that the process ends
// with the code.
func openIngress(ctx context.Context, s settings.Settings, routes *rules.Routes, registry prometheus.Registerer, log *slog.Logger) (*ingress.Service, int) {
	requests, err := ingress.NewService(s.Ingress, s.Processor.AppConfig, routes, registry, log)
	if err != nil {
		log.Error("wrong settings", "error", err)
		return nil, cli.ExitWrong
	}
	if err := requests.Listen(ctx); err != nil {
		log.Error("http address cannot be used, choose another ONCEBUS_INGRESS_ADDR", "addr", s.Ingress.Addr, "error", err)
		return nil, cli.ExitFailed
	}
	log.Info("ingress listening", "addr", requests.Addr().String())
	return requests, cli.ExitStopped
}
