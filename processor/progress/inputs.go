package progress

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"oncebus/processor/app"
	"oncebus/processor/kafka"
	"oncebus/processor/wire"
)

const (
	// inputsLeast and inputsMost bound the time between two looks at the inputs. Between the bounds it is the
	// smallest grace of the routes divided by graceParts. Stream time is behind the live events by a little more
	// than this time, so that rows are kept a little longer; no verdict depends on it.
	inputsLeast, inputsMost, graceParts = time.Second, 5 * time.Second, 120
	// idleFactor is how many times longer the wait for the next look is if none of the worker's inputs got a
	// record.
	idleFactor = 6
	// returnTime is how long the observer reports no progress of a partition after the partition's end can be
	// listed again. While a partition has no leader, producers keep events in their buffers, and they send these
	// old events when the partition has a leader again.
	returnTime = 30 * time.Second
)

// InputsInterval returns the time between two looks of a worker at its inputs. It limits the cost: each look
// writes a record to each partition of the repartition topic.
func InputsInterval(rt *app.App) time.Duration {
	least := inputsMost
	for id := range rt.Sources {
		for _, r := range rt.Routes {
			if r.NamespaceID == id {
				least = min(least, r.Grace/graceParts)
			}
		}
	}
	return max(least, inputsLeast)
}

// inputs is what an observer knows of the inputs that its worker reads.
type inputs struct {
	partitions map[app.TaskID]*inputPartition
	lookedAt   time.Time
	lags       map[app.TaskID]int64 // as of the last look; -1 for a partition whose lag is unknown
	lagAt      time.Time
}

// inputPartition is what an observer knows of a partition of an input.
type inputPartition struct {
	end      *reachedEnd
	position int64     // the worker's position at the last look
	through  int64     // no record before this offset waits to be routed
	away     bool      // whether the partition's end could not be listed at the last look
	backAt   time.Time // time of the first look at which the end could be listed again
}

// inputTopics returns the inputs that are sources of stream time: not outcomes, and not forwarded topics.
func (o *Observer) inputTopics() (topics []string) {
	for _, topic := range o.App.Topology.Routed {
		if o.App.Outcomes[topic] == nil && !slices.Contains(o.App.Topology.Forwarded, topic) {
			topics = append(topics, topic)
		}
	}
	return topics
}

// observe returns how far the worker has read its inputs; it returns nothing if the next look is not due yet.
func (in *inputs) observe(ctx context.Context, o *Observer) (all []wire.InputProgress, err error) {
	if len(o.App.Sources) == 0 || o.InputsInterval <= 0 {
		return nil, nil
	}
	positions, fresh, moved := map[string]map[int32]int64{}, false, false
	for _, topic := range o.inputTopics() {
		positions[topic] = o.Positions(topic)
		for partition, position := range positions[topic] {
			known := in.partitions[app.TaskID{Topic: topic, Partition: partition}]
			fresh, moved = fresh || known == nil, moved || known != nil && known.position != position
		}
	}
	since := time.Since(in.lookedAt)
	if !fresh && (since < o.InputsInterval || !moved && since < idleFactor*o.InputsInterval) {
		if time.Since(in.lagAt) >= o.InputsInterval {
			in.lagAt = time.Now()
			in.lookAtLag(ctx, o, positions)
		}
		return nil, nil
	}
	in.lookedAt = time.Now()
	in.lagAt = in.lookedAt
	for topic, held := range positions {
		if len(held) == 0 {
			continue
		}
		observed, failed := in.topic(ctx, o, topic, held)
		if failed != nil {
			err = failed // the worker still observes the other topics
			continue
		}
		all = append(all, observed)
	}
	in.reportLag(o, positions)
	slices.SortFunc(all, func(a, b wire.InputProgress) int { return cmp.Compare(a.Topic, b.Topic) })
	return all, err
}

// topic returns how far the worker has read its partitions of a topic. A partition without a leader has no end,
// so its progress is left out.
func (in *inputs) topic(ctx context.Context, o *Observer, topic string, positions map[int32]int64) (wire.InputProgress, error) {
	now := o.App.Clock.Now() - clocksMargin // taken before the requests, so that the ends are observed after it
	count, id, err := partitionsOf(ctx, o.Client, topic)
	if err != nil {
		in.noteAway(topic, positions, nil)
		return wire.InputProgress{}, err
	}
	if id != o.App.Topology.Topics[topic].ID {
		return wire.InputProgress{}, fmt.Errorf("%w: topic %s was deleted and recreated since the start", kafka.ErrTruncated, topic)
	}
	ends, err := endsOf(ctx, o.Client, topic)
	in.noteAway(topic, positions, ends)
	if len(ends) == 0 && err != nil {
		return wire.InputProgress{}, err
	}
	p := wire.InputProgress{Topic: o.App.TopicNumbers[topic], Partitions: count, CountedAt: now}
	for partition, position := range positions {
		if int(partition) >= count {
			continue
		}
		read := wire.NewReadProgress(partition)
		if end, ok := ends[partition]; ok {
			if err := in.read(ctx, o, app.TaskID{Topic: topic, Partition: partition}, id, position, observedEnd{now, end}, &read.To); err != nil {
				return wire.InputProgress{}, err
			}
		}
		in.noteLag(app.TaskID{Topic: topic, Partition: partition}, position, ends)
		p.Read = append(p.Read, read)
	}
	slices.SortFunc(p.Read, func(a, b wire.ReadProgress) int { return cmp.Compare(a.Partition, b.Partition) })
	return p, nil
}

// noteAway stores which partitions' ends could not be listed, and when a partition's end could be listed again.
func (in *inputs) noteAway(topic string, positions map[int32]int64, ends map[int32]int64) {
	for partition, position := range positions {
		id := app.TaskID{Topic: topic, Partition: partition}
		known := in.partitions[id]
		_, listed := ends[partition]
		if known == nil {
			if listed {
				continue // read makes the entry at the partition's first look
			}
			known = &inputPartition{position: position}
			in.partitions[id] = known
		}
		if known.away && listed {
			known.backAt = time.Now()
		}
		known.away = !listed
	}
}

// read stores in to the broker time up to which the worker has read a partition, if that time is known. If the
// worker's position is before the end, there may be only control records left, and a request can find that out.
// read sends it only if the position does not move any more; while the position moves, read returns at once.
func (in *inputs) read(ctx context.Context, o *Observer, id app.TaskID, topicID [16]byte, position int64, observed observedEnd, to *int64) error {
	known := in.partitions[id]
	if known == nil {
		known = &inputPartition{position: -1}
		in.partitions[id] = known
	}
	if known.end == nil {
		known.end = newReachedEnd(o.Client, id.Topic, topicID, id.Partition, observed)
	}
	for _, back := range []time.Time{known.backAt, o.returnedAt(id)} {
		if !back.IsZero() && time.Since(back) < returnTime {
			return nil
		}
	}
	stands := known.position == position
	known.position = position
	if !stands && position < known.end.first.end {
		return nil
	}
	if err := known.end.advance(ctx, position, observed, to); err != nil {
		return err
	}
	if *to == observed.at {
		known.through = observed.end
	}
	return nil
}
