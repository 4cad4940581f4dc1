package kafkatest

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
)

// ReadCommitted returns the records that [EachCommitted] delivers, sorted by topic, partition and offset.
func ReadCommitted(ctx context.Context, client *kgo.Client, from map[string]map[int32]int64, topics ...string) ([]*kgo.Record, error) {
	var records []*kgo.Record
	err := EachCommitted(ctx, client, from, func(r *kgo.Record) { records = append(records, r) }, topics...)
	slices.SortFunc(records, func(a, b *kgo.Record) int {
		return cmp.Or(cmp.Compare(a.Topic, b.Topic), cmp.Compare(a.Partition, b.Partition), cmp.Compare(a.Offset, b.Offset))
	})
	return records, err
}

// EachCommitted calls each with every record that a read_committed consumer of topics receives, up to the last stable
// offsets at the time of the call. It starts at the offsets in from, by topic and partition; a partition that from
// lacks is read from its first offset. The records of one partition arrive in order. client lists the offsets; the
// records are consumed by a second client with the same options.
func EachCommitted(ctx context.Context, client *kgo.Client, from map[string]map[int32]int64, each func(*kgo.Record), topics ...string) error {
	begin, left, err := unread(ctx, kadm.NewClient(client), from, topics)
	if err != nil || len(left) == 0 {
		return err
	}
	// The consumer keeps control records, because the last record of a partition may be one: without it the consumer
	// would wait for a record that never comes.
	consumer, err := kgo.NewClient(append(slices.Clip(client.Opts()), kgo.ConsumePartitions(begin), kgo.KeepControlRecords(),
		kgo.FetchIsolationLevel(kgo.ReadCommitted()), kgo.ConsumeResetOffset(kgo.NoResetOffset()))...)
	if err != nil {
		return err
	}
	defer consumer.Close()
	for len(left) > 0 {
		fetches := consumer.PollFetches(ctx)
		if err := fetches.Err(); err != nil {
			return fmt.Errorf("read %v, with %d partitions not read to their end: %w", topics, len(left), err)
		}
		fetches.EachRecord(func(r *kgo.Record) {
			p := partition{r.Topic, r.Partition}
			end, open := left[p]
			if open && r.Offset < end && !r.Attrs.IsControl() {
				each(r)
			}
			if open && r.Offset >= end-1 {
				delete(left, p)
			}
		})
	}
	return nil
}

type partition struct {
	topic  string
	number int32
}

// unread returns the partitions that have records to read: for each partition the offset at which to begin, and the
// last stable offset.
func unread(ctx context.Context, admin *kadm.Client, from map[string]map[int32]int64, topics []string) (begin map[string]map[int32]kgo.Offset, ends map[partition]int64, err error) {
	starts, err := admin.ListStartOffsets(ctx, topics...)
	if err != nil {
		return nil, nil, fmt.Errorf("list the start offsets of %v: %w", topics, err)
	}
	stable, err := admin.ListCommittedOffsets(ctx, topics...)
	if err != nil {
		return nil, nil, fmt.Errorf("list the last stable offsets of %v: %w", topics, err)
	}
	if err := errors.Join(starts.Error(), stable.Error()); err != nil {
		return nil, nil, fmt.Errorf("list the offsets of %v: %w", topics, err)
	}
	begin, ends = map[string]map[int32]kgo.Offset{}, map[partition]int64{}
	starts.Each(func(o kadm.ListedOffset) {
		start := max(o.Offset, from[o.Topic][o.Partition])
		end, _ := stable.Lookup(o.Topic, o.Partition)
		if end.Offset <= start {
			return
		}
		ends[partition{o.Topic, o.Partition}] = end.Offset
		if begin[o.Topic] == nil {
			begin[o.Topic] = map[int32]kgo.Offset{}
		}
		begin[o.Topic][o.Partition] = kgo.NewOffset().At(start)
	})
	return begin, ends, nil
}

// Header returns the value of the record's first header with this name; "" if there is none.
func Header(r *kgo.Record, name string) string {
	for _, h := range r.Headers {
		if h.Key == name {
			return string(h.Value)
		}
	}
	return ""
}
