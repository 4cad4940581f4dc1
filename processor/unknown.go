package processor

import (
	"context"
	"maps"
	"time"

	"oncebus/processor/app"
	"oncebus/processor/kafka"
)

// outcomeMax is how long the router waits for the group's stable offsets after End returned false.
// Rebalance callbacks wait meanwhile.
const outcomeMax = 2 * time.Second

// offsetsUnmoved is called after End returned (false, nil). It reports whether the router's transaction
// certainly did not commit, or whether all of its partitions have other owners. End returns (false, nil) after a
// rebalance, but also after an UNKNOWN_SERVER_ERROR, when the broker may have committed (A6). A task finds the
// outcome in its changelog. The router has no changelog, so it reads the group's stable offsets: a transaction
// commits all of its offsets or none, so one offset shows the outcome.
func (x *transactions) offsetsUnmoved() bool {
	if len(x.attempted) == 0 {
		return true // End sent no commit, because the session had already lost partitions
	}
	ctx, cancel := context.WithTimeout(context.Background(), outcomeMax)
	defer cancel()
	partitions := byTopic(maps.Keys(x.attempted))
	for {
		offsets, err := kafka.StableOffsets(ctx, x.client, app.GroupName(x.cfg.AppID, app.StageRoute), partitions)
		if err != nil {
			x.log.Warn("read the group's offsets after an abort failed", "error", err)
			return false
		}
		unmoved, unstable := x.compareOffsets(offsets)
		if unmoved || !unstable {
			return unmoved
		}
		select { // the broker has not finished the transaction yet
		case <-ctx.Done():
			return false
		case <-time.After(stablePoll):
		}
	}
}

// stablePoll is the time between two reads of offsets that are not stable yet.
const stablePoll = 20 * time.Millisecond

// compareOffsets compares stable offsets with the offsets that the last End tried to commit. unmoved reports
// that the transaction did not commit, or that all of its partitions have other owners. unstable reports that a
// partition which this worker still has has no stable offset yet.
func (x *transactions) compareOffsets(offsets map[string]map[int32]kafka.GroupOffset) (unmoved, unstable bool) {
	assigned, kept := x.member.assigned(), false
	for id, attempted := range x.attempted {
		offset, ok := offsets[id.Topic][id.Partition]
		if ok && offset.At < attempted {
			return true, false
		}
		kept = kept || assigned[id]
		unstable = unstable || !ok && assigned[id]
	}
	return !kept, unstable // if all have other owners, these start at the group's offsets, and may have moved them since
}
