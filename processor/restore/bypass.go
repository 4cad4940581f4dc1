package restore

import (
	"context"

	"oncebus/processor/app"
	"oncebus/processor/kafka"
	"oncebus/processor/wire"
)

// Bypass reads from the changelog at which offsets a task continues without its
// store.
type Bypass struct {
	background

	// Written before done is closed.
	Checkpoint wire.Checkpoint
	Found      bool // the changelog has a checkpoint, with all that it is relative to
	Emptied    bool // the changelog lost records and has no such checkpoint
	Err        error
}

// StartBypass reads a task's last checkpoint in a goroutine of its own, which calls
// finished at its end. Like a restore it starts after the group's stable offset
// fetch, so no open transaction of a former owner can commit later.
func StartBypass(ctx context.Context, src *Source, id app.TaskID, finished func()) *Bypass {
	b := &Bypass{}
	b.start(ctx, finished, func(ctx context.Context) {
		changelog := src.App.ChangelogOf(id.Topic)
		reader := src.Leaders.NewReader(changelog, src.App.Topology.Topics[changelog].ID, id.Partition)
		var last wire.Fold
		var start int64
		last, start, b.Err = app.LastCheckpoint(ctx, reader)
		b.Checkpoint, b.Found = last.Newest(), last.IsWhole()
		b.Emptied = !b.Found && start > 0
		if b.Err != nil {
			_ = kafka.Pause(ctx, retryMax) // the caller retries at once
		}
	})
	return b
}
