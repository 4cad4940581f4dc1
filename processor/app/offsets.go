package app

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"oncebus/processor/kafka"
)

// Commit is what the metadata of a committed offset says about the transaction that committed the offset.
type Commit struct {
	// Generation is the generation of the input; -1 if the app did not commit the offset. A tool that moves
	// offsets writes no metadata, or keeps the metadata that belongs to the old offset.
	Generation int64
	// Sequence is the sequence number of the checkpoint in a task's transaction. It is 0 for the routing stage,
	// which has no checkpoints, and for an older build.
	Sequence int64
	// AwaitsProgress reports whether the task has claims whose leases may not have ended yet.
	AwaitsProgress bool
}

// commitFormat formats the generation, the sequence and the committed offset.
const commitFormat = "%d/%d@%d"

// awaitsProgress is the end of the metadata of a task that waits for progress records. Earlier builds ignore
// it.
const awaitsProgress = "+claims"

// OffsetMetadata returns the metadata with which a process commits the offset at: its instance, the transaction
// and the offset. The metadata contains the offset because a tool that moves a committed offset may keep the
// metadata: CommitOf can then see that the offset in the metadata is not the committed one.
func OffsetMetadata(instance string, c Commit, at int64) string {
	text := instance + "#" + fmt.Sprintf(commitFormat, c.Generation, c.Sequence, at)
	if c.AwaitsProgress {
		text += awaitsProgress
	}
	return text
}

// CommitOf returns what the metadata of the committed offset at says about its transaction.
func CommitOf(metadata string, at int64) (c Commit) {
	if metadata == "" {
		return Commit{Generation: -1}
	}
	var committed int64
	_, err := fmt.Sscanf(metadata[strings.LastIndexByte(metadata, '#')+1:], commitFormat, &c.Generation, &c.Sequence, &committed)
	switch {
	case err != nil || c.Generation < 0 || c.Sequence < 0:
		return Commit{} // the metadata of an older build
	case committed != at:
		return Commit{Generation: -1}
	}
	c.AwaitsProgress = strings.HasSuffix(metadata, awaitsProgress)
	return c
}

// ForeignOffsets returns the partitions whose committed offset in the group was not committed by the app.
func ForeignOffsets(ctx context.Context, client *kgo.Client, group string, partitions map[string][]int32) (foreign []TaskID, err error) {
	if len(partitions) == 0 {
		return nil, nil
	}
	committed, err := kafka.StableOffsets(ctx, client, group, partitions)
	if err != nil {
		return nil, err
	}
	for topic, offsets := range committed {
		for partition, o := range offsets {
			if o.At >= 0 && CommitOf(o.Metadata, o.At).Generation < 0 {
				foreign = append(foreign, TaskID{topic, partition})
			}
		}
	}
	return foreign, nil
}

// Bounds are the first offset of a partition and the offset after its last record.
type Bounds struct{ Start, End int64 }

// ListMax bounds how long offsets are listed. If a broker does not answer or has just lost a leadership, the
// client asks again for half a minute. The answers of the other brokers come much earlier, so the listing does
// not wait that long.
const ListMax = 5 * time.Second

// ListBounds lists the bounds of partitions. The bounds of a partition without a leader are unknown: unlisted
// says why.
func ListBounds(ctx context.Context, admin *kadm.Client, of map[string]map[int32]kgo.Offset) (bounds map[TaskID]Bounds, unlisted map[TaskID]error, err error) {
	topics := slices.Collect(maps.Keys(of))
	list := func(offsets func(context.Context, ...string) (kadm.ListedOffsets, error)) (kadm.ListedOffsets, error) {
		ctx, cancel := context.WithTimeout(ctx, ListMax)
		defer cancel()
		return offsets(ctx, topics...)
	}
	starts, startErr := list(admin.ListStartOffsets)
	if startErr != nil && len(starts) == 0 {
		return nil, nil, fmt.Errorf("list the starts of %v: %w", topics, startErr)
	}
	ends, endErr := list(admin.ListEndOffsets)
	if endErr != nil && len(ends) == 0 {
		return nil, nil, fmt.Errorf("list the ends of %v: %w", topics, endErr)
	}
	bounds, unlisted = map[TaskID]Bounds{}, map[TaskID]error{}
	for topic, partitions := range of {
		if err := cmp.Or(starts[topic][-1].Err, ends[topic][-1].Err); err != nil { // partition -1 has the error of the whole topic
			return nil, nil, fmt.Errorf("list the offsets of %s: %w", topic, kafka.Denied(err, "Describe", kafka.ResourceTopic, topic))
		}
		for partition := range partitions {
			id := TaskID{topic, partition}
			start, known := starts.Lookup(topic, partition)
			end, knownEnd := ends.Lookup(topic, partition)
			if known && knownEnd && start.Err == nil && end.Err == nil {
				bounds[id] = Bounds{start.Offset, end.Offset}
				continue
			}
			why := cmp.Or(start.Err, end.Err, startErr, endErr, error(kerr.UnknownTopicOrPartition))
			why = fmt.Errorf("list the offsets of %v: %w", id, why)
			if _, ok := errors.AsType[*kerr.Error](why); ok && !kerr.IsRetriable(why) {
				return nil, nil, why
			}
			unlisted[id] = why
		}
	}
	return bounds, unlisted, nil
}
