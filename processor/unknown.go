package processor

import (
	"context"
	"maps"
	"time"

	"oncebus/processor/app"
	"oncebus/processor/kafka"
)

// outcomeMax is how long the router waits for the group's offsets after End returned
// false. Rebalance callbacks wait meanwhile.
const outcomeMax = 2 * time.Second

// offsetsUnmoved reports whether a transaction of the router certainly did not commit, or
// all of its partitions have other owners, after End returned false. End does that after a
// rebalance, and after an UNKNOWN_SERVER_ERROR too, when the broker may have committed (A6). A task reads its
// changelog then. The router reads the group's stable offsets, of which a transaction
// moves all or none.
func (x *transactions) offsetsUnmoved() bool {
	if len(x.attempted) == 0 {
		return true // End sent no commit: the session had lost partitions before
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
		select { // the broker has not written the end of the transaction yet
		case <-ctx.Done():
			return false
		case <-time.After(stablePoll):
		}
	}
}

// stablePoll is the time between two reads of offsets that are not stable.
const stablePoll = 20 * time.Millisecond

// compareOffsets compares stable offsets with those of the last End. It also reports
// whether that of a partition that the worker still has is not stable.
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
	return !kept, unstable // all have other owners, which may have committed since, and start where the group is
}
