package kafka

import (
	"errors"
	"fmt"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
)

// Action is the worker's reaction to an error. The four are ordered by how much work
// they discard. Classify returns one for every error.
type Action uint8

const (
	// Retry sends the request again after a pause, with the same client: the broker
	// changed nothing.
	Retry Action = iota
	// Abort aborts the open transaction and continues with the same client. The
	// transaction cannot commit, after a rebalance or a failed produce request for
	// example.
	Abort
	// Rebuild makes a new client and restores. The client lost its group membership
	// or its producer id, or the commit outcome is unknown (invariant 3).
	Rebuild
	// Stop ends the process: continuing would break a guarantee, or the operator has
	// to change something first. The events stay in Kafka.
	Stop
)

func (a Action) String() string {
	return [...]string{"retry", "abort", "rebuild", "stop"}[a]
}

var (
	// ErrIllegalState is wrapped by every error that only a bug in oncebus
	// can cause.
	ErrIllegalState = errors.New("illegal state")
	// ErrOperator is wrapped by errors that only the operator can resolve: a
	// missing topic, a topic with unsuitable settings, a manifest that
	// disagrees with the routes.
	ErrOperator = errors.New("refused")
	// ErrMustAbort is wrapped by errors after which a task cannot commit: its
	// partition has another owner, or its store failed.
	ErrMustAbort = errors.New("transaction must abort")
	// ErrTruncated is wrapped by errors about a topic that lost records after a
	// task had read them.
	ErrTruncated = errors.New("topic was truncated or recreated")
	// ErrStaleTopic is wrapped by errors about a topic that was recreated while a
	// client wrote to it. The client keeps the old topic's id, so the worker replaces
	// it.
	ErrStaleTopic = errors.New("topic was recreated, the client knows the former one")
)

// IsOperatorError reports whether only the operator can resolve an error, by other
// settings, routes or topics. A retry fails again.
func IsOperatorError(err error) bool { return errors.Is(err, ErrOperator) }

// OperatorErrorf returns an error that wraps ErrOperator.
func OperatorErrorf(format string, args ...any) error {
	return fmt.Errorf("%w: %w", ErrOperator, fmt.Errorf(format, args...))
}

// Classify returns the action for an error. After a network error or an unknown
// error the broker's state is unknown, so the worker makes a new client.
func Classify(err error) Action {
	var ke *kerr.Error
	switch {
	case errors.Is(err, ErrIllegalState), errors.Is(err, ErrOperator), errors.Is(err, ErrTruncated):
		return Stop
	case errors.Is(err, ErrCommitUnknown), errors.Is(err, ErrStaleTopic):
		return Rebuild
	case errors.Is(err, ErrMustAbort):
		return Abort
	case errors.As(err, &ke):
		return classifyCode(ke)
	case errors.Is(err, kgo.ErrRecordTimeout), errors.Is(err, kgo.ErrRecordRetries), errors.Is(err, kgo.ErrAborting):
		return Abort
	}
	return Rebuild
}

// classifyCode is the table of broker errors. A code outside of it is retried if
// Kafka calls it retriable. Otherwise the worker makes a new client and reads the
// log again.
func classifyCode(ke *kerr.Error) Action {
	switch ke {
	// The operator has to grant a right, change a setting or upgrade the cluster.
	case kerr.TopicAuthorizationFailed, kerr.GroupAuthorizationFailed, kerr.ClusterAuthorizationFailed,
		kerr.TransactionalIDAuthorizationFailed, kerr.DelegationTokenAuthorizationFailed,
		kerr.SaslAuthenticationFailed, kerr.UnsupportedSaslMechanism, kerr.IllegalSaslState,
		kerr.UnsupportedVersion, kerr.UnsupportedForMessageFormat, kerr.SecurityDisabled,
		kerr.InvalidConfig, kerr.PolicyViolation, kerr.InvalidTransactionTimeout,
		kerr.InvalidSessionTimeout, kerr.InvalidTopicException, kerr.InvalidGroupID,
		kerr.InconsistentGroupProtocol, kerr.InconsistentClusterID:
		return Stop
	// The log has lost the offset to continue from (invariant 8).
	case kerr.OffsetOutOfRange:
		return Stop
	// The group rebalanced during this transaction.
	case kerr.RebalanceInProgress, kerr.IllegalGeneration, kerr.StaleMemberEpoch, kerr.UnknownMemberID,
		kerr.FencedMemberEpoch, kerr.GroupIDNotFound, kerr.UnreleasedInstanceID:
		return Abort
	// The transaction cannot commit, the producer stays usable.
	case kerr.TransactionAbortable, kerr.OperationNotAttempted, kerr.ConcurrentTransactions,
		kerr.MessageTooLarge, kerr.RecordListTooLarge, kerr.InvalidRecord, kerr.InvalidTimestamp,
		kerr.CorruptMessage, kerr.KafkaStorageError, kerr.NotEnoughReplicas, kerr.NotEnoughReplicasAfterAppend:
		return Abort
	// Another producer uses this transactional id, or the broker aborted the
	// transaction after its timeout. Kafka sends the same codes for both (A14).
	case kerr.ProducerFenced, kerr.InvalidProducerEpoch, kerr.InvalidProducerIDMapping, kerr.UnknownProducerID,
		kerr.OutOfOrderSequenceNumber, kerr.DuplicateSequenceNumber, kerr.InvalidTxnState,
		kerr.TransactionCoordinatorFenced, kerr.FencedInstanceID, kerr.UnknownServerError, kerr.RequestTimedOut:
		return Rebuild
	}
	if ke.Retriable {
		return Retry
	}
	return Rebuild
}

// RefusesRecord reports whether a broker refused a record for good: with these settings
// of its topic it will never accept it. An error of a batch may be that of any of its
// records.
func RefusesRecord(err error) bool {
	return errors.Is(err, kerr.MessageTooLarge) || errors.Is(err, kerr.RecordListTooLarge) ||
		errors.Is(err, kerr.InvalidRecord) || errors.Is(err, kerr.InvalidTimestamp)
}

// ErrCommitUnknown is wrapped by the errors of an End that failed. The worker
// replaces the client, whatever the code is (invariant 3).
var ErrCommitUnknown = errors.New("commit outcome unknown")

// AsCommitUnknown wraps an error of End in ErrCommitUnknown, so that Classify
// returns at least Rebuild.
func AsCommitUnknown(err error) error {
	if Classify(err) == Stop {
		return err
	}
	return fmt.Errorf("%w: %w", ErrCommitUnknown, err)
}
