package kafka

import (
	"context"
	"fmt"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// GroupOffset is an offset that a group has committed, -1 for none, and the text that
// its committer gave with it.
type GroupOffset struct {
	At       int64
	Metadata string
}

// StableOffsets returns a group's committed offsets of partitions, -1 for none. It omits
// partitions whose offset is part of an open transaction. It names the partitions in the
// request: a broker that lists all omits those whose only offset is in one.
func StableOffsets(ctx context.Context, client *kgo.Client, group string, partitions map[string][]int32) (map[string]map[int32]GroupOffset, error) {
	of := kmsg.NewOffsetFetchRequestGroup()
	of.Group = group
	for name, numbers := range partitions {
		topic := kmsg.NewOffsetFetchRequestGroupTopic()
		topic.Topic, topic.Partitions = name, numbers
		of.Topics = append(of.Topics, topic)
	}
	req := kmsg.NewPtrOffsetFetchRequest()
	req.RequireStable, req.Groups = true, append(req.Groups, of)
	resp, err := req.RequestWith(ctx, client)
	if err != nil {
		return nil, fmt.Errorf("fetch the offsets of group %s: %w", group, err)
	}
	offsets := map[string]map[int32]GroupOffset{}
	for _, g := range resp.Groups {
		if err := kerr.ErrorForCode(g.ErrorCode); err != nil {
			return nil, fmt.Errorf("fetch the offsets of group %s: %w", group, err)
		}
		for _, topic := range g.Topics {
			for _, p := range topic.Partitions {
				if p.ErrorCode != 0 {
					continue
				}
				if offsets[topic.Topic] == nil {
					offsets[topic.Topic] = map[int32]GroupOffset{}
				}
				offset := GroupOffset{At: p.Offset}
				if p.Metadata != nil {
					offset.Metadata = *p.Metadata
				}
				offsets[topic.Topic][p.Partition] = offset
			}
		}
	}
	return offsets, nil
}
