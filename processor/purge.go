package processor

import (
	"context"
	"errors"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"

	"oncebus/processor/app"
	"oncebus/processor/kafka"
)

// purgeInterval is the time between two rounds of deletion. A round deletes only what was processed before the
// round before it, so an operator can read a routed record for at least one interval after it was processed.
const purgeInterval = time.Minute

// purger deletes records of internal topics that oncebus no longer needs, for the running tasks of this process.
// A retention setting cannot do so, because retention deletes by age, whether a record is still needed or not.
//
// Records of the repartition topic are deleted one interval after they were processed (G6). Records of a
// changelog are deleted below the floor that a committed checkpoint states (T10). The checkpoint must be
// committed first: if a changelog begins above the floor in its last checkpoint, a restore concludes that rows
// were lost.
type purger struct {
	*shared

	starts map[app.TaskID]int64 // start offset of each partition after the last deletion
	denied map[string]bool      // topics on which the process has no right Delete
}

func newPurger(s *shared) *purger {
	return &purger{shared: s, starts: map[app.TaskID]int64{}, denied: map[string]bool{}}
}

func (g *purger) run(ctx context.Context) {
	var processed kadm.Offsets
	for kafka.Pause(ctx, g.purgeInterval) == nil {
		g.deleteBelow(ctx, processed)
		g.deleteBelow(ctx, g.floors())
		processed = g.processedOffsets()
	}
}

// deleteBelow deletes the records below these committed offsets. It returns false if the process has no
// right to delete.
func (g *purger) deleteBelow(ctx context.Context, offsets kadm.Offsets) (allowed bool) {
	offsets.KeepFunc(func(o kadm.Offset) bool {
		return !g.denied[o.Topic] && o.At > g.starts[app.TaskID{Topic: o.Topic, Partition: o.Partition}]
	})
	if len(offsets) == 0 {
		return true
	}
	listed, err := g.admin.ListStartOffsets(ctx, offsets.TopicsSet().Topics()...)
	var resps kadm.DeleteRecordsResponses
	if err == nil {
		listed.Each(func(o kadm.ListedOffset) {
			id := app.TaskID{Topic: o.Topic, Partition: o.Partition}
			g.starts[id] = max(o.Offset, g.starts[id])
		})
		resps, err = g.admin.DeleteRecords(ctx, offsets)
	}
	var failed error
	resps.Each(func(r kadm.DeleteRecordsResponse) {
		id := app.TaskID{Topic: r.Topic, Partition: r.Partition}
		switch {
		case r.Err == nil:
			below, _ := offsets.Lookup(r.Topic, r.Partition)
			g.metricOf(r.Topic).Add(float64(max(0, below.At-g.starts[id])))
			g.starts[id] = max(below.At, g.starts[id])
		case errors.Is(r.Err, kerr.TopicAuthorizationFailed):
			g.deny(r.Topic)
		default:
			failed = r.Err
		}
	})
	if err = errors.Join(err, failed); err != nil && ctx.Err() == nil {
		g.log.Warn("deleting records of internal topics failed, retrying", "error", err)
	}
	for topic := range offsets {
		if g.denied[topic] {
			return false
		}
	}
	return true
}

// deny stops deletions from a topic until the next start.
func (g *purger) deny(topic string) {
	if g.denied[topic] {
		return
	}
	g.denied[topic] = true
	g.log.Warn("no right to delete records that no event needs, so the topic grows: grant Delete on it and restart, or delete them yourself", "topic", topic)
}

func (g *purger) metricOf(topic string) prometheus.Counter {
	if topic == g.newest().rt.Topology.Repartition {
		return g.metrics.purged
	}
	return g.metrics.trimmed
}
