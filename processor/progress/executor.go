package progress

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"oncebus/processor/app"
	"oncebus/processor/kafka"
)

// executor is what an observer knows of the consumer group of a route's executor. Like reachedEnd, it keeps two
// observations: the oldest one whose ends the group has not reached yet, and the newest.
type executor struct {
	tails         map[int32]*tail
	first, newest observedEnds
	// absentSince is when the group was first seen without a committed offset; zero once it has committed.
	absentSince time.Time
}

// absentMax is how long a group may have no committed offset before the observer warns. An executor that starts
// for the first time has committed nothing yet, so there is no warning before that time.
const absentMax = time.Minute

// noteOffsets warns if a group still commits nothing after absentMax: no lease of its route can end then.
func (x *executor) noteOffsets(o *Observer, route *app.Route, committed bool) {
	switch {
	case committed:
		x.absentSince = time.Time{}
	case x.absentSince.IsZero():
		x.absentSince = time.Now()
	case time.Since(x.absentSince) >= absentMax:
		x.absentSince = time.Now()
		o.Log.Warn("the executor's group has committed no offset of the output, so no lease of the route ends: start the executor, or correct executor_group",
			"route", route.Name, "group", route.Claim.Group, "topic", route.Output)
	}
}

// observedEnds are the high watermarks of the output topic's partitions, observed after the broker time at, in
// ms.
type observedEnds struct {
	at   int64
	ends map[int32]int64
}

// observe returns a broker time such that the group has committed all events that were dispatched before it. ok
// is false if no such time is known.
func (x *executor) observe(ctx context.Context, o *Observer, route *app.Route) (to int64, ok bool, err error) {
	// An event that was dispatched before this time is stored in the output, or its transaction has ended: a
	// transaction lasts at most DispatchMax.
	now := o.App.Clock.Now() - clocksMargin - o.DispatchMax.Milliseconds()
	topic := route.Output
	count, id, err := partitionsOf(ctx, o.Client, topic)
	if err != nil {
		return 0, false, err
	}
	ends, err := endsOf(ctx, o.Client, topic)
	if err != nil || len(ends) < count { // an operator added a partition a moment ago
		return 0, false, err
	}
	positions, committed, err := committedPositions(ctx, o.Client, route.Claim.Group, topic, slices.Collect(maps.Keys(ends)))
	if err != nil {
		return 0, false, err
	}
	x.noteOffsets(o, route, committed)
	if x.tails == nil {
		x.tails, x.first = map[int32]*tail{}, observedEnds{now, ends}
	}
	for partition := range ends {
		if x.tails[partition] == nil {
			x.tails[partition] = &tail{reader: kafka.NewReader(o.Client, topic, id, partition), position: -1}
		}
	}
	x.newest = observedEnds{now, ends}
	for _, observed := range []observedEnds{x.first, x.newest} {
		reached, err := x.reaches(ctx, positions, observed.ends)
		if err != nil || !reached {
			return to, ok, err
		}
		to, ok = observed.at, true
		x.first = x.newest
	}
	return to, ok, nil
}

// reaches reports whether a group at these positions has committed all events before these ends of the
// partitions.
func (x *executor) reaches(ctx context.Context, positions, ends map[int32]int64) (bool, error) {
	for partition, end := range ends {
		position, known := positions[partition]
		if !known {
			return false, nil
		}
		if reached, err := x.tails[partition].reaches(ctx, position, end); err != nil || !reached {
			return false, err
		}
	}
	return true, nil
}

// committedPositions returns the next offset that a group will read of each partition, and whether the group has
// committed any offset. A position is at least the partition's start, because events that were deleted before
// the group committed them can no longer reach the executor.
func committedPositions(ctx context.Context, client *kgo.Client, group, topic string, partitions []int32) (positions map[int32]int64, committedAny bool, err error) {
	committed, err := kafka.CommittedOffsets(ctx, client, group, map[string][]int32{topic: partitions})
	if err != nil {
		return nil, false, kafka.Denied(err, "Describe", kafka.ResourceGroup, group)
	}
	starts, err := kadm.NewClient(client).ListStartOffsets(ctx, topic)
	if err != nil {
		return nil, false, fmt.Errorf("list the starts of %s: %w", topic, err)
	}
	positions = map[int32]int64{}
	for partition, offset := range committed[topic] {
		committedAny = committedAny || offset.At >= 0
		if start, listed := starts.Lookup(topic, partition); listed && start.Err == nil {
			positions[partition] = max(offset.At, start.Offset)
		}
	}
	return positions, committedAny, nil
}
