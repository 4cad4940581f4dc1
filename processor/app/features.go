package app

import (
	"context"
	"fmt"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

const (
	// transactionFeature is the name of the cluster feature whose level is the version of the transaction
	// protocol.
	transactionFeature = "transaction.version"
	// EpochPerTransaction is the first version of the transaction protocol in which every transaction has a
	// producer epoch of its own (KIP-890). With earlier versions the broker may take a late request of one
	// transaction for a request of the next one (hazard C2).
	EpochPerTransaction = 2
)

// TransactionVersion returns the cluster's version of the transaction protocol. It is 0 on Kafka 3, which does
// not have the feature.
func TransactionVersion(ctx context.Context, client *kgo.Client) (int16, error) {
	req := kmsg.NewPtrApiVersionsRequest()
	req.ClientSoftwareName, req.ClientSoftwareVersion = "oncebus", "1" // brokers refuse empty ones
	resp, err := req.RequestWith(ctx, client)
	if err == nil {
		err = kerr.ErrorForCode(resp.ErrorCode)
	}
	if err != nil {
		return 0, fmt.Errorf("read the cluster's features: %w", err)
	}
	for _, f := range resp.FinalizedFeatures {
		if f.Name == transactionFeature {
			return f.MaxVersionLevel, nil
		}
	}
	return 0, nil
}

// logOldTransactions logs if the cluster's version of the transaction protocol is older than
// EpochPerTransaction.
func (s *setup) logOldTransactions(ctx context.Context) error {
	version, err := TransactionVersion(ctx, s.Client)
	if err != nil {
		return err
	}
	if version < EpochPerTransaction {
		s.Log.Info("old transaction version", "feature", transactionFeature, "version", version,
			"effect", "a worker that gets no response to a commit replaces its client",
			"action", fmt.Sprintf("from Kafka 4.0 on, kafka-features.sh upgrade --feature %s=%d ends that", transactionFeature, EpochPerTransaction))
	}
	return nil
}
