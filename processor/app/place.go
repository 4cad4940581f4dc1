package app

import (
	"cmp"
	"context"
	"encoding/binary"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/dchest/siphash"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"oncebus/dedup"
	"oncebus/processor/kafka"
)

// HashName is the name of the pinned partitioning hash in the manifest.
const HashName = "siphash-2-4/16"

// hasher assigns dedup keys to partitions of the repartition topic by SipHash-2-4
// (Aumasson, Bernstein 2012). Its secret is in the app's manifest, so that a producer
// cannot choose keys that all have one partition.
type hasher struct {
	k0, k1     uint64
	partitions uint64
}

func newHasher(secret [16]byte, partitions int32) hasher {
	return hasher{
		k0:         binary.LittleEndian.Uint64(secret[:8]),
		k1:         binary.LittleEndian.Uint64(secret[8:]),
		partitions: uint64(partitions),
	}
}

// Partition returns the partition of a routing key.
func (h hasher) Partition(routing *dedup.Digest) int32 {
	return int32(siphash.Hash(h.k0, h.k1, routing[:]) % h.partitions)
}

// NewPartitioner returns the partitioner of a worker's client. A record of an internal
// topic has its partition. For other records it hashes the record key, as any Kafka
// client does (murmur2). Without a record key it uses the number in Partition, which
// wire.PartitionByDigest set: a forwarded duplicate then gets the partition of its first
// event.
func NewPartitioner(internal map[string]bool) kgo.Partitioner {
	byKey := kgo.StickyKeyPartitioner(nil)
	return kgo.BasicConsistentPartitioner(func(topic string) func(*kgo.Record, int) int {
		if internal[topic] {
			return func(r *kgo.Record, _ int) int { return int(r.Partition) }
		}
		keyed := byKey.ForTopic(topic)
		return func(r *kgo.Record, n int) int {
			if r.Key != nil {
				return keyed.Partition(r, n)
			}
			return int(uint32(r.Partition) % uint32(n))
		}
	})
}

// The stages of a process: parts of group and worker names, and label values.
const (
	StageRoute = "route"
	StageDedup = "dedup"
)

// GroupName returns the consumer group of a stage of an app.
func GroupName(app, stage string) string { return app + "-" + stage }

// TransactionalID returns the transactional id of a worker, "orders-dedup-0/host-1".
// Names of apps and instances have no slash. So app orders with instance eu-1 and app
// orders-eu with instance 1 have different ids.
func TransactionalID(app, stage string, worker int, instance string) string {
	return fmt.Sprintf("%s-%s-%d/%s", app, stage, worker, instance)
}

// Commit is what the metadata of a group offset says of the transaction that committed it.
type Commit struct {
	// Generation is that of the input; -1 if the app did not commit the offset: a tool that
	// moves offsets writes no metadata, or that of another offset.
	Generation int64
	// Sequence is that of the checkpoint in the transaction of a task; 0 for the routing
	// stage, which has none, and for an older build.
	Sequence int64
}

// commitFormat has the generation, the sequence and the committed offset.
const commitFormat = "%d/%d@%d"

// OffsetMetadata returns the metadata with which a process commits offsets: its instance,
// the transaction, and the offset at. A tool that moves an offset may keep the metadata.
func OffsetMetadata(instance string, c Commit, at int64) string {
	return instance + "#" + fmt.Sprintf(commitFormat, c.Generation, c.Sequence, at)
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
	return c
}

// ForeignOffsets returns the partitions whose group offset the app did not commit.
func ForeignOffsets(ctx context.Context, client *kgo.Client, group string, of map[string]map[int32]kgo.Offset) (map[TaskID]bool, error) {
	partitions := map[string][]int32{}
	for topic := range of {
		partitions[topic] = slices.Collect(maps.Keys(of[topic]))
	}
	committed, err := kafka.StableOffsets(ctx, client, group, partitions)
	if err != nil {
		return nil, err
	}
	foreign := map[TaskID]bool{}
	for topic, offsets := range committed {
		for partition, o := range offsets {
			foreign[TaskID{topic, partition}] = o.At >= 0 && CommitOf(o.Metadata, o.At).Generation < 0
		}
	}
	return foreign, nil
}

// Bounds are the first offset of a partition and its end.
type Bounds struct{ Start, End int64 }

// ListBounds lists the bounds of partitions.
func ListBounds(ctx context.Context, admin *kadm.Client, of map[string]map[int32]kgo.Offset) (map[TaskID]Bounds, error) {
	topics := slices.Collect(maps.Keys(of))
	starts, err := admin.ListStartOffsets(ctx, topics...)
	if err != nil {
		return nil, fmt.Errorf("list the starts of %v: %w", topics, err)
	}
	ends, err := admin.ListEndOffsets(ctx, topics...)
	if err != nil {
		return nil, fmt.Errorf("list the ends of %v: %w", topics, err)
	}
	all := map[TaskID]Bounds{}
	for topic, partitions := range of {
		for partition := range partitions {
			id := TaskID{topic, partition}
			start, known := starts.Lookup(topic, partition)
			end, knownEnd := ends.Lookup(topic, partition)
			if err := cmp.Or(start.Err, end.Err); err != nil || !known || !knownEnd {
				return nil, fmt.Errorf("list the offsets of %v: %w", id, cmp.Or(err, error(kerr.UnknownTopicOrPartition)))
			}
			all[id] = Bounds{start.Offset, end.Offset}
		}
	}
	return all, nil
}

// TaskID identifies a task: a partition whose records are partitioned by dedup key.
type TaskID struct {
	Topic     string
	Partition int32
}

func (id TaskID) String() string { return id.Topic + "/" + strconv.Itoa(int(id.Partition)) }
