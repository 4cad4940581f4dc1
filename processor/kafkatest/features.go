package kafkatest

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// The kinds of change in an UpdateFeatures request. The broker refuses an upgrade to a lower level, and a downgrade
// to a higher one.
const upgrade, safeDowngrade = 1, 2

const (
	// metadataFeature decides which records the controllers write. Its level limits the levels of other features, so
	// it is set first.
	metadataFeature = "metadata.version"
	// quorumFeature is the membership protocol of the controllers' quorum. An upgrade of the cluster's release leaves
	// it unchanged.
	quorumFeature = "kraft.version"
)

// SetTransactionVersion sets the cluster's feature transaction.version, which exists since Kafka 4.0. Version 1 makes
// transactions behave as in older releases.
func SetTransactionVersion(ctx context.Context, client *kgo.Client, version int16) error {
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

// finalizeFeatures sets every feature to the newest level that a broker supports.
func finalizeFeatures(ctx context.Context, client *kgo.Client) (map[string]int16, error) {
	req := kmsg.NewPtrApiVersionsRequest()
	req.ClientSoftwareName, req.ClientSoftwareVersion = "kafkatest", "1"
	resp, err := req.RequestWith(ctx, client)
	if err == nil {
		err = kerr.ErrorForCode(resp.ErrorCode)
	}
	if err != nil {
		return nil, fmt.Errorf("read the features that Kafka supports: %w", err)
	}
	levels, has := map[string]int16{}, map[string]int16{}
	for _, f := range resp.FinalizedFeatures {
		has[f.Name] = f.MaxVersionLevel
	}
	for _, f := range resp.SupportedFeatures {
		if f.Name != quorumFeature {
			levels[f.Name] = f.MaxVersion
		}
	}
	names := slices.Sorted(maps.Keys(levels))
	slices.SortStableFunc(names, func(a, b string) int { return rank(a) - rank(b) })
	for _, name := range names {
		if levels[name] == has[name] {
			continue
		}
		if err := updateFeature(ctx, client, name, levels[name], upgrade); err != nil {
			return nil, fmt.Errorf("set %s to %d: %w", name, levels[name], err)
		}
	}
	return levels, nil
}

// rank is the sort key of a feature: metadataFeature comes first.
func rank(feature string) int {
	if feature == metadataFeature {
		return 0
	}
	return 1
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
