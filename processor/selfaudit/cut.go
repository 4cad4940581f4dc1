package selfaudit

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"oncebus/dedup/rules"
	"oncebus/processor/app"
	"oncebus/processor/kafka"
	"oncebus/processor/oracle"
	"oncebus/processor/wire"
)

// cut takes a position in these steps, each after the previous one:
//
//	input offsets of the groups, stable
//	ends of the repartition topic, decided
//	checkpoints, and from next on the records of the repartition topic: the records that are not judged yet
//	ends of the changelogs: have the rows of all that was judged
//	ends of the emission topics: have the outputs of these rows
//	ends of the changelogs again: have the rows of these outputs
//
// An end offset is decided when every transaction with a record below that offset has ended.
func (a *Auditor) cut(ctx context.Context) (*Position, error) {
	p := a.newPosition()
	var err error
	if p.Set, err = a.setOfAll(ctx); err != nil {
		return nil, err
	}
	if err := a.judged(ctx, p); err != nil {
		return nil, err
	}
	return p, a.ends(ctx, p)
}

// edge takes a position before which nothing is known. It also returns an offset of each changelog: the outputs
// of all rows below that offset lie before the position.
func (a *Auditor) edge(ctx context.Context) (p *Position, sure map[string][]int64, err error) {
	p = a.newPosition()
	p.Edge = true
	if p.Set, err = a.setOfAll(ctx); err != nil {
		return nil, nil, err
	}
	if err := a.ends(ctx, p); err != nil {
		return nil, nil, err
	}
	return p, p.sure, a.judged(ctx, p)
}

// ends sets the ends of the changelogs and of the emission topics.
func (a *Auditor) ends(ctx context.Context, p *Position) (err error) {
	if p.sure, err = a.decided(ctx, a.changelogs()); err != nil {
		return err
	}
	if p.Emissions, err = a.decided(ctx, a.emissions()); err != nil {
		return err
	}
	p.Changelogs, err = a.decided(ctx, a.changelogs())
	return err
}

// decided returns, for each partition, an offset below which every transaction has ended, and which is at least
// the end of the partition at the call.
func (a *Auditor) decided(ctx context.Context, topics []string) (map[string][]int64, error) {
	high, err := a.list(ctx, a.admin.ListEndOffsets, topics)
	for err == nil {
		var stable map[string][]int64
		if stable, err = a.list(ctx, a.admin.ListCommittedOffsets, topics); err != nil {
			break
		}
		behind := false
		for topic, ends := range high {
			for partition, end := range ends {
				behind = behind || stable[topic][partition] < end
			}
		}
		if !behind {
			return stable, nil
		}
		err = kafka.Pause(ctx, kafka.ReadRetryPause)
	}
	return nil, err
}

// list lists offsets by topic and partition.
func (a *Auditor) list(ctx context.Context, list func(context.Context, ...string) (kadm.ListedOffsets, error), topics []string) (map[string][]int64, error) {
	if len(topics) == 0 {
		return map[string][]int64{}, nil
	}
	for {
		listed, err := list(ctx, topics...)
		if err == nil {
			err = listed.Error()
		}
		if err != nil && kafka.Classify(err) == kafka.Retry {
			if err := kafka.Pause(ctx, kafka.ReadRetryPause); err != nil {
				return nil, err
			}
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("list offsets of %v: %w", topics, err)
		}
		return a.byPartition(listed, topics)
	}
}

// byPartition returns listed offsets by topic and partition. If the broker left out an offset, that is an
// error, because a zero in its place would look like a real offset.
func (a *Auditor) byPartition(listed kadm.ListedOffsets, topics []string) (map[string][]int64, error) {
	all := map[string][]int64{}
	for _, topic := range topics {
		all[topic] = make([]int64, a.topics[topic].Partitions)
		for partition := range all[topic] {
			o, ok := listed.Lookup(topic, int32(partition))
			if !ok {
				return nil, fmt.Errorf("list offsets of %s/%d: %w", topic, partition, kerr.UnknownTopicOrPartition)
			}
			all[topic][partition] = o.Offset
		}
	}
	return all, nil
}

// judged sets the input offsets, the records below them that still wait in the repartition topic, and the
// stream times.
func (a *Auditor) judged(ctx context.Context, p *Position) error {
	t := a.app.Topology
	if err := a.routed(ctx, p); err != nil {
		return err
	}
	var ends map[string][]int64
	if t.Repartition != "" {
		var err error
		if ends, err = a.decided(ctx, []string{t.Repartition}); err != nil {
			return err
		}
	}
	for _, topic := range t.TaskTopics() {
		for partition := range a.topics[topic].Partitions {
			task := app.TaskID{Topic: topic, Partition: partition}
			c, err := a.checkpoint(ctx, task)
			if err != nil {
				return err
			}
			p.checkpoints[task] = c
			switch {
			case topic != t.Repartition:
				p.Inputs[topic][partition] = max(c.Next, a.start(topic, partition))
			default:
				if err := a.waiting(ctx, p, partition, c.Next, ends[topic][partition]); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

// routed sets the input offsets of the routing stage.
func (a *Auditor) routed(ctx context.Context, p *Position) error {
	topics := a.app.Topology.Routed
	if len(topics) == 0 {
		return nil
	}
	partitions := map[string][]int32{}
	for _, topic := range topics {
		for partition := range a.topics[topic].Partitions {
			partitions[topic] = append(partitions[topic], partition)
		}
	}
	group := app.GroupName(a.cfg.AppID, app.StageRoute)
	for {
		offsets, err := kafka.StableOffsets(ctx, a.client, group, partitions)
		if err != nil && kafka.Classify(err) != kafka.Retry {
			return err
		}
		known := err == nil
		for _, topic := range topics {
			for partition := range a.topics[topic].Partitions {
				o, ok := offsets[topic][partition]
				known = known && ok
				p.Inputs[topic][partition] = max(o.At, a.start(topic, partition))
			}
		}
		if known {
			return nil
		}
		if err := kafka.Pause(ctx, kafka.ReadRetryPause); err != nil { // a transaction is still open
			return err
		}
	}
}

// start returns the first offset of an input partition that the app reads.
func (a *Auditor) start(topic string, partition int32) int64 {
	offset, _ := a.app.Manifest.Start(topic, a.topics[topic].ID, partition)
	return offset
}

// checkpoint returns the last checkpoint of a task; the zero value if the task has none.
func (a *Auditor) checkpoint(ctx context.Context, task app.TaskID) (wire.Checkpoint, error) {
	name := a.app.ChangelogOf(task.Topic)
	fold, _, err := app.LastCheckpoint(ctx, a.leaders.NewReader(name, a.topics[name].ID, task.Partition))
	switch {
	case err != nil:
		return wire.Checkpoint{}, err
	case !fold.Has():
		return wire.Checkpoint{}, nil
	case !fold.IsWhole():
		return wire.Checkpoint{}, kafka.OperatorErrorf("task %v: its changelog has lost the newest whole checkpoint; its next transaction writes one", task)
	}
	return fold.Newest(), nil
}

// waiting records the input records that were routed to a task but not judged yet. Records that the app deletes
// in the meantime were judged.
func (a *Auditor) waiting(ctx context.Context, p *Position, partition int32, next, end int64) error {
	topic := a.app.Topology.Repartition
	reader := a.leaders.NewReader(topic, a.topics[topic].ID, partition)
	for {
		start, _, err := reader.Bounds(ctx)
		if err != nil {
			return err
		}
		next = max(next, start)
		err = reader.Read(ctx, next, end, func(records []*kgo.Record, position int64) error {
			for _, rec := range records {
				var e wire.Envelope
				if err := wire.ReadEnvelope(rec, &e); err != nil {
					return fmt.Errorf("%s/%d/%d: %w", topic, partition, rec.Offset, err)
				}
				if !e.FromIngress && !e.IsProgress && e.Outcome == nil && !e.IsSeed {
					p.waits[oracle.Position{Topic: e.From.Topic, Partition: e.From.Partition, Offset: e.From.Offset}] = true
				}
			}
			next = position
			return nil
		})
		if !errors.Is(err, kerr.OffsetOutOfRange) {
			return err
		}
	}
}

// horizons returns, by namespace id, the first seen time before which no task needs a row.
func (a *Auditor) horizons(p *Position) *[256]int64 {
	var lowest [256]int64
	for id := range lowest {
		lowest[id] = math.MaxInt64
	}
	for task, c := range p.checkpoints {
		for id, h := range a.app.Horizons(&c) {
			if a.hasSpace(task.Topic, uint8(id)) {
				lowest[id] = min(lowest[id], h)
			}
		}
	}
	return &lowest
}

// hasSpace reports whether the tasks of a topic have a namespace.
func (a *Auditor) hasSpace(topic string, id uint8) bool {
	return slices.ContainsFunc(a.routes.Routes, func(r *rules.Route) bool {
		return a.app.ByName[r.Name].NamespaceID == id && a.app.Topology.TaskTopicOf(r) == topic
	})
}
