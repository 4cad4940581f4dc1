package restore

import (
	"context"
	"errors"
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

// refuseLogged returns the refusal of a task at a record of its changelog.
func refuseLogged(id app.TaskID, unreadable *wire.UnreadableError) app.Refusal {
	refusal := app.RefuseRecord(id, unreadable)
	refusal.Detail += "; if oncebus wrote it, its rows are lost with it, and duplicates of their keys would be emitted"
	return refusal
}

// awaitSkip waits until an operator skips a record of the changelog. Rows of it that the
// restore has put are dropped.
func (r *Restore) awaitSkip(ctx context.Context, unreadable *wire.UnreadableError) error {
	r.dropOpenRows()
	refusal := refuseLogged(r.id, unreadable)
	_, err := r.awaitDecision(ctx, &refusal)
	if err == nil {
		r.skips[unreadable.Offset] = unreadable.Digest
	}
	return err
}

// dropOpenRows drops the rows of a record that was put in part, and what may know of them.
func (r *Restore) dropOpenRows() {
	if r.Store != nil {
		r.Store.Discard()
	}
	r.tally, r.Waiting = nil, nil
}

// skipsDecided reports whether err is about a record that an operator skips. It is left out
// from then on.
func (r *Restore) skipsDecided(ctx context.Context, err error) bool {
	unreadable, ok := errors.AsType[*wire.UnreadableError](err)
	if !ok {
		return false
	}
	decisions, failed := r.src.Decisions(ctx)
	refusal := refuseLogged(r.id, unreadable)
	if failed != nil {
		return false
	}
	if _, ok := decisions.Accepted(&refusal); !ok {
		return false
	}
	r.dropOpenRows()
	r.skips[unreadable.Offset] = unreadable.Digest
	return true
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
