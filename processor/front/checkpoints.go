package front

import (
	"context"
	"log/slog"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"oncebus/processor/app"
	"oncebus/processor/kafka"
)

// readCheckpoints returns the newest checkpoint of each task of an app. Unless show is nil, it calls show with
// the number of checkpoints that it has read, and the number of all. It waits until open transactions have
// ended, and logs that it waits, because the transaction of a frozen process ends only after the transaction
// timeout.
func readCheckpoints(ctx context.Context, client *kgo.Client, rt *app.App, log *slog.Logger, show func(read, of int64)) ([]app.TaskCheckpoint, error) {
	leaders := kafka.NewLeaders(client)
	var ids []app.TaskID
	for _, topic := range rt.Topology.TaskTopics() {
		for partition := range rt.Topology.Topics[topic].Partitions {
			ids = append(ids, app.TaskID{Topic: topic, Partition: partition})
		}
	}
	var all []app.TaskCheckpoint
	for _, id := range ids {
		name := app.ChangelogName(rt.Topology.App, id.Topic)
		slow := time.AfterFunc(silentMax, func() {
			log.Warn("waiting for the changelog of a task: probably a process that does not go on has a transaction open there, which ends after its timeout", "task", id)
		})
		last, _, err := app.LastCheckpoint(ctx, leaders.NewReader(name, rt.Topology.Topics[name].ID, id.Partition))
		slow.Stop()
		if err != nil {
			return nil, err
		}
		if last.Has() && !last.IsWhole() {
			return nil, kafka.OperatorErrorf("task %v: its changelog has lost the newest whole checkpoint; its next transaction writes one", id)
		}
		all = append(all, app.TaskCheckpoint{Task: id, Checkpoint: last.Newest()})
		if show != nil {
			show(int64(len(all)), int64(len(ids)))
		}
	}
	return all, nil
}
