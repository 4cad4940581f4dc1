package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

const (
	eventsMax    = 500                   // maximal number of events in one transaction
	failuresMax  = 5                     // how many transactions in a row may fail because the broker does not accept their outcomes
	failurePause = 50 * time.Millisecond // the pause after the first failure; it doubles with each further failure
	// outcomeKeyMax is the longest record key that an outcome without its result may have, in bytes.
	outcomeKeyMax = 1 << 10
)

// reasonHeader says why an outcome has no result. oncebus records it like a header of the result, so every sender
// gets it.
const reasonHeader = "executor-reason"

// errRefused says that the outcomes topic refuses an outcome for good.
var errRefused = errors.New("outcome refused")

// exitSettings is the exit code if the settings of the process or of a topic are wrong, so that every start would
// fail.
const exitSettings = 2

// exitCode returns the exit code for an error. After exit code 2 a restart would fail again.
func exitCode(err error) int {
	if errors.Is(err, errRefused) {
		return exitSettings
	}
	return 1
}

// eventID identifies an event. The claim token is part of it, because a topic that was recreated uses the same
// offsets again.
type eventID struct {
	partition int32
	offset    int64
	token     string
}

func idOf(event *kgo.Record) eventID {
	return eventID{event.Partition, event.Offset, string(headerOf(event, "oncebus-claim-token"))}
}

// outcome is the outcome of an event that was executed.
type outcome struct {
	record *kgo.Record // nil for an event without a claim
	bare   bool        // the result was left out because the topic refused it
}

// outbox executes events and sends their outcomes. The outcomes of a batch and the offsets of its events are in one
// transaction.
type outbox struct {
	*settings
	session *kgo.GroupTransactSession
	work    func(context.Context, *kgo.Record) ([]byte, error)

	mu sync.Mutex // needed because the group's goroutine drops outcomes
	// executed has the outcomes of events whose transaction has not committed. The outbox sends these outcomes again
	// without repeating the work.
	executed map[eventID]*outcome

	// single is how many of the next events get a transaction each. If the broker refuses a batch, any of its records
	// can be the cause, so the outbox repeats the batch event by event.
	single   int
	failures int // transactions in a row whose outcomes the broker did not accept
}

// pollMax returns the maximal number of events in the next transaction.
func (o *outbox) pollMax() int {
	if o.single > 0 {
		return 1
	}
	return eventsMax
}

// process executes events and sends their outcomes in one transaction. If the transaction does not commit, the
// session reads the same events again. If the process is stopped meanwhile, the transaction has only the events that
// it has executed; another process gets the others.
func (o *outbox) process(ctx context.Context, events []*kgo.Record) error {
	if err := o.session.Begin(); err != nil {
		return err
	}
	var failed kgo.FirstErrPromise
	left := map[int32]int64{} // by partition, the first offset that the stop left unexecuted
	running := context.WithoutCancel(ctx)
	for _, event := range events {
		if _, behind := left[event.Partition]; ctx.Err() != nil && !behind {
			left[event.Partition] = event.Offset
		}
		if ctx.Err() != nil {
			continue
		}
		if record := o.execute(running, event); record != nil {
			o.session.Produce(running, record, failed.Promise())
		}
	}
	cause := failed.Err()
	committed, err := o.session.End(kgo.PreTxnCommitFnContext(running, func(r *kmsg.TxnOffsetCommitRequest) error {
		leave(r, left)
		return nil
	}), kgo.TransactionEndTry(cause == nil))
	switch {
	case err != nil:
		return err
	case committed:
		o.failures, o.single = 0, max(0, o.single-len(events))
		o.drop(events)
		return nil
	case cause == nil, ctx.Err() != nil:
		return nil //nolint:nilerr // the group rebalanced, or the process ends
	case refusesRecord(cause) && len(events) > 1:
		o.single = len(events)
		return nil
	case refusesRecord(cause):
		return o.omitResult(events[0], cause)
	}
	return o.retry(ctx, events[0], cause)
}

// leave changes an offset commit so that it does not cover events that were not executed.
func leave(r *kmsg.TxnOffsetCommitRequest, left map[int32]int64) {
	for _, topic := range r.Topics {
		for i := range topic.Partitions {
			if offset, ok := left[topic.Partitions[i].Partition]; ok {
				topic.Partitions[i].Offset = offset
			}
		}
	}
}

// execute returns the outcome of an event; nil if there is none to send. It does the work only if executed has no
// outcome for the event.
func (o *outbox) execute(ctx context.Context, event *kgo.Record) *kgo.Record {
	kept := o.kept(event)
	if kept == nil {
		kept = &outcome{record: o.outcomeOf(ctx, event, o.work)}
		o.keep(event, kept)
	}
	if kept.record == nil {
		return nil
	}
	again := *kept.record // a copy, because the client sets the partition, offset and timestamp of a record
	return &again
}

func (o *outbox) kept(event *kgo.Record) *outcome {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.executed[idOf(event)]
}

func (o *outbox) keep(event *kgo.Record, kept *outcome) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.executed[idOf(event)] = kept
}

// drop forgets the outcomes of events whose transaction has committed.
func (o *outbox) drop(events []*kgo.Record) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, event := range events {
		delete(o.executed, idOf(event))
	}
}

// dropLost forgets the outcomes of partitions that another process gets.
func (o *outbox) dropLost(_ context.Context, _ *kgo.Client, lost map[string][]int32) {
	o.mu.Lock()
	defer o.mu.Unlock()
	maps.DeleteFunc(o.executed, func(id eventID, _ *outcome) bool { return slices.Contains(lost[o.input], id.partition) })
}

// omitResult removes from an event's outcome the result that the outcomes topic refused. The next transaction sends
// the outcome without it.
func (o *outbox) omitResult(event *kgo.Record, cause error) error {
	kept := o.kept(event)
	if kept == nil {
		return nil // the partition went to another process
	}
	if kept.bare {
		return fmt.Errorf("%w: event %s/%d/%d: topic %s refuses its outcome, also without the result: %w; change the settings of that topic and start again: the event is executed again",
			errRefused, event.Topic, event.Partition, event.Offset, o.outcomes, cause)
	}
	reason := fmt.Sprintf("the result of %d bytes was not sent: topic %s refuses it: %v", len(kept.record.Value), o.outcomes, cause)
	slog.Warn("outcome sent without its result", "topic", event.Topic, "partition", event.Partition, "offset", event.Offset, "reason", reason)
	bare := &kgo.Record{Topic: kept.record.Topic, Headers: append(kept.record.Headers, kgo.RecordHeader{Key: reasonHeader, Value: []byte(reason)})}
	if len(kept.record.Key) <= outcomeKeyMax {
		bare.Key = kept.record.Key
	}
	o.keep(event, &outcome{record: bare, bare: true})
	return nil
}

// retry counts a transaction whose outcomes the broker did not accept, and pauses. After failuresMax such
// transactions in a row it returns the error with which the process ends.
func (o *outbox) retry(ctx context.Context, first *kgo.Record, cause error) error {
	if o.failures++; o.failures == failuresMax {
		return fmt.Errorf("send the outcomes from event %s/%d/%d on to topic %s, %d times: %w; the events are executed again by the next start",
			first.Topic, first.Partition, first.Offset, o.outcomes, failuresMax, cause)
	}
	slog.Warn("outcomes not sent, retrying", "topic", o.outcomes, "attempt", o.failures, "error", cause)
	pause := time.NewTimer(failurePause << o.failures)
	defer pause.Stop()
	select {
	case <-pause.C:
	case <-ctx.Done():
	}
	return nil
}

// refusesRecord reports whether the topic will refuse a record again and again as long as its settings do not change.
func refusesRecord(err error) bool {
	return errors.Is(err, kerr.MessageTooLarge) || errors.Is(err, kerr.RecordListTooLarge) ||
		errors.Is(err, kerr.InvalidRecord) || errors.Is(err, kerr.InvalidTimestamp)
}
