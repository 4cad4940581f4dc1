package app

import (
	"context"
	"errors"
	"fmt"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"oncebus/processor/kafka"
)

// Ends returns the high watermarks of a topic's partitions.
func Ends(ctx context.Context, c Conn, topic string) (map[int32]int64, error) {
	listed, err := c.Admin.ListEndOffsets(ctx, topic)
	if err == nil {
		err = listed.Error()
	}
	if err != nil {
		return nil, fmt.Errorf("list the ends of %s: %w", topic, err)
	}
	ends := map[int32]int64{}
	for partition, o := range listed[topic] {
		ends[partition] = o.Offset
	}
	return ends, nil
}

// errRecord makes a Reader stop at the first record.
var errRecord = errors.New("a record")

// Undrained returns the tasks of a topic that have not yet committed all records below the partition's end in
// ends. Control records and aborted records do not count.
func Undrained(ctx context.Context, c Conn, t *Topology, topic string, ends map[int32]int64) ([]TaskID, error) {
	return unread(ctx, c, t, GroupName(t.App, StageDedup), topic, ends, func(int32) int64 { return 0 })
}

// Unrouted returns the partitions of an input with committed records below the partition's end in ends that the
// routing stage has not yet routed and committed.
func Unrouted(ctx context.Context, c Conn, rt *App, topic string, ends map[int32]int64) ([]TaskID, error) {
	t := rt.Topology
	return unread(ctx, c, t, GroupName(t.App, StageRoute), topic, ends, func(p int32) int64 {
		first, _ := rt.Manifest.Start(topic, t.Topics[topic].ID, p)
		return first
	})
}

// unread returns the partitions of a topic that have records below their end which a group has not committed.
// For a partition without a committed offset, the group begins at first.
func unread(ctx context.Context, c Conn, t *Topology, group, topic string, ends map[int32]int64, first func(int32) int64) ([]TaskID, error) {
	committed, err := kafka.AskCoordinator(func() (kadm.OffsetResponses, error) { return c.Admin.FetchOffsets(ctx, group) })
	if err == nil {
		err = committed.Error()
	}
	if err != nil {
		return nil, fmt.Errorf("read the offsets of group %s: %w", group, err)
	}
	bounds, err := c.Admin.ListStartOffsets(ctx, topic)
	if err == nil {
		err = bounds.Error()
	}
	if err != nil {
		return nil, fmt.Errorf("list the starts of %s: %w", topic, err)
	}
	var left []TaskID
	for partition := range int32(len(ends)) {
		id := TaskID{Topic: topic, Partition: partition}
		from := max(first(partition), bounds[topic][partition].Offset)
		if o, ok := committed.Lookup(topic, partition); ok {
			from = max(from, o.At)
		}
		reader := kafka.NewReader(c.Client, topic, t.Topics[topic].ID, partition)
		err := reader.Read(ctx, from, ends[partition], func(records []*kgo.Record, _ int64) error {
			if len(records) > 0 {
				return errRecord
			}
			return nil
		})
		switch {
		case errors.Is(err, errRecord):
			left = append(left, id)
		case err != nil:
			return nil, err
		}
	}
	return left, nil
}
