package processor

import (
	"context"
	"errors"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"

	"oncebus/processor/kafka"
)

// purgeInterval is the time between two deletions of processed records of the repartition
// topic. An operator can read the records of the last interval.
const purgeInterval = time.Minute

// purger deletes records of the repartition topic an interval after they were processed.
// The topic has no retention: it could delete records that no task has read (G6).
type purger struct {
	*shared

	starts map[int32]int64 // start offset of each partition after the last purge
}

func newPurger(s *shared) *purger { return &purger{shared: s, starts: map[int32]int64{}} }

func (g *purger) run(ctx context.Context) {
	var processed kadm.Offsets
	allowed := true
	for kafka.Pause(ctx, purgeInterval) == nil {
		if len(processed) > 0 && allowed {
			allowed = g.deleteBelow(ctx, processed)
		}
		processed = g.processedOffsets()
	}
}

// deleteBelow deletes the records below the offsets, all of which are committed. It
// returns false if the process has no right to.
func (g *purger) deleteBelow(ctx context.Context, offsets kadm.Offsets) bool {
	listed, err := g.admin.ListStartOffsets(ctx, g.rt.Topology.Repartition)
	if err == nil {
		listed.Each(func(o kadm.ListedOffset) { g.starts[o.Partition] = max(o.Offset, g.starts[o.Partition]) })
		var resps kadm.DeleteRecordsResponses
		if resps, err = g.admin.DeleteRecords(ctx, offsets); err == nil {
			err = resps.Error()
		}
	}
	switch {
	case err == nil:
		offsets.Each(func(o kadm.Offset) {
			g.metrics.purged.Add(float64(max(0, o.At-g.starts[o.Partition])))
			g.starts[o.Partition] = max(o.At, g.starts[o.Partition])
		})
	case errors.Is(err, kerr.TopicAuthorizationFailed):
		g.log.Warn("no right to delete processed records of the repartition topic: grant Delete on it, or delete them yourself", "topic", g.rt.Topology.Repartition)
		return false
	case ctx.Err() == nil:
		g.log.Warn("deleting processed records failed", "error", err)
	}
	return true
}
