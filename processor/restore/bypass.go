package restore

import (
	"context"

	"oncebus/processor/app"
	"oncebus/processor/kafka"
	"oncebus/processor/wire"
)

// A detour is how a task learns from the changelog where to go on without its
// store.
type Bypass struct {
	background

	// Written before done is closed.
	Checkpoint wire.Checkpoint
	Found      bool // the changelog has a checkpoint
	Emptied    bool // the changelog had records once, and has no checkpoint
	Err        error
}

// StartBypass reads a task's last checkpoint. The reading begins after the
// group's stable offset fetch, like a restore's, so no open transaction of a
// former owner can come after it.
func StartBypass(ctx context.Context, src *Source, id app.TaskID, finished func()) *Bypass {
	d := &Bypass{}
	d.start(ctx, finished, func(ctx context.Context) {
		changelog := src.App.ChangelogOf(id.Topic)
		reader := kafka.NewReader(src.Client, changelog, src.App.Topology.Topics[changelog].ID, id.Partition)
		var start int64
		d.Checkpoint, d.Found, start, d.Err = app.LastCheckpoint(ctx, reader)
		d.Emptied = !d.Found && start > 0
		if d.Err != nil {
			_ = kafka.Pause(ctx, retryMax) // the caller tries again at once
		}
	})
	return d
}
