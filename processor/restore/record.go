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

// skips has the records of a changelog that an operator decided to skip: offset and digest of the
// record's bytes.
type skips map[int64]string

// has reports whether rec is such a record.
func (s skips) has(rec *kgo.Record) bool {
	digest, ok := s[rec.Offset]
	return ok && digest == wire.DigestOf(rec)
}

// refuseLogged returns the refusal of a task at a record of its changelog that cannot be read.
func refuseLogged(id app.TaskID, unreadable *wire.UnreadableError) app.Refusal {
	refusal := app.RefuseRecord(id, unreadable)
	refusal.Detail += "; if oncebus wrote it, its rows are lost with it, and duplicates of their keys would be emitted"
	return refusal
}

// awaitSkip waits until an operator decides to skip a record of the changelog. It drops those rows of the record
// that the restore has already put into the store.
func (r *Restore) awaitSkip(ctx context.Context, unreadable *wire.UnreadableError) error {
	r.dropOpenRows()
	refusal := refuseLogged(r.id, unreadable)
	_, err := r.awaitDecision(ctx, &refusal)
	if err == nil {
		r.skips[unreadable.Offset] = unreadable.Digest
	}
	return err
}

// dropOpenRows drops the rows of a record that was applied only in part. It also drops the counts and claims,
// which may include these rows.
func (r *Restore) dropOpenRows() {
	if r.Store != nil {
		r.Store.Discard()
	}
	r.tally, r.Waiting = nil, nil
}

// skipsDecided reports whether err is about a record that an operator decided to skip. If so, later
// reads leave the record out.
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

// checkClaim returns an error if the claim of a row cannot be read: the task could not judge the row's
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

// RecordDecision asks an operator what to do with an input record that cannot be read, and waits for
// the decision.
type RecordDecision struct {
	background

	Record *wire.UnreadableError
}

// AskAbout asks for a decision on record in a goroutine, which calls finished at its end. It ends with
// the decision, or with Stop.
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
