package transfer

import (
	"context"
	"fmt"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"oncebus/dedup"
	"oncebus/processor/app"
	"oncebus/processor/kafka"
	"oncebus/processor/portable"
	"oncebus/processor/wire"
)

// sendStreamTimes produces the stream times of a file to its tasks, before the first seed. A repeated command
// produces them again; a task that already has a stream time ignores them.
func (s *seeding) sendStreamTimes(ctx context.Context, h *portable.Header) error {
	var records []*kgo.Record
	for i := range h.Tasks {
		task := &h.Tasks[i]
		for _, r := range s.app.Routes {
			at, ok := task.StreamTimes[r.Namespace]
			if !ok {
				continue
			}
			known, changed := task.Known[r.Namespace]
			value := wire.StreamTime{At: at, Changed: changed, Since: known.Since, LateBefore: known.LateBefore}
			env := wire.Envelope{IsSeed: true, IsTime: true, Seed: s.p.run(), Route: r.WireName, EventTime: at, Timestamp: at, From: dedup.Position{Topic: dedup.SeedTopic}}
			records = append(records, &kgo.Record{Topic: s.app.Topology.Repartition, Partition: task.Partition, Key: env.Append(nil), Value: value.Value()})
		}
	}
	if err := s.producer.ProduceSync(ctx, records...).FirstErr(); err != nil {
		return fmt.Errorf("produce stream times to %s: %w", s.app.Topology.Repartition, kafka.Denied(err, "Write", kafka.ResourceTopic, s.app.Topology.Repartition))
	}
	return nil
}

// concludeArrival waits until the tasks have all stream times of the file. Then it records in the manifest
// topic that the app may be released. Seeds that a task did not take are an operator error, because the app
// would lack keys that it had before.
func (s *seeding) concludeArrival(ctx context.Context, h *portable.Header) error {
	if r := s.report(); r.OutOfWindow+r.TooLate+r.InFuture > 0 || r.Cut {
		return kafka.OperatorErrorf("not all keys were taken: %d out of window, %d too late, %d first seen after the time of these brokers; the app stays held: "+
			"set the clocks of the brokers, or take the app back in cluster %s by 'oncebus release --back'", r.OutOfWindow, r.TooLate, r.InFuture, h.Cluster)
	}
	for waiting := time.Now(); ; {
		behind, err := s.behindStreamTimes(ctx, h)
		if err != nil {
			return err
		}
		if len(behind) == 0 {
			return app.Seeded(ctx, s.conn(), s.cfg, s.app.Topology, s.o.File)
		}
		if time.Since(waiting) > stalledAfter {
			s.log.Warn("tasks have not taken their stream times: start the service, or see its /readyz", "tasks", fmt.Sprint(behind))
			waiting = time.Now()
		}
		if err := kafka.Pause(ctx, followPause); err != nil {
			return err
		}
	}
}

// CameWith reports whether the app was moved to this cluster with the file that has this header. behind has the
// tasks whose stream times are lower than those in the file.
func (c *Client) CameWith(ctx context.Context, h *portable.Header) (came bool, behind []app.TaskID, err error) {
	if !c.cameWith(h) {
		return false, nil, nil
	}
	behind, err = c.behindStreamTimes(ctx, h)
	return true, behind, c.explain(err)
}

// behindStreamTimes returns the tasks whose stream times are lower than in the file.
func (c *Client) behindStreamTimes(ctx context.Context, h *portable.Header) (behind []app.TaskID, err error) {
	for i := range h.Tasks {
		task := &h.Tasks[i]
		id := app.TaskID{Topic: c.app.Topology.Repartition, Partition: task.Partition}
		fold, _, err := app.LastCheckpoint(ctx, c.changelog(id))
		if err != nil {
			return nil, err
		}
		var newest wire.Checkpoint
		if fold.Has() {
			newest = fold.Newest()
		}
		for namespaceID, name := range c.app.Namespaces {
			at, ok := task.StreamTimes[name]
			if ok && (!newest.StreamTimes.Has[namespaceID] || newest.StreamTimes.At[namespaceID] < at) {
				behind = append(behind, id)
				break
			}
		}
	}
	return behind, nil
}
