package kafka

import (
	"errors"
	"fmt"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
)

// An action is what a worker does about an error. There are four, ordered by
// how much they throw away; classify picks one for every error there is.
type Action uint8

const (
	// actRetry: nothing was decided; wait and ask again with the same client.
	Retry Action = iota
	// actAbort: the open transaction cannot commit; abort it, go on with the
	// same client. Rebalances and failed produces end here.
	Abort
	// actRebuild: the client's place in the group or its producer id is gone,
	// or the outcome of a commit is unknown (invariant 3). Build a new client
	// and restore.
	Rebuild
	// actStop: going on would break a promise, or a person has to change
	// something first. Stop the process: Kafka holds the events.
	Stop
)

func (a Action) String() string {
	return [...]string{"retry", "abort", "rebuild", "stop"}[a]
}

var (
	// ErrIllegalState is wrapped by every error that can only be our own bug.
	ErrIllegalState = errors.New("illegal state")
	// ErrOperator is wrapped by errors of the set-up that only the operator
	// can resolve: a topic that is missing or has other settings than ours,
	// a manifest that disagrees.
	ErrOperator = errors.New("refused")
	// ErrMustAbort says that a partition is no longer ours.
	ErrMustAbort = errors.New("partition moved to another owner")
	// ErrTruncated says that the topic holds less than was once read from it.
	ErrTruncated = errors.New("topic was truncated or recreated")
)

// IsOperatorError reports whether an error is one that only the operator can resolve,
// by other settings, routes or topics: to try again is of no use.
func IsOperatorError(err error) bool { return errors.Is(err, ErrOperator) }

// OperatorErrorf returns an error of kind errRefused.
func OperatorErrorf(format string, args ...any) error {
	return fmt.Errorf("%w: %w", ErrOperator, fmt.Errorf(format, args...))
}

// Classify maps an error to the action it asks for. Errors of the network and
// errors nobody knows are retried through a new client: after them it is not
// known what the broker did.
func Classify(err error) Action {
	var ke *kerr.Error
	switch {
	case errors.Is(err, ErrIllegalState), errors.Is(err, ErrOperator), errors.Is(err, ErrTruncated):
		return Stop
	case errors.Is(err, ErrCommitUnknown):
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

// classifyCode is the table of broker errors. What is not named follows the
// broker's own word: retriable errors are retried, all others ask for a new
// client, which settles every doubt by reading the log.
func classifyCode(ke *kerr.Error) Action {
	switch ke {
	// A person has to grant, configure or upgrade something.
	case kerr.TopicAuthorizationFailed, kerr.GroupAuthorizationFailed, kerr.ClusterAuthorizationFailed,
		kerr.TransactionalIDAuthorizationFailed, kerr.DelegationTokenAuthorizationFailed,
		kerr.SaslAuthenticationFailed, kerr.UnsupportedSaslMechanism, kerr.IllegalSaslState,
		kerr.UnsupportedVersion, kerr.UnsupportedForMessageFormat, kerr.SecurityDisabled,
		kerr.InvalidConfig, kerr.PolicyViolation, kerr.InvalidTransactionTimeout,
		kerr.InvalidSessionTimeout, kerr.InvalidTopicException, kerr.InvalidGroupID,
		kerr.InconsistentGroupProtocol, kerr.InconsistentClusterID:
		return Stop
	// The log no longer has what we stand on (invariant 8).
	case kerr.OffsetOutOfRange:
		return Stop
	// The group moved on without this transaction.
	case kerr.RebalanceInProgress, kerr.IllegalGeneration, kerr.StaleMemberEpoch, kerr.UnknownMemberID,
		kerr.FencedMemberEpoch, kerr.GroupIDNotFound, kerr.UnreleasedInstanceID:
		return Abort
	// The transaction cannot commit, the producer is well.
	case kerr.TransactionAbortable, kerr.OperationNotAttempted, kerr.ConcurrentTransactions,
		kerr.MessageTooLarge, kerr.RecordListTooLarge, kerr.InvalidRecord, kerr.InvalidTimestamp,
		kerr.CorruptMessage, kerr.KafkaStorageError, kerr.NotEnoughReplicas, kerr.NotEnoughReplicasAfterAppend:
		return Abort
	// Another producer with our transactional id, or the broker timed the
	// transaction out: the same codes stand for both (A14).
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

// ErrCommitUnknown marks an End that failed: whatever the code says, the client
// must go (invariant 3).
var ErrCommitUnknown = errors.New("outcome unknown")

// AsCommitUnknown keeps an error of End from being taken for a lesser one.
func AsCommitUnknown(err error) error {
	if Classify(err) == Stop {
		return err
	}
	return fmt.Errorf("%w: %w", ErrCommitUnknown, err)
}
