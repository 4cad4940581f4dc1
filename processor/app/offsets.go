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

// Commit is what the metadata of a group offset says of the transaction that committed it.
type Commit struct {
	// Generation is that of the input; -1 if the app did not commit the offset: a tool that
	// moves offsets writes no metadata, or that of another offset.
	Generation int64
	// Sequence is that of the checkpoint in the transaction of a task; 0 for the routing
	// stage, which has none, and for an older build.
	Sequence int64
	// AwaitsProgress reports that the task has claims whose leases may not have ended.
	AwaitsProgress bool
}

// commitFormat has the generation, the sequence and the committed offset.
const commitFormat = "%d/%d@%d"

// awaitsProgress ends the metadata of a task that awaits progress records. An earlier
// build ignores it.
const awaitsProgress = "+claims"

// OffsetMetadata returns the metadata with which a process commits offsets: its instance,
// the transaction, and the offset at. A tool that moves an offset may keep the metadata.
func OffsetMetadata(instance string, c Commit, at int64) string {
	text := instance + "#" + fmt.Sprintf(commitFormat, c.Generation, c.Sequence, at)
	if c.AwaitsProgress {
		text += awaitsProgress
	}
	return text
}

// CommitOf returns the transaction in the metadata of an offset.
func CommitOf(metadata string, at int64) (c Commit) {
	if metadata == "" {
		return Commit{Generation: -1}
	}
	var committed int64
	_, err := fmt.Sscanf(metadata[strings.LastIndexByte(metadata, '#')+1:], commitFormat, &c.Generation, &c.Sequence, &committed)
	switch {
	case err != nil || c.Generation < 0 || c.Sequence < 0:
		return Commit{} // of an older build
	case committed != at:
		return Commit{Generation: -1}
	}
	c.AwaitsProgress = strings.HasSuffix(metadata, awaitsProgress)
	return c
}

// ForeignOffsets returns those of these partitions whose group offset the app did not commit.
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

// Bounds are the first offset of a partition and its end.
type Bounds struct{ Start, End int64 }

// ListMax bounds how long offsets are listed. The client asks a broker that does not answer, or has
// lost a leadership, again for half a minute; those of the others are there meanwhile.
const ListMax = 5 * time.Second

// ListBounds lists the bounds of partitions. Of one without a leader they are not known: unlisted
// has why.
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
		if err := cmp.Or(starts[topic][-1].Err, ends[topic][-1].Err); err != nil { // of all of its partitions
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
