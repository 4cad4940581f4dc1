package hanging

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
	"github.com/twmb/franz-go/pkg/kversion"

	"oncebus/processor/kafka"
)

// Closer closes the last transaction of a transactional id in the partitions in which it is still open.
//
// It raises the epoch of the producer, so that a process which still uses the id cannot write into the empty
// transaction that the Closer runs. It raises the epoch from the value that the coordinator showed. If another
// process has raised the epoch since, the request fails, and the Closer asks the coordinator again.
// raised it since, the request fails, and the Closer looks again.
//
// The epoch is raised by InitProducerID, which makes the coordinator forget how the last transaction ended. So
// the Closer writes that outcome into the same request, as the transaction timeout. For a producer that closes a
// committed transaction the timeout is an odd number of milliseconds; all other timeouts are even
// ([kafka.TransactionTimeout]). If the Closer is killed after that request, the coordinator therefore still
// shows what is left to do, and any other Closer can finish it.
type Closer struct {
	Client *kgo.Client
	Admin  *kadm.Client
	// Options are the options of a client of the app, without a transactional id or a group.
	Options []kgo.Opt
	Log     *slog.Logger
	// Waits is called with what the Closer waits for, and with "" when it no longer waits.
	Waits func(reason string)
}

// Last describes what the last transaction of a transactional id may have left open.
type Last struct {
	ID string // transactional id
	// Partitions are the partitions that the transaction may have written to.
	Partitions kadm.TopicsSet
	// TakesOver reports that the caller is about to register the id. The Closer then first aborts an
	// open transaction, so that a late end of that transaction has no effect any more.
	TakesOver bool
	// Group is the consumer group whose offsets the transaction may have committed, Offsets the
	// partitions of these offsets.
	Group   string
	Offsets map[string][]int32
	// Foreign has those Offsets that stay pending because they are part of transactions of other producers.
	// Close knows that, and cannot close those transactions.
	Foreign map[string][]int32

	closings int // how often pending offsets were closed
}

const (
	// pauseMin and pauseMax bound the time between two questions to a coordinator or a leader.
	pauseMin, pauseMax = time.Millisecond, 100 * time.Millisecond
	// saysAfter is how long a Closer waits before it reports what it waits for.
	saysAfter = 5 * time.Second
	// closingsMax is how often a worker closes pending offsets if it may not read to which producer they belong.
	// If offsets are still pending after that, the worker takes them for another producer's. The group's
	// coordinator answers before each closing, so it is available and does not drop a second marker in a row.
	closingsMax = 2
	// repairTimeout is the transaction timeout of a producer that closes a committed transaction: the highest
	// timeout that brokers accept by default (transaction.max.timeout.ms), made odd. It is so high because a
	// timeout of the empty transaction would write abort markers, which abort what was committed.
	repairTimeout = 15*time.Minute - time.Millisecond
)

// state is what a coordinator says about a transactional id.
type state struct {
	Name     string // name of the state, as Kafka calls it
	Producer int64
	Epoch    int16
	Timeout  int32 // transaction timeout, ms
}

// closesCommitted reports whether the producer was registered to close a committed transaction, which an odd
// timeout shows.
func (s *state) closesCommitted() bool { return s.Timeout%2 != 0 }

// committed reports whether the last transaction that wrote something was committed. It asks closesCommitted
// first: the state is Empty after InitProducerID, which aborts an open transaction, and then shows no outcome.
func (s *state) committed() bool { return s.closesCommitted() || s.Name == stateCommitted }

// The states of a transaction that matter, as Kafka calls them.
const (
	stateEmpty, stateOngoing     = "Empty", "Ongoing"
	stateCommitted, stateAborted = "CompleteCommit", "CompleteAbort"
)

// phase says what may be done in the state that a coordinator shows.
type phase int

const (
	unused phase = iota // there was no transaction
	open                // a transaction is open; its producer or its timeout will end it
	begun               // the empty transaction that closes a committed one is open
	ending              // the coordinator is writing the markers
	over                // the coordinator has written all markers, or has dropped some
)

// phaseOf returns the phase of a state; nil stands for an unknown transactional id.
func phaseOf(s *state) phase {
	switch {
	case s == nil || s.Name == "Dead":
		return unused
	case s.Name == stateOngoing && s.closesCommitted():
		return begun
	case s.Name == stateOngoing:
		return open
	case s.Name == stateEmpty, s.Name == stateCommitted, s.Name == stateAborted:
		return over
	}
	return ending
}

// describe asks the coordinator about a transactional id. It returns nil if the coordinator does not
// know the id.
func (s *Closer) describe(ctx context.Context, id string) (*state, error) {
	ctx, cancel := context.WithTimeout(ctx, lookMax)
	defer cancel()
	described, err := s.Admin.DescribeTransactions(ctx, id)
	d, ok := described[id]
	switch {
	case err != nil:
		return nil, err
	case !ok:
		return nil, kerr.CoordinatorNotAvailable
	case errors.Is(d.Err, kerr.TransactionalIDNotFound):
		return nil, nil //nolint:nilnil // a state without a transactional id
	case d.Err != nil:
		return nil, d.Err
	}
	return &state{d.State, d.ProducerID, d.ProducerEpoch, d.TimeoutMillis}, nil
}

// Close returns once the last transaction that its coordinator has completed is closed everywhere. It waits for
// coordinators and leaders until ctx is done. It returns an error only then, or if an operator has to grant a
// right. If the coordinator has not completed the transaction, Close does nothing with it.
//
// If offsets of the group stay pending, they may belong to another producer, whose transaction Close cannot
// close. Close then moves them to last.Foreign.
func (s *Closer) Close(ctx context.Context, last *Last) error {
	wait := newWaiter(s.Waits)
	defer wait.over()
	for {
		done, err := s.step(ctx, last)
		if done || kafka.Classify(err) == kafka.Stop {
			return err
		}
		if wait.pause(ctx, err) != nil {
			return fmt.Errorf("close the last transaction of %s: %w", last.ID, errors.Join(ctx.Err(), err))
		}
	}
}

// waitError says what the next step waits for.
type waitError string

func (e waitError) Error() string { return string(e) }

// step takes one step, and reports whether nothing is left to do. Its error says why another step is
// needed.
func (s *Closer) step(ctx context.Context, last *Last) (done bool, err error) {
	at, err := s.describe(ctx, last.ID)
	if err != nil {
		return false, fmt.Errorf("ask the coordinator of transactional id %s: %w", last.ID, err)
	}
	switch phaseOf(at) {
	case unused:
		// Kafka may have forgotten the transactional id, although offsets are still pending (C18). These offsets
		// belong to a producer id that the transactional id no longer has.
		left, err := s.stayPending(ctx, last)
		if err != nil {
			return false, err
		}
		last.isForeign(left)
		return true, nil
	case open:
		if last.TakesOver {
			return false, s.abort(ctx, last.ID, at)
		}
		return true, nil
	case begun:
		return false, s.with(func(client *kgo.Client) error { return endWith(ctx, client, last.ID, at, true) })
	case ending:
		return false, waitError("the coordinator of transactional id " + last.ID + " ends its transaction (" + at.Name + ")")
	case over: // some partitions may still be open
	}
	sight := Look(ctx, s.Client, last.Partitions, nil)
	hanging := sight.Of(at.Producer)
	pending, err := s.mayHavePending(ctx, last, at)
	switch why := sight.Unknown(); {
	case err != nil:
		return false, err
	case len(hanging) > 0, pending: // close these first, because other leaders may be away for long
	case why != "":
		return false, waitError(why + ", so it is not known whether the last transaction of " + last.ID + " is closed there")
	default:
		return true, nil
	}
	// The producer may be alive, and may have begun and ended another transaction since the coordinator was
	// asked.
	if now, err := s.describe(ctx, last.ID); err != nil || now == nil || *now != *at {
		return false, cmp.Or(err, error(waitError("the state of transactional id "+last.ID+" changes")))
	}
	err = s.with(func(client *kgo.Client) error { return s.closeAll(ctx, client, last, at, hanging, pending) })
	if pending && err == nil {
		last.closings++
	}
	return false, err
}

// abort makes the coordinator abort an open transaction, by raising the producer's epoch.
func (s *Closer) abort(ctx context.Context, id string, at *state) error {
	return s.with(func(client *kgo.Client) error {
		_, err := fence(ctx, client, id, at, false)
		return err
	})
}

// with calls do with a client that can send the requests of an empty transaction.
func (s *Closer) with(do func(*kgo.Client) error) error {
	client, err := kgo.NewClient(append(slices.Clone(s.Options), kgo.MaxVersions(oldVersions()), kgo.DisableIdempotentWrite())...)
	if err != nil {
		return err
	}
	defer client.Close()
	return do(client)
}

// pendingLooks and pendingPause bound how long an offset may be pending because of a live worker: between two
// looks, the transactions of a live worker end.
const pendingLooks, pendingPause = 6, 100 * time.Millisecond

// stayPending returns the offsets of the group that stay part of an open transaction. It does not find out to
// which transaction they belong.
func (s *Closer) stayPending(ctx context.Context, last *Last) (map[string][]int32, error) {
	left := last.Offsets
	for look := 0; len(left) > 0; look++ {
		stable, err := kafka.StableOffsets(ctx, s.Client, last.Group, left)
		if errors.Is(err, kerr.GroupIDNotFound) {
			return nil, nil
		} else if err != nil {
			return nil, err
		}
		if left = kafka.Unstable(left, stable); look == pendingLooks {
			return left, nil
		}
		if len(left) > 0 && kafka.Pause(ctx, pendingPause) != nil {
			return nil, ctx.Err()
		}
	}
	return nil, nil
}

// mayHavePending reports whether offsets of the group that stay pending may be part of a transaction of
// this producer. If not, it moves them to last.Foreign.
func (s *Closer) mayHavePending(ctx context.Context, last *Last, at *state) (bool, error) {
	left, err := s.stayPending(ctx, last)
	if err != nil || len(left) == 0 {
		return false, err
	}
	log, err := lookAtOffsets(ctx, s.Client, s.Admin, last.Group)
	if err != nil {
		return false, err
	}
	closed := last.closings >= closingsMax || last.closings > 0 && !last.TakesOver
	if !log.hidden {
		closed = !slices.ContainsFunc(log.open, func(o Open) bool { return o.Producer == at.Producer })
	}
	if closed {
		last.isForeign(left)
	}
	return !closed, nil
}

// isForeign moves offsets to Foreign, because they do not belong to the producer. A later step may move further
// ones.
func (l *Last) isForeign(offsets map[string][]int32) {
	l.Offsets = kafka.Without(l.Offsets, offsets)
	if l.Foreign == nil {
		l.Foreign = map[string][]int32{}
	}
	for topic, partitions := range offsets {
		l.Foreign[topic] = append(l.Foreign[topic], partitions...)
	}
}

// closeAll begins an empty transaction with all partitions and offsets that hang, and ends it as the last
// transaction ended: with a commit or an abort.
func (s *Closer) closeAll(ctx context.Context, client *kgo.Client, last *Last, at *state, hanging []Open, pending bool) (err error) {
	commit := at.committed()
	if log := s.Log.With("transactional_id", last.ID, "state", at.Name, "commit", commit); len(hanging) > 0 {
		log.Warn("a transaction hangs: its coordinator has completed it, and its marker is missing; closing it as the coordinator recorded", "open", Describe(hanging), "pending_offsets", pending)
	} else {
		log.Warn("offsets of the group stay pending: closing those of this transactional id, if there are any, as the coordinator recorded")
	}
	if !at.closesCommitted() {
		if at, err = fence(ctx, client, last.ID, at, commit); err != nil {
			return fmt.Errorf("raise the epoch of transactional id %s: %w", last.ID, err)
		}
	}
	if len(hanging) > 0 {
		if err := addPartitions(ctx, client, last.ID, at, hanging); err != nil {
			return fmt.Errorf("add partitions to an empty transaction of %s: %w", last.ID, err)
		}
	}
	if pending {
		if err := addOffsets(ctx, client, last, at); err != nil {
			return fmt.Errorf("add the offsets of group %s to an empty transaction of %s: %w", last.Group, last.ID, err)
		}
	}
	return endWith(ctx, client, last.ID, at, commit)
}

// oldVersions returns versions of requests by which a client may add partitions without writing to
// them, and may end a transaction without getting a new epoch for the next one.
func oldVersions() *kversion.Versions {
	versions := kversion.Stable()
	versions.SetMaxKeyVersion(kmsg.AddPartitionsToTxn.Int16(), 3)
	versions.SetMaxKeyVersion(kmsg.AddOffsetsToTxn.Int16(), 3)
	versions.SetMaxKeyVersion(kmsg.EndTxn.Int16(), 4)
	return versions
}

// errNewProducer reports that the coordinator has given the transactional id another producer id.
var errNewProducer = errors.New("its producer id has no epoch left, and the next one cannot close what the last one left open")

// fence raises the epoch of a producer, and encodes in its transaction timeout how its last transaction
// ended.
func fence(ctx context.Context, client *kgo.Client, id string, at *state, commit bool) (*state, error) {
	timeouts := []int32{at.Timeout}
	if commit {
		timeouts = []int32{int32(repairTimeout.Milliseconds()), at.Timeout - 1} // the second value is for a broker that allows less
	}
	for n, timeout := range timeouts {
		req := kmsg.NewPtrInitProducerIDRequest()
		req.TransactionalID, req.TransactionTimeoutMillis, req.ProducerID, req.ProducerEpoch = &id, timeout, at.Producer, at.Epoch
		resp, err := req.RequestWith(ctx, client)
		if err == nil {
			err = kerr.ErrorForCode(resp.ErrorCode)
		}
		switch {
		case errors.Is(err, kerr.InvalidTransactionTimeout) && n < len(timeouts)-1:
			continue
		case err != nil:
			return nil, err
		case resp.ProducerID != at.Producer:
			return nil, errNewProducer
		}
		return &state{stateEmpty, resp.ProducerID, resp.ProducerEpoch, timeout}, nil
	}
	return nil, kerr.InvalidTransactionTimeout
}

// addPartitions adds the partitions of hanging transactions to the empty transaction.
func addPartitions(ctx context.Context, client *kgo.Client, id string, at *state, hanging []Open) error {
	req := kmsg.NewPtrAddPartitionsToTxnRequest()
	req.TransactionalID, req.ProducerID, req.ProducerEpoch = id, at.Producer, at.Epoch
	for topic, partitions := range topicsOf(hanging) {
		t := kmsg.NewAddPartitionsToTxnRequestTopic()
		t.Topic, t.Partitions = topic, partitions
		req.Topics = append(req.Topics, t)
	}
	resp, err := req.RequestWith(ctx, client)
	if err != nil {
		return err
	}
	for _, t := range resp.Topics {
		for _, p := range t.Partitions {
			if err := kerr.ErrorForCode(p.ErrorCode); err != nil {
				return kafka.Denied(err, "Write", kafka.ResourceTopic, t.Topic)
			}
		}
	}
	return nil
}

func topicsOf(hanging []Open) map[string][]int32 {
	topics := map[string][]int32{}
	for _, o := range hanging {
		topics[o.Topic] = append(topics[o.Topic], o.Number)
	}
	return topics
}

// addOffsets adds the offsets of the group to the empty transaction.
func addOffsets(ctx context.Context, client *kgo.Client, last *Last, at *state) error {
	req := kmsg.NewPtrAddOffsetsToTxnRequest()
	req.TransactionalID, req.ProducerID, req.ProducerEpoch, req.Group = last.ID, at.Producer, at.Epoch, last.Group
	resp, err := req.RequestWith(ctx, client)
	if err != nil {
		return err
	}
	return kerr.ErrorForCode(resp.ErrorCode)
}

// endWith ends the empty transaction with a commit or an abort.
func endWith(ctx context.Context, client *kgo.Client, id string, at *state, commit bool) error {
	req := kmsg.NewPtrEndTxnRequest()
	req.TransactionalID, req.ProducerID, req.ProducerEpoch, req.Commit = id, at.Producer, at.Epoch, commit
	resp, err := req.RequestWith(ctx, client)
	if err == nil {
		err = kerr.ErrorForCode(resp.ErrorCode)
	}
	if err != nil {
		return fmt.Errorf("end an empty transaction of %s: %w", id, err)
	}
	return nil
}
