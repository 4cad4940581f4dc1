package progress

import (
	"context"
	"fmt"
	"maps"
	"slices"

	"github.com/twmb/franz-go/pkg/kadm"

	"oncebus/processor/app"
	"oncebus/processor/kafka"
)

// executor is what an observer knows of the consumer group of a route's executor. Like an
// outcomesPartition it has two observations: the first one whose ends the group has not
// reached, and the newest.
type executor struct {
	tails         map[int32]*tail
	first, newest observedEnds
}

// observedEnds are the high watermarks of the output, observed after a broker time.
type observedEnds struct {
	at   int64
	ends map[int32]int64
}

// observe returns the broker time before which all events were dispatched that the group
// has committed; false if that is not known.
func (x *executor) observe(ctx context.Context, o *Observer, route *app.Route) (to int64, ok bool, err error) {
	// An event that was dispatched before is in the output, or its transaction has ended.
	now := o.App.Clock.Now() - clocksMargin - o.DispatchMax.Milliseconds()
	topic := route.Output
	count, id, err := partitionsOf(ctx, o.Client, topic)
	if err != nil {
		return 0, false, err
	}
	ends, err := endsOf(ctx, o.Client, topic)
	if err != nil {
		return 0, false, err
	}
	for p := range int32(count) {
		if _, listed := ends[p]; !listed {
			return 0, false, nil // added a moment ago
		}
	}
	committed, err := kafka.CommittedOffsets(ctx, o.Client, route.Claim.Group, map[string][]int32{topic: slices.Collect(maps.Keys(ends))})
	if err != nil {
		return 0, false, kafka.Denied(err, "Describe", kafka.ResourceGroup, route.Claim.Group)
	}
	starts, err := kadm.NewClient(o.Client).ListStartOffsets(ctx, topic)
	if err != nil {
		return 0, false, fmt.Errorf("list the starts of %s: %w", topic, err)
	}
	if x.tails == nil {
		x.tails, x.first = map[int32]*tail{}, observedEnds{now, ends}
	}
	x.newest = observedEnds{now, ends}
	for _, observed := range []observedEnds{x.first, x.newest} {
		for partition, end := range observed.ends {
			if x.tails[partition] == nil {
				x.tails[partition] = &tail{reader: kafka.NewReader(o.Client, topic, id, partition), position: -1}
			}
			offset, known := committed[topic][partition]
			start, listed := starts.Lookup(topic, partition)
			if !known || !listed || start.Err != nil {
				return to, ok, start.Err
			}
			// What was deleted before the group committed it cannot be executed any more.
			reached, err := x.tails[partition].reaches(ctx, max(offset.At, start.Offset), end)
			if err != nil || !reached {
				return to, ok, err
			}
		}
		to, ok = observed.at, true
		x.first = x.newest
	}
	return to, ok, nil
}
