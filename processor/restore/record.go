package restore

import (
	"context"
	"log/slog"

	"oncebus/processor/app"
	"oncebus/processor/kafka"
	"oncebus/processor/wire"
)

// A RecordDecision asks an operator what becomes of an input record that cannot be read, and
// waits for the decision.
type RecordDecision struct {
	background

	Record *wire.UnreadableError
}

// AskAbout asks in a goroutine of its own, which calls finished at its end. That is the
// decision, or Stop.
func AskAbout(ctx context.Context, src *Source, id app.TaskID, log *slog.Logger, record *wire.UnreadableError, finished func()) *RecordDecision {
	d := &RecordDecision{Record: record}
	refusal := app.RefuseRecord(id, record)
	d.start(ctx, finished, func(ctx context.Context) {
		defer src.Explain(id, "")
		src.Explain(id, refusal.Text())
		for ctx.Err() == nil {
			if _, err := src.awaitDecision(ctx, id, log, &refusal); err == nil {
				return
			} else if ctx.Err() == nil {
				log.Warn("ask for a decision failed, retrying", "error", err)
			}
			_ = kafka.Pause(ctx, retryMax) // the loop checks ctx
		}
	})
	return d
}
