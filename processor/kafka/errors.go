package kafka

import (
	"errors"
	"fmt"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
)

// Action is the worker's reaction to an error. The four actions are ordered by how much work they
// discard. Classify returns one of them for every error.
type Action uint8

const (
	// Retry sends the request again after a pause, with the same client: the broker
	// changed nothing.
	Retry Action = iota
	// Abort aborts the open transaction and continues with the same client: the transaction cannot
	// commit, for example after a rebalance or a failed produce request.
	Abort
	// Rebuild replaces the client and restores the tasks: the client lost its group membership or its
	// producer id, or the commit outcome is unknown (invariant 3).
	Rebuild
	// Stop ends the process, because to continue would break a guarantee or because an operator has to
	// change something first. The events stay in Kafka.
	Stop
)

func (a Action) String() string {
	return [...]string{"retry", "abort", "rebuild", "stop"}[a]
}

var (
	// ErrIllegalState is wrapped by every error that only a bug in oncebus
	// can cause.
	ErrIllegalState = errors.New("illegal state")
	// ErrOperator is wrapped by errors that only an operator can resolve: a missing topic, a topic with
	// unsuitable settings, a manifest that disagrees with the routes.
	ErrOperator = errors.New("refused")
	// ErrMustAbort is wrapped by errors after which a task cannot commit the open transaction, for
	// example because its partition has another owner or its store failed.
	ErrMustAbort = errors.New("transaction must abort")
	// ErrTruncated is wrapped by errors about a topic that lost records after a task had read them.
	ErrTruncated = errors.New("topic was truncated or recreated")
	// ErrStaleTopic is wrapped by errors about a topic that was recreated while a client wrote to it.
	// The client keeps the id of the former topic, so the worker replaces the client.
	ErrStaleTopic = errors.New("topic was recreated, the client knows the former one")
)

// IsOperatorError reports whether only an operator can resolve an error, by other settings, routes or
// topics. A retry would fail again.
func IsOperatorError(err error) bool { return errors.Is(err, ErrOperator) }

// OperatorErrorf returns an error that wraps ErrOperator.
func OperatorErrorf(format string, args ...any) error {
	return fmt.Errorf("%w: %w", ErrOperator, fmt.Errorf(format, args...))
}

// Classify returns the action for an error. After a network error or an unknown error it is not known what the
// broker did, so the worker replaces the client.
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

// classifyCode returns the action for an error code of a broker. For a code that is not listed, it returns Retry
// if Kafka calls the code retriable. Otherwise it returns Rebuild, so that the worker makes a new client and
// reads the log again.
func classifyCode(ke *kerr.Error) Action {
	switch ke {
	// An operator has to grant a right, change a setting or upgrade the cluster.
	case kerr.TopicAuthorizationFailed, kerr.GroupAuthorizationFailed, kerr.ClusterAuthorizationFailed,
		kerr.TransactionalIDAuthorizationFailed, kerr.DelegationTokenAuthorizationFailed,
		kerr.SaslAuthenticationFailed, kerr.UnsupportedSaslMechanism, kerr.IllegalSaslState,
		kerr.UnsupportedVersion, kerr.UnsupportedForMessageFormat, kerr.SecurityDisabled,
		kerr.InvalidConfig, kerr.PolicyViolation, kerr.InvalidTransactionTimeout,
		kerr.InvalidSessionTimeout, kerr.InvalidTopicException, kerr.InvalidGroupID,
		kerr.InconsistentGroupProtocol, kerr.InconsistentClusterID:
		return Stop
	// The log no longer has the offset at which to continue (invariant 8).
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

// RefusesRecord reports whether a broker rejected a record for good: with the present settings of its topic, the
// broker will never accept the record. If the error is that of a batch, any record of the batch may be the
// cause.
func RefusesRecord(err error) bool {
	return errors.Is(err, kerr.MessageTooLarge) || errors.Is(err, kerr.RecordListTooLarge) ||
		errors.Is(err, kerr.InvalidRecord) || errors.Is(err, kerr.InvalidTimestamp)
}

// ErrCommitUnknown is wrapped by the errors of an End that failed. The worker then replaces the client,
// whatever the error code is (invariant 3).
var ErrCommitUnknown = errors.New("commit outcome unknown")

// AsCommitUnknown wraps an error of End in ErrCommitUnknown, so that Classify returns Rebuild for it.
// It returns an error that stops the process unchanged.
func AsCommitUnknown(err error) error {
	if Classify(err) == Stop {
		return err
	}
	return fmt.Errorf("%w: %w", ErrCommitUnknown, err)
}
