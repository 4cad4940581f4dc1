package app

import (
	"encoding/binary"
	"fmt"
	"strconv"
	"strings"

	"github.com/dchest/siphash"
	"github.com/twmb/franz-go/pkg/kgo"

	"oncebus/dedup"
)

// HashName is the name of the partitioning hash, which the manifest pins.
const HashName = "siphash-2-4/16"

// hasher assigns dedup keys to the partitions of the repartition topic, by SipHash-2-4 (Aumasson, Bernstein
// 2012). Its secret is in the app's manifest, so that a producer cannot choose keys that all go to the same
// partition.
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

// PartitionAmong returns the partition of a key if the repartition topic has this number of partitions. digest
// is the digest in the key's row.
func (rt *App) PartitionAmong(digest *dedup.Digest, partitions int32) int32 {
	return rt.Manifest.hasher(partitions).Partition(digest)
}

// NewPartitioner returns the partitioner of a worker's client. For a record of an internal topic, the caller
// has set the partition. For any other record with a record key, the partitioner hashes the record key as every
// Kafka client does (murmur2). Without a record key it uses the number in Partition, which
// wire.PartitionByDigest has set: a forwarded duplicate then gets the same partition as its first event.
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

// The stages of a process. Their names are parts of group names and worker names, and label values.
const (
	StageRoute = "route"
	StageDedup = "dedup"
)

// GroupName returns the name of the consumer group of a stage.
func GroupName(app, stage string) string { return app + "-" + stage }

// TransactionalID returns the transactional id of a worker, such as "orders-dedup-0/host-1". The slash cannot
// occur in names of apps and instances. Without it, app orders with instance eu-1 and app orders-eu with
// instance 1 could have the same id.
func TransactionalID(app, stage string, worker int, instance string) string {
	return fmt.Sprintf("%s-%s-%d/%s", app, stage, worker, instance)
}

// StageOf returns the stage of the worker to which a transactional id belongs; "" if the id belongs to no
// worker of the app.
func StageOf(app, id string) string {
	for _, stage := range []string{StageRoute, StageDedup} {
		if rest, is := strings.CutPrefix(id, app+"-"+stage+"-"); is {
			worker, _, named := strings.Cut(rest, "/")
			if _, err := strconv.Atoi(worker); named && err == nil {
				return stage
			}
		}
	}
	return ""
}

// TaskID identifies a task: a partition of a topic whose records are partitioned by dedup key.
type TaskID struct {
	Topic     string
	Partition int32
}

func (id TaskID) String() string { return id.Topic + "/" + strconv.Itoa(int(id.Partition)) }

// parseTaskID parses the text topic/partition, which String returns.
func parseTaskID(text string) (id TaskID, ok bool) {
	topic, number, ok := strings.Cut(text, "/")
	partition, err := strconv.ParseInt(number, 10, 32)
	return TaskID{Topic: topic, Partition: int32(partition)}, ok && err == nil
}
