package processor

import (
	"context"
	"fmt"
	"maps"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"

	"oncebus/processor/app"
	"oncebus/processor/kafka"
)

// ownersInterval is the time between two descriptions of the groups. A partition that has no owner in two
// descriptions in a row is orphaned. In a cooperative rebalance, too, a moving partition has no owner for a
// while, but only until its old owner joins again.
const ownersInterval = 5 * time.Second

// An ownerWatch makes the workers join their group again if a partition has no owner. In the first half of a
// cooperative rebalance a partition that moves is assigned to no member. Its old owner then joins again, which
// begins the second half. But the old owner may die in between, and a new process may take its static name. The
// coordinator then gives the new process the present assignment, without a rebalance (KIP-345). So the group is
// stable, but no member reads the partition until some member joins or leaves (B12).
//
// There is a similar problem if a process comes back without one of its routes. The group may still assign it
// the topics of that route, because the coordinator does not compare the subscriptions of a static member (B13).
// The process's client skips these topics, and no other member gets them. So the process's workers join again at
// once.
type ownerWatch struct {
	*shared

	workers []*worker
	orphans map[string]map[app.TaskID]bool // by stage: the partitions without an owner in the last check
}

func newOwnerWatch(s *shared, workers []*worker) *ownerWatch {
	return &ownerWatch{shared: s, workers: workers, orphans: map[string]map[app.TaskID]bool{}}
}

func (o *ownerWatch) run(ctx context.Context) {
	for kafka.Pause(ctx, o.ownersInterval) == nil {
		o.returnRemoved()
		t := o.newest().rt.Topology
		for stage, topics := range map[string][]string{app.StageDedup: t.TaskTopics(), app.StageRoute: t.Routed} {
			if len(topics) == 0 {
				continue
			}
			if err := o.check(ctx, stage, topics); err != nil && ctx.Err() == nil {
				o.log.Debug("describe group failed", "stage", stage, "error", err)
			}
		}
	}
}

// check compares the unassigned partitions with those of the last check.
func (o *ownerWatch) check(ctx context.Context, stage string, topics []string) error {
	before := o.orphans[stage]
	o.orphans[stage] = nil
	group, err := o.describeGroup(ctx, stage)
	if err != nil || group.State != "Stable" {
		return err
	}
	now := map[app.TaskID]bool{}
	for _, topic := range topics {
		for partition := range o.newest().rt.Topology.Topics[topic].Partitions {
			now[app.TaskID{Topic: topic, Partition: partition}] = true
		}
	}
	group.AssignedPartitions().Each(func(topic string, partition int32) { delete(now, app.TaskID{Topic: topic, Partition: partition}) })
	o.orphans[stage] = now
	maps.DeleteFunc(before, func(id app.TaskID, _ bool) bool { return !now[id] })
	if len(before) == 0 {
		return nil
	}
	for id := range before {
		o.log.Warn("partition without an owner in a stable group, joining the group again", "stage", stage, "partition", id.String())
	}
	o.rejoin(stage)
	return nil
}

// describeGroup returns the group of a stage.
func (s *shared) describeGroup(ctx context.Context, stage string) (*kadm.DescribedGroup, error) {
	ctx, cancel := context.WithTimeout(ctx, s.ownersInterval)
	defer cancel()
	name := app.GroupName(s.cfg.AppID, stage)
	described, err := s.admin.DescribeGroups(ctx, name)
	group := described[name]
	if err == nil {
		err = group.Err
	}
	if err != nil {
		return nil, fmt.Errorf("describe group %s: %w", name, err)
	}
	return &group, nil
}

// rejoin makes all workers of a stage join their group again. A join of the group's leader always causes a
// rebalance, a join of another member only if its metadata has changed (KIP-568). As any worker may be the
// leader, all of them join.
func (o *ownerWatch) rejoin(stage string) {
	o.metrics.rejoined.WithLabelValues(stage).Inc()
	o.orphans[stage] = nil // the next two checks begin after the rebalance
	for _, w := range o.workers {
		if w.stage == stage {
			w.rejoin.Store(true)
			w.wake()
		}
	}
}

// returnRemoved makes a stage join its group again if the group assigned it a topic that it does not read.
func (o *ownerWatch) returnRemoved() {
	removed := map[string]string{} // by stage
	for _, w := range o.workers {
		if topic := w.member.removedTopic(); topic != "" {
			removed[w.stage] = topic
		}
	}
	for stage, topic := range removed {
		o.log.Info("assigned a topic of a removed route, joining the group again", "stage", stage, "topic", topic)
		o.rejoin(stage)
	}
}
