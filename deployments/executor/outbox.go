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
	eventsMax    = 500                   // of one transaction
	failuresMax  = 5                     // transactions in a row whose outcomes the broker did not accept
	failurePause = 50 * time.Millisecond // after the first failure; it doubles with each
	// outcomeKeyMax is the longest record key of an outcome without its result.
	outcomeKeyMax = 1 << 10
)

// reasonHeader says why an outcome has no result. It is recorded like a header of the
// result, so every sender gets it.
const reasonHeader = "executor-reason"

// errRefused says that the outcomes topic refuses an outcome for good.
var errRefused = errors.New("outcome refused")

// exitSettings is the exit code for settings, of the process or of a topic, with which every
// start fails.
const exitSettings = 2

// exitCode returns the exit code for an error. After 2 a restart fails again.
func exitCode(err error) int {
	if errors.Is(err, errRefused) {
		return exitSettings
	}
	return 1
}

// eventID identifies an event. Offsets begin again when a topic is recreated, so the claim
// token belongs to it.
type eventID struct {
	partition int32
	offset    int64
	token     string
}

func idOf(event *kgo.Record) eventID {
	return eventID{event.Partition, event.Offset, string(headerOf(event, "oncebus-claim-token"))}
}

// outcome is the outcome of an executed event.
type outcome struct {
	record *kgo.Record // nil for an event without a claim
	bare   bool        // its result was omitted
}

// outbox executes events and sends their outcomes, each batch in one transaction with the
// offsets of its events.
type outbox struct {
	*settings
	session *kgo.GroupTransactSession
	work    func(context.Context, *kgo.Record) ([]byte, error)

	mu sync.Mutex // the group's goroutine drops outcomes
	// executed has the outcomes of events whose transaction did not commit. They are sent
	// again, without the work.
	executed map[eventID]*outcome

	// single is how many events get a transaction each. The error of a batch may be
	// that of any of its records, so a refused batch is repeated event by event.
	single   int
	failures int // transactions in a row whose outcomes the broker did not accept
}

// pollMax returns how many events the next transaction may have.
func (o *outbox) pollMax() int {
	if o.single > 0 {
		return 1
	}
	return eventsMax
}

// process executes events and sends their outcomes in one transaction. Without a commit
// the session reads the same events again. After a stop these are the events that it has
// executed: another process gets the others.
func (o *outbox) process(ctx context.Context, events []*kgo.Record) error {
	if err := o.session.Begin(); err != nil {
		return err
	}
	var failed kgo.FirstErrPromise
	left := map[int32]int64{} // the first offset that a stop leaves, by partition
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

// leave takes events that were not executed out of a commit.
func leave(r *kmsg.TxnOffsetCommitRequest, left map[int32]int64) {
	for _, topic := range r.Topics {
		for i := range topic.Partitions {
			if offset, ok := left[topic.Partitions[i].Partition]; ok {
				topic.Partitions[i].Offset = offset
			}
		}
	}
}

// execute returns the outcome of an event, nil for none. It executes the event only if no
// transaction had its outcome.
func (o *outbox) execute(ctx context.Context, event *kgo.Record) *kgo.Record {
	kept := o.kept(event)
	if kept == nil {
		kept = &outcome{record: o.outcomeOf(ctx, event, o.work)}
		o.keep(event, kept)
	}
	if kept.record == nil {
		return nil
	}
	again := *kept.record // the client sets its partition, offset and timestamp
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

// drop removes the outcomes of committed events.
func (o *outbox) drop(events []*kgo.Record) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, event := range events {
		delete(o.executed, idOf(event))
	}
}

// dropLost removes the outcomes of partitions that another process gets.
func (o *outbox) dropLost(_ context.Context, _ *kgo.Client, lost map[string][]int32) {
	o.mu.Lock()
	defer o.mu.Unlock()
	maps.DeleteFunc(o.executed, func(id eventID, _ *outcome) bool { return slices.Contains(lost[o.input], id.partition) })
}

// omitResult removes the result that the outcomes topic refused from the outcome of an
// event. The next transaction sends the outcome without it.
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

// retry counts a transaction whose outcomes the broker did not accept. It returns the error
// with which the process ends after failuresMax of them.
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

// refusesRecord reports whether a topic refuses a record for good: with its settings it
// will never accept it.
func refusesRecord(err error) bool {
	return errors.Is(err, kerr.MessageTooLarge) || errors.Is(err, kerr.RecordListTooLarge) ||
		errors.Is(err, kerr.InvalidRecord) || errors.Is(err, kerr.InvalidTimestamp)
}
