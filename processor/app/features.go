package app

import (
	"context"
	"fmt"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"
)

const (
	// transactionFeature is the cluster's feature that says which rules
	// transactions follow.
	transactionFeature = "transaction.version"
	// transactionVersionMin is the first with which every transaction has a
	// producer epoch of its own (KIP-890): without it, a request to end one
	// transaction that arrives late can end the next (hazard C2).
	transactionVersionMin = 2
)

// warnOldTransactions says so if the cluster follows older rules. It is no
// reason not to start: the cluster may be in the middle of an upgrade.
func (s *setup) warnOldTransactions(ctx context.Context) error {
	req := kmsg.NewPtrApiVersionsRequest()
	req.ClientSoftwareName, req.ClientSoftwareVersion = "oncebus", "1" // brokers refuse empty ones
	resp, err := req.RequestWith(ctx, s.Client)
	if err == nil {
		err = kerr.ErrorForCode(resp.ErrorCode)
	}
	if err != nil {
		return fmt.Errorf("ask for the cluster's features: %w", err)
	}
	version := int16(0)
	for _, f := range resp.FinalizedFeatures {
		if f.Name == transactionFeature {
			version = f.MaxVersionLevel
		}
	}
	if version < transactionVersionMin {
		s.Log.Warn("this cluster does not protect a transaction from a late end of the one before: a lost and repeated request could then lose or repeat events; "+
			"upgrade it to Kafka 4.0 or later and finalize the feature (kafka-features.sh upgrade --feature transaction.version=2)",
			"feature", transactionFeature, "version", version, "wanted", transactionVersionMin)
	}
	return nil
}
