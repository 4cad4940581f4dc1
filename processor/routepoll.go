package processor

import (
	"context"
	"math"
	"slices"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"oncebus/processor/app"
)

// isUnannounced reports whether this client has not committed a progress record yet: the tasks may then not know
// the inputs of this client.
func (x *transactions) isUnannounced() bool {
	return !x.announced && x.observer.InputsInterval > 0 && time.Since(x.order.madeAt) < unannouncedFor
}

// isHeld reports whether records of a backlog have to wait until the client's inputs were observed for the first
// time.
func (x *transactions) isHeld() bool { return x.isUnannounced() && !x.observer.Due() }

// pauseFull makes the client stop fetching partitions of which enough records are queued, and fetch those
// again whose queue has become short.
func (x *transactions) pauseFull() {
	full, low, paused := x.order.fill()
	if len(full) > 0 {
		x.client.PauseFetchPartitions(byTopic(slices.Values(full)))
	}
	x.resume(low)
	if len(full) > 0 || len(low) > 0 {
		x.pacer.assigned(x.member.partitions() - paused)
	}
}

// resume lets the client fetch partitions again, unless the pacer has paused them or they wait for a
// schema.
func (x *transactions) resume(ids []app.TaskID) {
	ids = slices.DeleteFunc(ids, func(id app.TaskID) bool { return x.pacer.isPaused(id) || x.schemas.waits(id) })
	if len(ids) > 0 {
		x.client.ResumeFetchPartitions(byTopic(slices.Values(ids)))
	}
}

// dropWaiting drops the queued records of backlogs, and moves the client back to the committed offsets. The
// caller holds the rebalance lock, and no transaction is open.
func (x *transactions) dropWaiting() {
	if x.order == nil {
		return
	}
	ahead, full := x.order.reset()
	x.client.SetOffsets(x.marks.Offsets(ahead))
	x.resume(full)
}

// pollClient polls at most n records, through the timeOrder in the routing stage.
func (x *transactions) pollClient(ctx context.Context, n int) kgo.Fetches {
	if x.order == nil {
		return x.pollSession(ctx, n)
	}
	if x.order.mustSend() {
		flushCtx, done := context.WithTimeout(context.Background(), holdMax)
		x.produced.flushWithin(flushCtx) // if the time is too short, the end of the transaction waits for the rest
		done()
	}
	fetches := x.order.poll(ctx, x.pollSession, n)
	x.pauseFull()
	return fetches
}

// pollSession polls the client directly.
func (x *transactions) pollSession(ctx context.Context, n int) kgo.Fetches {
	return x.findCorrupt(x.session.PollRecords(ctx, n))
}

// goOn lets the client of the routing stage fetch partitions whose start was chosen after a wait: an operator
// has decided, or the partition has a leader again.
func (w *worker) goOn() {
	decided := w.starts.takeDecided()
	if len(decided) == 0 {
		return
	}
	assigned := w.member.assigned()
	for id, start := range decided {
		if !assigned[id] {
			continue // the partition was lost without a callback (A8)
		}
		if start.returned {
			w.txns.observer.Returned(id)
		}
		if start.skips != nil {
			w.txns.router.Skips[id] = start.skips
		}
		w.txns.marks.Assign(id, start.at, -1, start.mark)
		w.txns.order.assign(id, start.at, math.MaxInt64)
		w.txns.client.SetOffsets(map[string]map[int32]kgo.EpochOffset{id.Topic: {id.Partition: {Epoch: -1, Offset: start.at}}})
		w.member.place(id)
		w.txns.client.ResumeFetchPartitions(map[string][]int32{id.Topic: {id.Partition}})
	}
}

// takeDecided returns the partitions whose start was chosen. It leaves out partitions between resolve and
// placeKnown: if it resumed such a partition now, placeKnown would pause the partition afterwards, and nothing
// would resume it.
func (r *routeStarts) takeDecided() map[app.TaskID]decidedStart {
	r.mu.Lock()
	defer r.mu.Unlock()
	decided := map[app.TaskID]decidedStart{}
	for id, start := range r.decided {
		if !r.placing[id] {
			decided[id] = start
			delete(r.decided, id)
		}
	}
	return decided
}

// place notes that partitions are between resolve and placeKnown (placing is true), or no longer are.
func (r *routeStarts) place(offsets map[string]map[int32]kgo.Offset, placing bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for topic, partitions := range offsets {
		for p := range partitions {
			if id := (app.TaskID{Topic: topic, Partition: p}); placing {
				r.placing[id] = true
			} else {
				delete(r.placing, id)
			}
		}
	}
}
