package progress

import (
	"context"
	"fmt"

	"oncebus/processor/kafka"
	"oncebus/processor/wire"
)

// outcomesTopic is what an observer knows of an outcomes topic.
type outcomesTopic struct{ partitions map[int32]*reachedEnd }

// observe returns how far the worker has read the partitions of an outcomes topic. Every outcome that was
// stored before a broker time is below any high watermark that is observed after that time; when the worker's
// position has reached this high watermark, the worker has routed all of them.
func (t *outcomesTopic) observe(ctx context.Context, o *Observer, topic string, positions map[int32]int64) (wire.OutcomesProgress, error) {
	now := o.App.Clock.Now() - clocksMargin // taken before the requests, so that the ends are observed after it
	count, id, err := partitionsOf(ctx, o.Client, topic)
	if err != nil {
		return wire.OutcomesProgress{}, err
	}
	if id != o.App.Topology.Topics[topic].ID {
		return wire.OutcomesProgress{}, fmt.Errorf("%w: topic %s was deleted and recreated since the start", kafka.ErrTruncated, topic)
	}
	ends, err := endsOf(ctx, o.Client, topic)
	if err != nil {
		return wire.OutcomesProgress{}, err
	}
	p := wire.NewOutcomesProgress(o.App.TopicNumbers[topic], now, count)
	for partition, position := range positions {
		end, ok := ends[partition]
		if !ok || int(partition) >= count {
			continue
		}
		known := t.partitions[partition]
		if known == nil {
			known = newReachedEnd(o.Client, topic, id, partition, observedEnd{now, end})
			t.partitions[partition] = known
		}
		if err := known.advance(ctx, position, observedEnd{now, end}, &p.ReadTo[partition]); err != nil {
			return wire.OutcomesProgress{}, err
		}
	}
	return p, nil
}
