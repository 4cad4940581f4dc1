package main

import (
	"context"
	"log/slog"

	"github.com/prometheus/client_golang/prometheus"

	"oncebus/cmd/oncebus/cli"
	"oncebus/cmd/oncebus/page"
	"oncebus/cmd/oncebus/settings"
	"oncebus/dedup/rules"
	"oncebus/processor"
	"oncebus/processor/ingress"
)

// ingressCommand is 'oncebus ingress': it accepts events over HTTP. Other processes, with 'oncebus run', judge
// them.
func ingressCommand() cli.Command {
	return service{Command: cli.Command{
		Name: "ingress", About: "accept events by HTTP and respond with the verdict",
		Long: "Accepts events by HTTP at ONCEBUS_INGRESS_ADDR, produces them to Kafka, and responds with\n" +
			"the verdict of 'oncebus run'. Both need the same routes file and ONCEBUS_KEY_SECRET. It has\n" +
			"no options, and no state but the events that a route with on_kafka_unavailable: keep leaves in\n" +
			"ONCEBUS_STATE_DIR. Its settings are environment variables; an empty one counts as unset. It\n" +
			"ignores the other ONCEBUS_STATE_*, ONCEBUS_DISK_* and ONCEBUS_WORKERS. Exit codes: 0 stopped\n" +
			"as requested, 1 failed while running, 2 wrong settings or routes\n" +
			"(it contacted no broker and wrote nothing).",
		Example: "ONCEBUS_BROKERS=localhost:9092 ONCEBUS_INGRESS_ADDR=127.0.0.1:8081 oncebus ingress",
	}, load: settings.LoadIngress, serve: serveIngress}.command()
}

func serveIngress(ctx context.Context, s settings.Settings, routes *rules.Routes, kept *page.Log, log *slog.Logger) int {
	registry := newRegistry()
	s.Processor.Config = s.Processor.WithBudget()
	processor.RegisterBudget(registry, s.Processor.Budget())
	requests, code := openIngress(ctx, s, routes, registry, log)
	if requests == nil {
		return code
	}
	defer requests.Close() //nolint:errcheck // Run has closed it, unless it did not start
	return supervise(ctx, s, registry, log, work{
		ready: requests.Ready, state: func(bool) any { return requests.State() }, run: requests.Run,
		page: page.Source{Role: page.RoleIngress, Routes: routes.Routes, Log: kept},
	})
}

// openIngress returns an ingress that listens. If that fails, it returns nil and the exit code.
func openIngress(ctx context.Context, s settings.Settings, routes *rules.Routes, registry prometheus.Registerer, log *slog.Logger) (*ingress.Service, int) {
	for _, w := range routes.Warnings {
		log.Warn("routes file warning", "warning", w)
	}
	requests, err := ingress.NewService(s.Ingress, s.Processor.Config, routes, registry, log)
	if err != nil {
		log.Error("wrong settings", "error", err)
		return nil, cli.ExitWrong
	}
	if err := requests.KeepIn(s.Processor.StateDir); err != nil {
		log.Error("start failed; ONCEBUS_STATE_DIR must be writable, and no other process may use it", "error", err)
		return nil, cli.ExitFailed
	}
	if err := requests.Listen(ctx); err != nil {
		log.Error("listen for ingress failed; choose another ONCEBUS_INGRESS_ADDR", "addr", s.Ingress.Addr, "error", err)
		return nil, cli.ExitFailed
	}
	log.Info("ingress listening", "addr", requests.Addr().String())
	return requests, cli.ExitStopped
}
