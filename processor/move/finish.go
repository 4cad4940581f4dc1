package move

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"oncebus/processor/app"
	"oncebus/processor/kafka"
	"oncebus/processor/wire"
)

// Finished tells what Finish deleted.
type Finished struct {
	Deleted []string `json:"deleted"` // topics
}

// Finish deletes the topics of earlier generations, and the topics of moves that were undone. First it makes an
// old repartition topic refuse records, because an ingress that was suspended may still try to write a record
// there; the ingress then has to send that record to the new topic. Finish waits until all records in the old
// topic are forwarded, and until no process reads the topic any more.
func (m *Mover) Finish(ctx context.Context) (*Finished, error) {
	f, err := m.finish(ctx)
	return f, m.explain(err)
}

// finish refuses to run while a switch is going on. It seals the old repartition topics and waits until their
// records are forwarded; then it deletes the topics that are no longer needed.
func (m *Mover) finish(ctx context.Context) (*Finished, error) {
	t := m.app.Topology
	rows, err := app.ReadRows(ctx, m.conn.Client, t)
	if err != nil {
		return nil, err
	}
	sw, err := app.SwitchIn(rows)
	if err == nil && sw != nil && !sw.Phase.IsOver() {
		err = sw.Other()
	}
	if err != nil {
		return nil, err
	}
	for _, topic := range t.Forwarded {
		if err := m.seal(ctx, topic); err != nil {
			return nil, err
		}
		if err := m.awaitForwarded(ctx, topic); err != nil {
			return nil, err
		}
	}
	finished := &Finished{Deleted: []string{}}
	if err := m.deleteMoved(ctx, finished); err != nil {
		return nil, err
	}
	if err := app.FinishGenerations(ctx, m.conn, m.cfg, t); err != nil {
		return nil, err
	}
	newest := t.Generation
	if sw != nil {
		newest = max(newest, sw.Number)
	}
	return finished, m.deleteTopics(ctx, newest, finished)
}

// deleteMoved deletes the changelogs of topics that a move has routed, once no process reads these topics as
// tasks.
func (m *Mover) deleteMoved(ctx context.Context, finished *Finished) error {
	t := m.app.Topology
	if len(t.Moved) == 0 {
		return nil
	}
	if err := m.awaitUnread(ctx, t.Moved, app.StageDedup); err != nil {
		return err
	}
	var names []string
	for _, topic := range t.Moved {
		names = append(names, app.ChangelogName(t.App, topic))
	}
	return m.deleteExisting(ctx, names, finished)
}

// seal makes a topic refuse all records, and returns once every partition really refuses them.
func (m *Mover) seal(ctx context.Context, topic string) error {
	value := "1"
	altered, err := m.conn.Admin.AlterTopicConfigs(ctx, []kadm.AlterConfig{{Op: kadm.SetConfig, Name: "max.message.bytes", Value: &value}}, topic)
	for _, one := range altered {
		err = errors.Join(err, one.Err)
	}
	if err != nil {
		return fmt.Errorf("make topic %s refuse records: %w", topic, kafka.Denied(err, "AlterConfigs", kafka.ResourceTopic, topic))
	}
	probe := wire.Envelope{IsProgress: true} // a record that the routing stage skips
	for partition := range m.app.Topology.Topics[topic].Partitions {
		for {
			err := m.conn.Client.ProduceSync(ctx, &kgo.Record{Topic: topic, Partition: partition, Key: probe.Append(nil)}).FirstErr()
			if errors.Is(err, kerr.MessageTooLarge) {
				break
			}
			if err != nil {
				return fmt.Errorf("write to %s/%d: %w", topic, partition, kafka.Denied(err, "Write", kafka.ResourceTopic, topic))
			}
			if err := kafka.Pause(ctx, leadPoll); err != nil {
				return fmt.Errorf("topic %s/%d goes on accepting records: %w", topic, partition, err)
			}
		}
	}
	return nil
}

// awaitForwarded waits until the routing stage has committed all records of a topic.
func (m *Mover) awaitForwarded(ctx context.Context, topic string) error {
	ends, err := app.Ends(ctx, m.conn, topic)
	for err == nil {
		var left []app.TaskID
		if left, err = app.Unrouted(ctx, m.conn, m.app, topic, ends); err == nil && len(left) == 0 {
			return nil
		}
		if err == nil {
			if err = kafka.Pause(ctx, leadPoll); err != nil {
				return fmt.Errorf("records of %v and %d more partitions are not forwarded yet; is 'oncebus run' up?: %w", left[0], len(left)-1, err)
			}
		}
	}
	return err
}

// deleteTopics deletes the topics of all generations up to newest, except for the generation in force.
func (m *Mover) deleteTopics(ctx context.Context, newest int64, finished *Finished) error {
	var names []string
	for number := int64(1); number <= newest; number++ {
		if name := app.RepartitionName(m.cfg.AppID, number); number != m.app.Topology.Generation {
			names = append(names, name, app.ChangelogName(m.cfg.AppID, name))
		}
	}
	if err := m.awaitUnread(ctx, names, app.StageRoute, app.StageDedup); err != nil {
		return err
	}
	return m.deleteExisting(ctx, names, finished)
}

// deleteExisting deletes those of the topics that exist.
func (m *Mover) deleteExisting(ctx context.Context, names []string, finished *Finished) error {
	if len(names) == 0 {
		return nil
	}
	existing, err := app.DescribeTopics(ctx, m.conn.Admin, names...)
	if err != nil {
		return err
	}
	for _, name := range names {
		if existing[name].Partitions == 0 {
			continue
		}
		deleted, err := m.conn.Admin.DeleteTopic(ctx, name)
		err = errors.Join(err, deleted.Err)
		if errors.Is(err, kerr.UnknownTopicOrPartition) {
			continue // an earlier command has deleted it, but not all brokers know yet
		}
		if err != nil {
			return fmt.Errorf("delete topic %s: %w", name, kafka.Denied(err, "Delete", kafka.ResourceTopic, name))
		}
		finished.Deleted = append(finished.Deleted, name)
	}
	return nil
}

// awaitUnread waits until no process reads any of these topics in these stages.
func (m *Mover) awaitUnread(ctx context.Context, names []string, stages ...string) error {
	var ids []string
	for _, stage := range stages {
		ids = append(ids, app.GroupName(m.cfg.AppID, stage))
	}
	for {
		groups, err := app.DescribeGroups(ctx, m.conn.Admin, ids...)
		if err != nil {
			return err
		}
		reads := ""
		for _, topic := range groups.AssignedPartitions().Topics() {
			if slices.Contains(names, topic) {
				reads = "a process still reads " + topic
			}
		}
		for name, group := range groups {
			if app.Rebalances(&group) {
				reads = "group " + name + " rebalances, and does not say what its processes read"
			}
		}
		if reads == "" {
			return nil
		}
		if err := kafka.Pause(ctx, leadPoll); err != nil {
			return fmt.Errorf("%s: %w", reads, err)
		}
	}
}

// Abort undoes a move whose new partitions are not in force yet; if they are in force, it completes the move.
// It returns the switch as it is then; nil if there was none.
func (m *Mover) Abort(ctx context.Context, by string) (*app.Switch, error) {
	ended, err := app.EndSwitch(ctx, m.conn, m.cfg, m.app.Topology, "oncebus abort by "+by)
	return ended, m.explain(err)
}
