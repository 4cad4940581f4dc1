//go:build unix

package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	decisions "oncebus/processor/app"
	"oncebus/processor/kafkatest"
)

// miniFaults damage topics and offsets of an app. The app cannot survive most of them: instead of losing events, it
// must stop with exit code 1 or wait for a decision, and name the cause. Each fault uses its own small app while the
// app of the epoch runs.
var miniFaults = []*fault{
	{row: "b6", name: "partitions-added", broker: true, apply: refusal((*mini).addPartitions, "partitions")},
	{row: "g2", name: "route-offsets-backward", broker: true, apply: routeOffsets(func(at int64) int64 { return at / 2 }, decisions.FromGroup)},
	{row: "g2", name: "route-offsets-deleted", broker: true, apply: routeOffsets(nil, "")},
}

// mini is a small app with one process and a few hundred events.
type mini struct {
	*app
	s      *slot
	client *kgo.Client
	ids    []string // the ids of all events that were sent
}

const (
	miniEvents = 300 // how many events one call of send produces
	miniMax    = 30 * time.Second
)

var miniCount atomic.Int64

// openMini creates a mini app, starts its process and sends the first events.
func (k *strike) openMini(ctx context.Context) (*mini, error) {
	a, err := k.h.newApp(fmt.Sprintf("m%d", miniCount.Add(1)), "a")
	if err != nil {
		return nil, err
	}
	m := &mini{app: a, s: a.slots[0]}
	m.client, err = kgo.NewClient(kgo.SeedBrokers(k.h.cluster.seeds()...), kgo.RecordPartitioner(kgo.ManualPartitioner()), kgo.ClientID("mini"))
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, startMax)
	defer cancel()
	if err := errors.Join(m.s.start(ctx), m.s.awaitReady(ctx), m.send(ctx), m.awaitUnique(ctx)); err != nil {
		return nil, errors.Join(err, m.close(ctx))
	}
	return m, nil
}

func (m *mini) close(ctx context.Context) error {
	m.client.Close()
	return errors.Join(m.s.kill(), m.drop(ctx))
}

// send produces new events, and a duplicate of each.
func (m *mini) send(ctx context.Context) error {
	var records []*kgo.Record
	for range miniEvents {
		id := fmt.Sprintf("mini-%d", len(m.ids))
		m.ids = append(m.ids, id)
		for copied := range 2 {
			r := &kgo.Record{Topic: m.topic("orders.raw"), Partition: int32((len(m.ids) + copied) % rawPartitions), Value: []byte("{}"), Key: []byte(id)}
			records = append(records, r)
		}
	}
	return m.client.ProduceSync(ctx, records...).FirstErr()
}

// awaitUnique waits until the output contains every event exactly once.
func (m *mini) awaitUnique(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, m.h.patience(miniMax))
	defer cancel()
	return kafkatest.Await(ctx, "every event of "+m.id+" is there", func(ctx context.Context) error {
		records, err := m.h.readCommitted(ctx, m.topic("orders.unique"))
		if err != nil {
			return err
		}
		var got []string
		for _, r := range records {
			got = append(got, string(r.Key))
		}
		slices.Sort(got)
		if n := len(got) - len(slices.Compact(slices.Clone(got))); n > 0 {
			return kafkatest.Fatal(fmt.Errorf("%d events of %s were emitted twice", n, m.id))
		}
		if len(got) != len(m.ids) {
			return fmt.Errorf("%d of %d events", len(got), len(m.ids))
		}
		return nil
	})
}

// refusal returns a fault that damages the app's topics while its process is stopped and then starts the process. The
// process must refuse to run, with an error that contains why.
func refusal(harm func(*mini, context.Context) error, why string) func(context.Context, *strike) error {
	return func(ctx context.Context, k *strike) (err error) {
		m, err := k.openMini(ctx)
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, m.close(ctx)) }()
		if err := errors.Join(m.s.stop(), harm(m, ctx)); err != nil {
			return err
		}
		m.s.doomed = true
		waiting, cancel := context.WithTimeout(ctx, m.h.patience(miniMax))
		defer cancel()
		startErr := m.s.start(waiting)
		code, err := m.s.current().ExitCode(waiting)
		if err != nil {
			return fmt.Errorf("it runs instead of refusing: %w", errors.Join(err, startErr))
		}
		log := m.s.current().Log
		if said := log.Failure(); code != 1 || !strings.Contains(said, why) {
			return fmt.Errorf("it ended with exit code %d and error %q, want 1 and %q", code, said, why)
		}
		k.note("exit code 1: %.160s", log.Failure())
		return nil
	}
}

// startDeciding starts the process and decides on its refusals until it is ready: with the given way, or with the
// first way that each refusal offers. It returns the number of its decisions.
func (m *mini) startDeciding(ctx context.Context, problem decisions.Problem, way decisions.Way) (decided int, err error) {
	started := make(chan error, 1)
	go func() { started <- errors.Join(m.s.start(ctx), m.s.awaitReady(ctx)) }()
	meta, err := m.h.admin.Metadata(ctx, m.id+"-manifest")
	if err != nil {
		return 0, errors.Join(err, <-started)
	}
	manifest := m.id + "-manifest"
	t := &decisions.Topology{App: m.id, Manifest: manifest, Topics: map[string]decisions.Topic{manifest: {ID: meta.Topics[manifest].ID}}}
	done := map[string]bool{}
	for {
		select {
		case err := <-started:
			if err == nil && len(done) == 0 {
				err = errors.New("no partition waited for a decision")
			}
			return len(done), err
		case <-time.After(200 * time.Millisecond):
		}
		if err := m.decide(ctx, t, problem, way, done); err != nil {
			return 0, err
		}
	}
}

// decide writes decisions for the refusals that have none yet.
func (m *mini) decide(ctx context.Context, t *decisions.Topology, problem decisions.Problem, way decisions.Way, done map[string]bool) error {
	all, err := decisions.ReadDecisions(ctx, m.client, t, nil)
	if err != nil {
		return nil //nolint:nilerr // a broker is down: the next look reads them
	}
	for _, r := range all.Sorted() {
		if done[r.Name()] {
			continue
		}
		if r.Problem != problem {
			return kafkatest.Fatal(fmt.Errorf("%s waits because of %s, want %s", r.Name(), r.Problem, problem))
		}
		chosen := cmp.Or(way, r.Ways[0])
		if decisions.WriteAcceptance(ctx, m.client, t, &r, decisions.Acceptance{Way: chosen}) == nil {
			done[r.Name()] = true
		}
	}
	return nil
}

// recreate deletes a topic and creates it again with the same settings and partitions.
func (m *mini) recreate(ctx context.Context, topic string) error {
	described, err := m.h.admin.DescribeTopicConfigs(ctx, topic)
	if err != nil {
		return err
	}
	configs := map[string]*string{}
	for _, c := range described {
		for _, value := range c.Configs {
			if value.Source.String() == "DYNAMIC_TOPIC_CONFIG" {
				configs[value.Key] = value.Value
			}
		}
	}
	meta, err := m.h.admin.Metadata(ctx, topic)
	if err != nil {
		return err
	}
	count := int32(len(meta.Topics[topic].Partitions))
	m.h.cluster.deleted.Store(topic, true)
	deleted, err := m.h.admin.DeleteTopics(ctx, topic)
	if err == nil {
		err = deleted.Error()
	}
	if err != nil {
		return fmt.Errorf("delete %s: %w", topic, err)
	}
	ctx, cancel := context.WithTimeout(ctx, m.h.patience(miniMax))
	defer cancel()
	// The name of the topic becomes free only when the broker has applied the deletion.
	err = kafkatest.Await(ctx, topic+" is created again", func(ctx context.Context) error {
		resp, err := m.h.admin.CreateTopics(ctx, count, int16(m.h.set.nodes), configs, topic)
		if err == nil {
			err = resp.Error()
		}
		return err
	})
	if err != nil {
		return err
	}
	// If a client read its metadata before the id has changed, it would send to the former topic.
	return kafkatest.Await(ctx, topic+" has another id", func(ctx context.Context) error {
		now, err := m.h.admin.Metadata(ctx, topic)
		if err == nil && (now.Topics[topic].Err != nil || now.Topics[topic].ID == meta.Topics[topic].ID) {
			err = errors.New("the broker has not applied it")
		}
		return err
	})
}

// addPartitions adds a partition to the repartition topic. Keys would then belong to other partitions.
func (m *mini) addPartitions(ctx context.Context) error {
	resp, err := m.h.admin.CreatePartitions(ctx, 1, m.repartition())
	if err == nil {
		err = resp.Error()
	}
	if err != nil {
		return fmt.Errorf("add a partition to %s: %w", m.repartition(), err)
	}
	ctx, cancel := context.WithTimeout(ctx, m.h.patience(miniMax))
	defer cancel()
	return kafkatest.Await(ctx, m.repartition()+" has one more partition", func(ctx context.Context) error {
		meta, err := m.h.admin.Metadata(ctx, m.repartition())
		if err == nil && len(meta.Topics[m.repartition()].Partitions) != partitions+1 {
			err = errors.New("not yet")
		}
		return err
	})
}

// routeOffsets returns a fault that moves the route group's offsets back, or deletes them if move is nil, while the
// process is stopped. The app then routes these events again. Each is a duplicate, so none is emitted twice.
func routeOffsets(move func(at int64) int64, way decisions.Way) func(context.Context, *strike) error {
	return func(ctx context.Context, k *strike) (err error) {
		m, err := k.openMini(ctx)
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, m.close(ctx)) }()
		if err := m.s.stop(); err != nil {
			return err
		}
		group := m.group("route")
		empty, cancel := context.WithTimeout(ctx, sessionTimeout+20*time.Second)
		defer cancel()
		if err := k.h.awaitEmpty(empty, group); err != nil {
			return err
		}
		if err := k.h.moveOffsets(ctx, group, move); err != nil {
			return err
		}
		before, err := m.routed(ctx)
		if err != nil {
			return err
		}
		ready, cancel := context.WithTimeout(ctx, startMax)
		defer cancel()
		if way == "" {
			err = errors.Join(m.s.start(ready), m.s.awaitReady(ready))
		} else {
			_, err = m.startDeciding(ready, decisions.OffsetsReset, way)
		}
		if err := errors.Join(err, m.send(ready), m.awaitUnique(ready)); err != nil {
			return err
		}
		after, err := m.routed(ctx)
		if err != nil {
			return err
		}
		again := after - before - 2*miniEvents
		k.note("%d records were routed again", again)
		if err := checkRoutedAgain(way, again); err != nil {
			return err
		}
		return m.awaitUnique(ctx)
	}
}

// checkRoutedAgain checks how many records the app has routed again after the offsets were moved. After a clean
// stop, the app has a mark, from which it continues if the offsets were deleted.
func checkRoutedAgain(way decisions.Way, again int) error {
	switch {
	case way != "" && again <= 0:
		return fmt.Errorf("%w: no record was routed again", errNotStruck)
	case way == "" && again != 0:
		return kafkatest.Fatal(fmt.Errorf("%d records were routed again, although the stop was clean", again))
	}
	return nil
}

// moveOffsets commits new offsets for an empty group: each offset as move changes it. If move is nil, it deletes the
// offsets.
func (h *harness) moveOffsets(ctx context.Context, group string, move func(at int64) int64) error {
	committed, err := h.admin.FetchOffsets(ctx, group)
	if err != nil {
		return err
	}
	offsets := kadm.Offsets{}
	committed.Each(func(o kadm.OffsetResponse) {
		at := int64(-1)
		if move != nil {
			at = move(o.At)
		}
		offsets.AddOffset(o.Topic, o.Partition, at, -1)
	})
	if move == nil {
		return h.deleteOffsets(ctx, group, offsets.TopicsSet())
	}
	return h.commitOffsets(ctx, group, offsets)
}

// routed returns how many records have ever been in the repartition topic.
func (m *mini) routed(ctx context.Context) (int, error) {
	records, err := m.h.readCommitted(ctx, m.repartition())
	return len(records), err
}
