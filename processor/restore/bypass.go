package restore

import (
	"context"
	"errors"
	"log/slog"

	"oncebus/processor/app"
	"oncebus/processor/kafka"
	"oncebus/processor/wire"
)

// Bypass reads from the changelog at which offsets a task continues if it cannot use its store.
type Bypass struct {
	background

	// The goroutine writes the fields below before it closes done.
	Checkpoint wire.Checkpoint
	Found      bool // the changelog has a checkpoint, with every checkpoint that it is relative to
	Emptied    bool // the changelog lost records and has no such checkpoint
	Err        error
}

// StartBypass reads a task's last checkpoint in a goroutine, which calls finished at its end. Like a restore, it
// starts only after the fetch of the group's stable offset: from then on a former owner has no open transaction
// that could still commit.
func StartBypass(ctx context.Context, src *Source, id app.TaskID, log *slog.Logger, finished func()) *Bypass {
	b := &Bypass{}
	b.start(ctx, finished, func(ctx context.Context) {
		changelog := src.App.ChangelogOf(id.Topic)
		reader := src.Leaders.NewReader(changelog, src.App.Topology.Topics[changelog].ID, id.Partition)
		skipped := skips{}
		reader.Skip(skipped.has)
		last, start, err := app.LastCheckpoint(ctx, reader)
		for ctx.Err() == nil {
			unreadable, ok := errors.AsType[*wire.UnreadableError](err)
			if !ok {
				break
			}
			refusal := refuseLogged(id, unreadable)
			if _, err = src.awaitDecision(ctx, id, log, &refusal); err == nil {
				skipped[unreadable.Offset] = unreadable.Digest
				last, start, err = app.LastCheckpoint(ctx, reader)
			}
		}
		b.Err = err
		b.Checkpoint, b.Found = last.Newest(), last.IsWhole()
		b.Emptied = !b.Found && start > 0
		if b.Err != nil {
			_ = kafka.Pause(ctx, retryMax) // the caller retries at once, so pause here
		}
	})
	return b
}
