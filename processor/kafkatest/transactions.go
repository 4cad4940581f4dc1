package kafkatest

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// OpenTransactions returns the partitions of topics with an open transaction, as topic/partition: their last stable offset is below
// the high watermark.
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

// SetTransactionVersion sets the cluster's feature transaction.version, which Kafka has
// since release 4.0. Version 1 has the transactions of older releases. Of the two
// kinds of change, upgrade and safe downgrade, the broker refuses the wrong one.
func SetTransactionVersion(ctx context.Context, client *kgo.Client, version int16) error {
	const upgrade, safeDowngrade = 1, 2
	var errs []error
	for _, kind := range []int8{upgrade, safeDowngrade} {
		err := updateFeature(ctx, client, "transaction.version", version, kind)
		if err == nil {
			return nil
		}
		errs = append(errs, err)
	}
	return fmt.Errorf("set transaction.version to %d: %w", version, errors.Join(errs...))
}

func updateFeature(ctx context.Context, client *kgo.Client, feature string, version int16, kind int8) error {
	req := kmsg.NewPtrUpdateFeaturesRequest()
	update := kmsg.NewUpdateFeaturesRequestFeatureUpdate()
	update.Feature, update.MaxVersionLevel, update.UpgradeType = feature, version, kind
	req.FeatureUpdates = append(req.FeatureUpdates, update)
	resp, err := req.RequestWith(ctx, client)
	if err != nil {
		return err
	}
	if err := kerr.ErrorForCode(resp.ErrorCode); err != nil {
		message := ""
		if resp.ErrorMessage != nil {
			message = *resp.ErrorMessage
		}
		return fmt.Errorf("%w: %s", err, message)
	}
	for _, r := range resp.Results {
		if err := kerr.ErrorForCode(r.ErrorCode); err != nil {
			return fmt.Errorf("%s: %w", r.Feature, err)
		}
	}
	return nil
}
