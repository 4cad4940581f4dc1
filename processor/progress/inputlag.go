package progress

import (
	"context"

	"oncebus/processor/app"
)

// InputLag is how many records of a partition of an input wait to be routed; -1 while that is not
// known: the partition has no leader, say.
type InputLag struct {
	app.TaskID

	Records int64
}

// lag returns how many records wait below an end. What was read without a record to route, such
// as the ends of transactions, does not wait.
func (p *inputPartition) lag(position, end int64) int64 { return max(0, end-max(position, p.through)) }

// lookAtLag reports the lag of the inputs while nothing is routed: in a hold, say. It asks for
// their ends alone, and writes no record. Of a topic whose ends cannot be listed it is not known.
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

// noteLag keeps the lag of a partition whose topic has these ends.
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

// reportLag reports the lag of the partitions that the worker has.
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
