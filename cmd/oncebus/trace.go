package main

import (
	"context"
	"log/slog"
	"time"

	"oncebus/cmd/oncebus/settings"
	"oncebus/processor"
	"oncebus/processor/tracing"
)

// spansStopTimeout is how long the process waits at its stop for a collector of spans that does not respond.
const spansStopTimeout = 5 * time.Second

// exportSpans makes the processor export spans if the environment names a collector. stop sends the spans that
// still wait.
func exportSpans(ctx context.Context, s settings.Settings, proc *processor.Processor, log *slog.Logger) (stop func(), err error) {
	if s.SpansEndpoint == "" {
		return func() {}, nil
	}
	tracer, err := tracing.New(ctx, s.SpansEndpoint, s.Processor.AppID, s.Processor.InstanceID, version(), log)
	if err != nil {
		return nil, err
	}
	proc.Trace(tracer)
	log.Info("spans of sampled events are exported")
	return func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), spansStopTimeout)
		defer cancel()
		if err := tracer.Close(ctx); err != nil {
			log.Warn("last spans not exported", "error", err)
		}
	}, nil
}
