package processor

import (
	"context"
	"fmt"
	"maps"
	"time"

	"oncebus/processor/app"
	"oncebus/processor/kafka"
)

// ownersInterval is how often the groups are described. A partition without an
// owner in two descriptions has lost it. Between the two halves of a cooperative
// rebalance a partition has no owner only until its old owner joins again.
const ownersInterval = 5 * time.Second

// An ownerWatch makes sure that every partition has an owner. In the first half
// of a cooperative rebalance a partition that moves is assigned to no member. Its
// old owner then joins again, which begins the second half. If that member dies in
// between and a new process takes its static name, the coordinator responds to
// the new one with the assignment as it is, without a rebalance (KIP-345). The
// group is stable, and no member reads the partition until one joins or leaves
// (B12). A worker that joins again ends that.
type ownerWatch struct {
	*shared

	workers []*worker
	orphan  map[string]map[app.TaskID]bool // by stage, of the last look
}

func newOwnerWatch(s *shared, workers []*worker) *ownerWatch {
	return &ownerWatch{shared: s, workers: workers, orphan: map[string]map[app.TaskID]bool{}}
}

func (o *ownerWatch) run(ctx context.Context) {
	topics := map[string][]string{stageDedup: o.rt.Topology.TaskTopics()}
	if routed := o.rt.Topology.Routed; len(routed) > 0 {
		topics[stageRoute] = routed
	}
	for kafka.Pause(ctx, o.ownersInterval) == nil {
		for stage, topics := range topics {
			if err := o.look(ctx, stage, topics); err != nil && ctx.Err() == nil {
				o.log.Debug("who owns what cannot be found out", "stage", stage, "error", err)
			}
		}
	}
}

// look compares what is assigned now with what was missing before.
func (o *ownerWatch) look(ctx context.Context, stage string, topics []string) error {
	before := o.orphan[stage]
	o.orphan[stage] = nil
	ctx, cancel := context.WithTimeout(ctx, o.ownersInterval)
	defer cancel()
	name := app.GroupName(o.cfg.AppID, stage)
	described, err := o.admin.DescribeGroups(ctx, name)
	if err == nil {
		err = described[name].Err
	}
	if err != nil {
		return fmt.Errorf("describe group %s: %w", name, err)
	}
	group := described[name]
	if group.State != "Stable" {
		return nil
	}
	now := map[app.TaskID]bool{}
	for _, topic := range topics {
		for partition := range o.rt.Topology.Topics[topic].Partitions {
			now[app.TaskID{Topic: topic, Partition: partition}] = true
		}
	}
	group.AssignedPartitions().Each(func(topic string, partition int32) { delete(now, app.TaskID{Topic: topic, Partition: partition}) })
	o.orphan[stage] = now
	maps.DeleteFunc(before, func(id app.TaskID, _ bool) bool { return !now[id] })
	if len(before) == 0 {
		return nil
	}
	for id := range before {
		o.log.Warn("a partition has no owner although its group is stable: joining again, so that it is assigned", "stage", stage, "partition", id.String())
	}
	o.metrics.rejoined.WithLabelValues(stage).Inc()
	o.orphan[stage] = nil // the group gets two looks of time again
	// A leader may join again without a reason, others with what they own now
	// (KIP-568): between them, the workers of a process make the group move.
	for _, w := range o.workers {
		if w.stage == stage {
			w.rejoin.Store(true)
			w.wake()
		}
	}
	return nil
}
