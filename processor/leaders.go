package processor

import (
	"context"
	"fmt"
	"maps"

	"github.com/twmb/franz-go/pkg/kgo"

	"oncebus/processor/app"
)

// If a partition of an input has no leader when a worker gets it, the partition waits, and the worker reads its
// other partitions. The worker chooses the start of the partition once it can list the partition's offsets. If
// the worker cannot read the row of the hold in the manifest topic, all partitions wait, because a hold may be
// in force.

// unlistedPartition is a partition whose start and end offsets could not be listed. Each assignment of the
// partition makes a new value.
type unlistedPartition struct {
	at kgo.Offset // the group's offset
}

// awaitLeader makes a partition wait until its start and end offsets can be listed.
func (r *routeStarts) awaitLeader(id app.TaskID, at kgo.Offset, why error) {
	r.awaitListing(id, at, fmt.Sprintf("partition %v has no leader: %v", id, why))
}

// awaitListing makes a partition wait until its start is known. The worker reads all other partitions meanwhile.
func (r *routeStarts) awaitListing(id app.TaskID, at kgo.Offset, why string) {
	r.log.Warn("partition waits, the others go on", "partition", id.String(), "reason", why)
	r.board.explain(id, why)
	r.mu.Lock()
	r.unlisted[id] = &unlistedPartition{at}
	r.mu.Unlock()
}

// awaitHold makes all partitions wait until the worker can read whether the input is held.
func (r *routeStarts) awaitHold(offsets map[string]map[int32]kgo.Offset, why error) map[app.TaskID]bool {
	waiting := map[app.TaskID]bool{}
	for topic, partitions := range offsets {
		for partition, at := range partitions {
			id := app.TaskID{Topic: topic, Partition: partition}
			r.awaitListing(id, at, fmt.Sprintf("partition %v waits, a hold may be in force: %v", id, why))
			waiting[id] = true
		}
	}
	return waiting
}

// lookAgain lists the offsets of the partitions that wait for a leader. For each partition that has a leader
// again it decides where the worker reads on. It reports whether there is any such partition.
func (r *routeStarts) lookAgain(ctx context.Context, decisions *app.Decisions) (some bool) {
	offsets := map[string]map[int32]kgo.Offset{}
	r.mu.Lock()
	unlisted := maps.Clone(r.unlisted)
	r.mu.Unlock()
	for id, u := range unlisted {
		if offsets[id.Topic] == nil {
			offsets[id.Topic] = map[int32]kgo.Offset{}
		}
		offsets[id.Topic][id.Partition] = u.at
	}
	if err := r.holds.Read(ctx, r.on.Load().source.Client, r.on.Load().rt.Topology); err != nil {
		return false // the next look tries again
	}
	known, _, err := r.gather(ctx, offsets, decisions)
	if err != nil {
		return false
	}
	for id, f := range known {
		some = r.returned(ctx, id, f, unlisted[id], decisions) || some
	}
	return some
}

// returned decides where the worker reads on in a partition that has a leader again, unless the partition was
// revoked meanwhile: its next owner may have routed more records by now. It reports whether the partition is
// read on.
func (r *routeStarts) returned(ctx context.Context, id app.TaskID, f *routeFacts, u *unlistedPartition, decisions *app.Decisions) bool {
	at, refused := r.startOf(ctx, id, f, decisions)
	if refused != nil {
		r.announce(ctx, refused)
	}
	r.mu.Lock()
	still := r.unlisted[id] == u
	switch {
	case !still:
	case refused != nil:
		r.remove(id)
		r.await(id, refused)
	default:
		r.remove(id)
		r.decided[id] = decidedStart{at: at, mark: f.mark, returned: true}
		r.log.Info("partition goes on", "partition", id.String(), "from", at)
	}
	r.mu.Unlock()
	if !still && refused != nil {
		r.removeRefusal(ctx, &refused.refusal)
	}
	return still && refused == nil
}
