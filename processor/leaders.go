package processor

import (
	"context"
	"fmt"
	"maps"

	"github.com/twmb/franz-go/pkg/kgo"

	"oncebus/processor/app"
)

// A partition of an input that has no leader when a worker gets it waits, and the others of the
// worker go on. Where it starts is decided once its offsets can be listed.

// unlistedPartition is a partition whose bounds could not be listed, since one assignment of it.
type unlistedPartition struct {
	at kgo.Offset // of the group
}

// awaitLeader lets a partition wait until its bounds can be listed. All others go on.
func (r *routeStarts) awaitLeader(id app.TaskID, at kgo.Offset, why error) {
	r.log.Warn("partition waits for a leader, the others go on", "partition", id.String(), "reason", why)
	r.board.explain(id, fmt.Sprintf("partition %v has no leader: %v", id, why))
	r.mu.Lock()
	r.unlisted[id] = &unlistedPartition{at}
	r.mu.Unlock()
}

// lookAgain lists the bounds of the partitions that wait for a leader, and decides where those that
// have one go on. It reports whether there are any.
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
	known, _, err := r.gather(ctx, offsets, decisions)
	if err != nil {
		return false // the next look tries again
	}
	for id, f := range known {
		some = r.returned(ctx, id, f, unlisted[id], decisions) || some
	}
	return some
}

// returned decides where a partition that has a leader again goes on, unless it was revoked
// meanwhile: by now its next owner may have routed more. It reports whether it did.
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
		r.log.Info("partition has a leader again", "partition", id.String(), "from", at)
	}
	r.mu.Unlock()
	if !still && refused != nil {
		r.removeRefusal(ctx, &refused.refusal)
	}
	return still && refused == nil
}
