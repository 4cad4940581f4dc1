package app

import (
	"context"
	"fmt"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"
)

const (
	// transactionFeature is the cluster feature with the version of the
	// transaction protocol.
	transactionFeature = "transaction.version"
	// transactionVersionMin is the first version in which every transaction has
	// a producer epoch of its own (KIP-890). Before it a late EndTxn can end the
	// next transaction (hazard C2).
	transactionVersionMin = 2
)

// warnOldTransactions logs a warning if the cluster has an older version. The start
// continues, because an upgrade of the cluster may be in progress.
func (s *setup) warnOldTransactions(ctx context.Context) error {
	req := kmsg.NewPtrApiVersionsRequest()
	req.ClientSoftwareName, req.ClientSoftwareVersion = "oncebus", "1" // brokers refuse empty ones
	resp, err := req.RequestWith(ctx, s.Client)
	if err == nil {
		err = kerr.ErrorForCode(resp.ErrorCode)
	}
	if err != nil {
		return fmt.Errorf("read the cluster's features: %w", err)
	}
	version := int16(0)
	for _, f := range resp.FinalizedFeatures {
		if f.Name == transactionFeature {
			version = f.MaxVersionLevel
		}
	}
	if version < transactionVersionMin {
		s.Log.Warn("old transaction version", "feature", transactionFeature, "version", version, "wanted", transactionVersionMin,
			"reason", "a late EndTxn can end the next transaction, which loses or repeats events",
			"action", "upgrade to Kafka 4.0 or later and run kafka-features.sh upgrade --feature transaction.version=2")
	}
	return nil
}
