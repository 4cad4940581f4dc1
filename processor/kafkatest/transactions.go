package kafkatest

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/twmb/franz-go/pkg/kadm"
)

// OpenTransactions returns the partitions of topics that have an open transaction, as topic/partition. In these
// partitions the last stable offset is below the high watermark.
func OpenTransactions(ctx context.Context, admin *kadm.Client, topics ...string) ([]string, error) {
	stable, err := admin.ListCommittedOffsets(ctx, topics...)
	if err != nil {
		return nil, fmt.Errorf("list the last stable offsets of %v: %w", topics, err)
	}
	ends, err := admin.ListEndOffsets(ctx, topics...)
	if err != nil {
		return nil, fmt.Errorf("list the high watermarks of %v: %w", topics, err)
	}
	if err := errors.Join(stable.Error(), ends.Error()); err != nil {
		return nil, fmt.Errorf("list the offsets of %v: %w", topics, err)
	}
	var open []string
	ends.Each(func(o kadm.ListedOffset) {
		if s, ok := stable.Lookup(o.Topic, o.Partition); !ok || s.Offset < o.Offset {
			open = append(open, fmt.Sprintf("%s/%d", o.Topic, o.Partition))
		}
	})
	slices.Sort(open)
	return open, nil
}
