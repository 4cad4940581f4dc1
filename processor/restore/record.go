package restore

import (
	"context"
	"fmt"
	"log/slog"

	"github.com/twmb/franz-go/pkg/kgo"

	"oncebus/dedup"
	"oncebus/processor/app"
	"oncebus/processor/kafka"
	"oncebus/processor/wire"
)

// skips are the records of a changelog that an operator skips: the digests of their bytes, by
// offset.
type skips map[int64]string

// has reports whether a record is one of them.
func (s skips) has(rec *kgo.Record) bool {
	digest, ok := s[rec.Offset]
	return ok && digest == wire.DigestOf(rec)
}

// awaitSkip waits until an operator skips a record of the changelog. Rows of it that the
// restore has put are dropped.
func (r *Restore) awaitSkip(ctx context.Context, unreadable *wire.UnreadableError) error {
	if r.Store != nil {
		r.Store.Discard()
	}
	r.tally, r.Waiting = nil, nil // they may know of these rows
	refusal := app.RefuseRecord(r.id, unreadable)
	refusal.Detail += "; if oncebus wrote it, its rows are lost with it, and duplicates of their keys would be emitted"
	if _, err := r.awaitDecision(ctx, &refusal); err != nil {
		return err
	}
	if r.skips == nil {
		r.skips = skips{}
	}
	r.skips[unreadable.Offset] = unreadable.Digest
	return nil
}

// checkClaim returns an error if the claim of a row cannot be read: the task could not judge its
// key.
func checkClaim(row *dedup.Row) error {
	if row.Result == nil {
		return nil
	}
	if _, err := dedup.DecodeClaim(row.Result); err != nil {
		return fmt.Errorf("claim of key %v: %w", row.Digest, err)
	}
	return nil
}

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
