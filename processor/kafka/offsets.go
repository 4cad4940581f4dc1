package kafka

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"slices"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// GroupOffset is an offset that a group has committed (-1 for none), and the metadata text that its
// committer gave with it.
type GroupOffset struct {
	At       int64
	Metadata string
}

// StableOffsets returns the committed offsets of a group for the given partitions, -1 for none. It
// omits partitions whose offset is part of an open transaction. It names the partitions in the request:
// without names, a broker omits partitions whose only offset is in an open transaction.
func StableOffsets(ctx context.Context, client *kgo.Client, group string, partitions map[string][]int32) (map[string]map[int32]GroupOffset, error) {
	return fetchOffsets(ctx, client, group, partitions, true)
}

// Unstable returns those of the partitions of that StableOffsets has omitted from stable.
func Unstable(of map[string][]int32, stable map[string]map[int32]GroupOffset) map[string][]int32 {
	left := map[string][]int32{}
	for topic, partitions := range of {
		for _, p := range partitions {
			if _, known := stable[topic][p]; !known {
				left[topic] = append(left[topic], p)
			}
		}
	}
	return left
}

// Without returns the partitions of all that are not in gone.
func Without(all, gone map[string][]int32) map[string][]int32 {
	left := map[string][]int32{}
	for topic, partitions := range all {
		for _, p := range partitions {
			if !slices.Contains(gone[topic], p) {
				left[topic] = append(left[topic], p)
			}
		}
	}
	return left
}

// CommittedOffsets is like StableOffsets, but ignores open transactions: it returns the offset from before an
// open transaction. For a group that does not exist it returns no committed offsets.
func CommittedOffsets(ctx context.Context, client *kgo.Client, group string, partitions map[string][]int32) (map[string]map[int32]GroupOffset, error) {
	return fetchOffsets(ctx, client, group, partitions, false)
}

// fetchOffsets asks the group's coordinator for committed offsets. stable leaves out partitions with an offset
// in an open transaction.
func fetchOffsets(ctx context.Context, client *kgo.Client, group string, partitions map[string][]int32, stable bool) (map[string]map[int32]GroupOffset, error) {
	of := kmsg.NewOffsetFetchRequestGroup()
	of.Group = group
	for name, numbers := range partitions {
		topic := kmsg.NewOffsetFetchRequestGroupTopic()
		topic.Topic, topic.Partitions = name, numbers
		of.Topics = append(of.Topics, topic)
	}
	req := kmsg.NewPtrOffsetFetchRequest()
	req.RequireStable, req.Groups = stable, append(req.Groups, of)
	resp, err := AskCoordinator(func() (*kmsg.OffsetFetchResponse, error) { return req.RequestWith(ctx, client) })
	if err != nil {
		return nil, fmt.Errorf("fetch the offsets of group %s: %w", group, err)
	}
	offsets := map[string]map[int32]GroupOffset{}
	for _, g := range resp.Groups {
		if err := kerr.ErrorForCode(g.ErrorCode); errors.Is(err, kerr.GroupIDNotFound) && !stable {
			return noOffsets(partitions), nil
		} else if err != nil {
			return nil, fmt.Errorf("fetch the offsets of group %s: %w", group, err)
		}
		for _, topic := range g.Topics {
			offsets[topic.Topic] = offsetsOf(&topic)
		}
	}
	return offsets, nil
}

// coordinatorTries bounds how often AskCoordinator asks.
const coordinatorTries = 3

// AskCoordinator calls ask, which sends a request to the coordinator of a group. It calls ask again if no
// connection to a broker could be made. The reason is that franz-go asks any broker for the coordinator,
// sometimes a bootstrap server, and does not try another broker if that one is away (v1.22.3,
// Client.loadCoordinators).
func AskCoordinator[T any](ask func() (T, error)) (T, error) {
	for tries := 1; ; tries++ {
		answer, err := ask()
		if failed, ok := errors.AsType[*net.OpError](err); !ok || failed.Op != "dial" || tries == coordinatorTries {
			return answer, err
		}
	}
}

func noOffsets(partitions map[string][]int32) map[string]map[int32]GroupOffset {
	offsets := map[string]map[int32]GroupOffset{}
	for topic, numbers := range partitions {
		offsets[topic] = map[int32]GroupOffset{}
		for _, p := range numbers {
			offsets[topic][p] = GroupOffset{At: -1}
		}
	}
	return offsets
}

// offsetsOf returns the offsets in the response for one topic. It leaves out partitions with an error,
// which includes offsets in open transactions.
func offsetsOf(topic *kmsg.OffsetFetchResponseGroupTopic) map[int32]GroupOffset {
	offsets := map[int32]GroupOffset{}
	for _, p := range topic.Partitions {
		if p.ErrorCode != 0 {
			continue
		}
		offset := GroupOffset{At: p.Offset}
		if p.Metadata != nil {
			offset.Metadata = *p.Metadata
		}
		offsets[p.Partition] = offset
	}
	return offsets
}

// Partitions returns the partitions that have an entry in offsets.
func Partitions(offsets map[string]map[int32]kgo.Offset) map[string][]int32 {
	all := map[string][]int32{}
	for topic, partitions := range offsets {
		all[topic] = slices.Collect(maps.Keys(partitions))
	}
	return all
}

// Epochs returns the leader epochs of those offsets that have an epoch.
func Epochs(offsets map[string]map[int32]kgo.Offset) map[string]map[int32]int32 {
	epochs := map[string]map[int32]int32{}
	for topic, partitions := range offsets {
		for partition, offset := range partitions {
			at := offset.EpochOffset()
			if at.Offset < 0 || at.Epoch < 0 {
				continue
			}
			if epochs[topic] == nil {
				epochs[topic] = map[int32]int32{}
			}
			epochs[topic][partition] = at.Epoch
		}
	}
	return epochs
}

// EpochEnds returns where the leader epochs of partitions end: the offset from which on the log has records of
// later epochs, or the end of the log. -1 means that the broker does not know.
//
// After an unclean election, a new leader may lack a whole epoch. It then responds with the last epoch
// before it that it has, and with the end of that epoch (KIP-320).
func EpochEnds(ctx context.Context, admin *kadm.Client, epochs map[string]map[int32]int32) (map[string]map[int32]int64, error) {
	if len(epochs) == 0 {
		return nil, nil
	}
	found, err := admin.OffsetForLeaderEpoch(ctx, epochs)
	if err != nil {
		return nil, fmt.Errorf("read the leader epochs of %v: %w", epochs, err)
	}
	ends := map[string]map[int32]int64{}
	for topic, partitions := range epochs {
		ends[topic] = map[int32]int64{}
		for partition, epoch := range partitions {
			if ends[topic][partition], err = epochEnd(found, topic, partition, epoch); err != nil {
				return nil, err
			}
		}
	}
	return ends, nil
}

func epochEnd(found kadm.OffsetsForLeaderEpochs, topic string, partition, epoch int32) (int64, error) {
	end, ok := found[topic][partition]
	switch {
	case !ok:
		return 0, fmt.Errorf("read the leader epochs of %s/%d: %w", topic, partition, kerr.UnknownTopicOrPartition)
	case end.Err != nil:
		return 0, fmt.Errorf("read the leader epochs of %s/%d: %w", topic, partition, end.Err)
	case end.LeaderEpoch < 0 || end.LeaderEpoch > epoch || end.EndOffset < 0:
		return -1, nil
	}
	return end.EndOffset, nil
}

// OffsetQuestions asks for offsets for callers that each need the offset of one partition. They share
// their requests (see Joint).
type OffsetQuestions struct {
	stable Joint[topicPartition, struct{}, stableOffset]
	epochs Joint[topicPartition, int32, int64]
}

type topicPartition struct {
	topic     string
	partition int32
}

// stableOffset is a committed offset; known is false while it is part of an open transaction.
type stableOffset struct {
	offset GroupOffset
	known  bool
}

// StableOffset is StableOffsets for one partition. known is false while the offset is part of an open
// transaction. All calls must be about the same group, since they share requests.
func (q *OffsetQuestions) StableOffset(ctx context.Context, client *kgo.Client, group, topic string, partition int32) (offset GroupOffset, known bool, err error) {
	found, err := q.stable.Ask(ctx, topicPartition{topic, partition}, struct{}{}, func(asks map[topicPartition]struct{}) map[topicPartition]Answer[stableOffset] {
		partitions := map[string][]int32{}
		for of := range asks {
			partitions[of.topic] = append(partitions[of.topic], of.partition)
		}
		offsets, err := StableOffsets(context.Background(), client, group, partitions)
		answers := map[topicPartition]Answer[stableOffset]{}
		for of := range asks {
			offset, known := offsets[of.topic][of.partition]
			answers[of] = Answer[stableOffset]{stableOffset{offset, known}, err}
		}
		return answers
	})
	return found.offset, found.known, err
}

// EpochEnd is EpochEnds for one partition.
func (q *OffsetQuestions) EpochEnd(ctx context.Context, admin *kadm.Client, topic string, partition, epoch int32) (int64, error) {
	return q.epochs.Ask(ctx, topicPartition{topic, partition}, epoch, func(asks map[topicPartition]int32) map[topicPartition]Answer[int64] {
		epochs := map[string]map[int32]int32{}
		for of, epoch := range asks {
			if epochs[of.topic] == nil {
				epochs[of.topic] = map[int32]int32{}
			}
			epochs[of.topic][of.partition] = epoch
		}
		found, err := admin.OffsetForLeaderEpoch(context.Background(), epochs)
		answers := map[topicPartition]Answer[int64]{}
		for of, epoch := range asks {
			if _, ok := found[of.topic][of.partition]; !ok && err != nil { // the leader of this partition did not respond
				answers[of] = Answer[int64]{Err: fmt.Errorf("read the leader epochs of %s/%d: %w", of.topic, of.partition, err)}
				continue
			}
			end, err := epochEnd(found, of.topic, of.partition, epoch)
			answers[of] = Answer[int64]{end, err}
		}
		return answers
	})
}
