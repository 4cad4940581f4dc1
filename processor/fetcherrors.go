package processor

import (
	"context"
	"errors"
	"fmt"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"oncebus/processor/app"
	"oncebus/processor/kafka"
	"oncebus/processor/wire"
)

// fetchErr returns the first error of a poll without records.
func (x *transactions) fetchErr(fetches kgo.Fetches) error {
	var failed error
	fetches.EachPartition(func(p kgo.FetchTopicPartition) {
		if failed == nil && p.Err != nil {
			failed = x.partitionErr(&p)
		}
	})
	return failed
}

// lossIn returns what a poll says about a partition that has lost records; nil if none has. The client
// puts that behind the records of the same poll, and these may be from where it has gone back to:
// a worker that aborts because of them would not learn why they came, as the client says it once.
func lossIn(fetches kgo.Fetches) (lost *kgo.FetchTopicPartition) {
	fetches.EachPartition(func(p kgo.FetchTopicPartition) {
		if lost == nil && isLoss(p.Err) {
			lost = &p
		}
	})
	return lost
}

func isLoss(err error) bool {
	_, replaced := errors.AsType[*kgo.ErrDataLoss](err)
	return replaced || errors.Is(err, kerr.OffsetOutOfRange)
}

// stopLost stops a polled partition that has lost records: unread ones, or some that
// were processed. An operator decides how it goes on (invariant 8). The transaction must
// abort: the client may have gone on behind the gap.
func (x *transactions) stopLost(p *kgo.FetchTopicPartition) error {
	id := app.TaskID{Topic: p.Topic, Partition: p.Partition}
	if x.tasks != nil {
		x.tasks.inputLost(x.client, id)
	} else {
		x.stopInput(id)
		ctx, cancel := context.WithTimeout(context.Background(), x.cfg.TransactionTimeout)
		defer cancel()
		divergence := int64(-1)
		var lost *kgo.ErrDataLoss
		if errors.As(p.Err, &lost) {
			divergence = lost.ResetTo
		}
		if err := x.starts.lose(ctx, id, divergence, x.marks); err != nil {
			return kafka.AsCommitUnknown(fmt.Errorf("examine %v, which lost records: %w", id, err)) // a new client examines it
		}
	}
	return fmt.Errorf("%w: %v lost records: %w", kafka.ErrMustAbort, id, p.Err)
}

// stopInput stops a partition of the routing stage until an operator decides how it goes on.
func (x *transactions) stopInput(id app.TaskID) {
	stopped := map[string][]int32{id.Topic: {id.Partition}}
	x.client.PauseFetchPartitions(stopped)
	x.pacer.drop(stopped) // or it would resume it
	x.order.drop(stopped)
	x.schemas.drop(stopped)
}

// stopUnreadable stops an input partition, the repartition topic of an earlier generation, at a
// record that cannot be read. The transaction must abort: it commits all that was polled.
func (x *transactions) stopUnreadable(id app.TaskID, unreadable *wire.UnreadableError) error {
	x.stopInput(id)
	ctx, cancel := context.WithTimeout(context.Background(), x.cfg.TransactionTimeout)
	defer cancel()
	if err := x.starts.refuseRecord(ctx, id, unreadable, x.marks); err != nil {
		return kafka.AsCommitUnknown(fmt.Errorf("examine %v, which has an unreadable record: %w", id, err)) // a new client meets it again
	}
	return fmt.Errorf("%w: %w", kafka.ErrMustAbort, unreadable)
}

// fencedErr returns the error of a poll after another process joined the group under the
// name of this worker. The worker checks it first: the client would join again at once
// and fence the other process.
func fencedErr(fetches kgo.Fetches) error {
	var fenced error
	fetches.EachError(func(_ string, _ int32, err error) {
		if errors.Is(err, kerr.FencedInstanceID) {
			fenced = err
		}
	})
	return fenced
}

// partitionErr classifies the error of a polled partition. The end of the poll's context
// is no error, nor is a batch that waits for memory: the client fetches it again.
func (x *transactions) partitionErr(p *kgo.FetchTopicPartition) error {
	switch {
	case errors.Is(p.Err, context.Canceled), errors.Is(p.Err, context.DeadlineExceeded), errors.Is(p.Err, kafka.ErrBudgetExhausted):
		return nil
	case errors.Is(p.Err, kerr.UnknownTopicID):
		return fmt.Errorf("%w: %s was deleted and recreated while it was read: %w", kafka.ErrTruncated, p.Topic, p.Err)
	case isLoss(p.Err):
		return x.stopLost(p)
	}
	if p.Topic == "" { // the client reports errors of the group so
		group := app.GroupName(x.cfg.AppID, x.member.stage)
		return fmt.Errorf("join group %s: %w", group, kafka.Denied(p.Err, "Read", kafka.ResourceGroup, group))
	}
	return fmt.Errorf("fetch %s/%d: %w", p.Topic, p.Partition, kafka.Denied(p.Err, "Read", kafka.ResourceTopic, p.Topic))
}

// inputLost restores a task whose input has lost records. The restore compares the input
// with the checkpoint, and waits for a decision. A task in the open transaction restores
// when the transaction has been aborted.
func (s *taskSet) inputLost(client *kgo.Client, id app.TaskID) {
	if t := s.tasks[id]; t != nil && t.state == running && !t.InTransaction {
		s.restoreAgain(client, t)
		s.publish()
	}
}
