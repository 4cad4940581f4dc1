package progress

import (
	"context"

	"oncebus/processor/app"
)

// InputLag is how many records of an input partition wait to be routed, for a metric. Records is -1 while the
// number is not known, for example because the partition has no leader.
type InputLag struct {
	app.TaskID

	Records int64
}

// lag returns how many records before end wait to be routed. Offsets without a record to route, such as control
// records, do not count if p.through is after them.
func (p *inputPartition) lag(position, end int64) int64 { return max(0, end-max(position, p.through)) }

// lookAtLag reports the lag of the inputs while nothing is routed, for example in a hold. It only lists the
// ends of the inputs and writes no record. The lag of a topic whose ends cannot be listed is unknown.
func (in *inputs) lookAtLag(ctx context.Context, o *Observer, positions map[string]map[int32]int64) {
	for topic, held := range positions {
		if len(held) == 0 {
			continue
		}
		ends, _ := endsOf(ctx, o.Client, topic)
		in.noteAway(topic, held, ends)
		for partition, position := range held {
			in.noteLag(app.TaskID{Topic: topic, Partition: partition}, position, ends)
		}
	}
	in.reportLag(o, positions)
}

// noteLag stores the lag of a partition; ends are the ends of the partition's topic.
func (in *inputs) noteLag(id app.TaskID, position int64, ends map[int32]int64) {
	p := in.partitions[id]
	if p == nil {
		p = &inputPartition{position: -1}
	}
	in.lags[id] = -1
	if end, listed := ends[id.Partition]; listed {
		in.lags[id] = p.lag(position, end)
	}
}

// reportLag reports the lag of the partitions that the worker is assigned.
func (in *inputs) reportLag(o *Observer, positions map[string]map[int32]int64) {
	if o.Lag == nil {
		return
	}
	var all []InputLag
	for topic, held := range positions {
		for partition := range held {
			id := app.TaskID{Topic: topic, Partition: partition}
			lag, known := in.lags[id]
			if !known {
				lag = -1
			}
			all = append(all, InputLag{id, lag})
		}
	}
	o.Lag(all)
}
