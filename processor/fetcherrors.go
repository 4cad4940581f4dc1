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

// fetchErr returns the first error in a poll without records.
func (x *transactions) fetchErr(fetches kgo.Fetches) error {
	var failed error
	fetches.EachPartition(func(p kgo.FetchTopicPartition) {
		if failed == nil && p.Err != nil {
			failed = x.partitionErr(&p)
		}
	})
	return failed
}

// lossIn returns the first partition of a poll that reports lost records; nil if no partition does. The worker
// calls it before it processes the records of the poll, for two reasons. The client puts the loss behind the
// records of the same poll, and those records may already come from the offset to which the client has reset
// itself. And the client reports the loss only once: if the worker processed such records first and had to abort
// because of them, it would never learn of the loss.
func lossIn(fetches kgo.Fetches) (lost *kgo.FetchTopicPartition) {
	fetches.EachPartition(func(p kgo.FetchTopicPartition) {
		if lost == nil && isLoss(p.Err) {
			lost = &p
		}
	})
	return lost
}

// isLoss reports whether a fetch error says that the partition lost records.
func isLoss(err error) bool {
	_, replaced := errors.AsType[*kgo.ErrDataLoss](err)
	return replaced || errors.Is(err, kerr.OffsetOutOfRange)
}

// stopLost stops a polled partition that has lost records, whether these had been processed or not. An operator
// decides where the partition is read on (invariant 8). The transaction must abort, because the client may have
// fetched records after the lost ones already.
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
			return kafka.AsCommitUnknown(fmt.Errorf("examine %v, which lost records: %w", id, err)) // a new client examines the partition
		}
	}
	return fmt.Errorf("%w: %v lost records: %w", kafka.ErrMustAbort, id, p.Err)
}

// stopInput stops a partition of the routing stage until an operator decides where it is read on.
func (x *transactions) stopInput(id app.TaskID) {
	stopped := map[string][]int32{id.Topic: {id.Partition}}
	x.client.PauseFetchPartitions(stopped)
	x.pacer.drop(stopped) // otherwise the pacer would resume the partition
	x.order.drop(stopped)
	x.schemas.drop(stopped)
}

// stopUnreadable stops an input partition at a record that cannot be read. Such an input is the repartition
// topic of an earlier generation. The transaction must abort, because otherwise it would commit the offsets of
// all polled records, and so of this one.
func (x *transactions) stopUnreadable(id app.TaskID, unreadable *wire.UnreadableError) error {
	x.stopInput(id)
	ctx, cancel := context.WithTimeout(context.Background(), x.cfg.TransactionTimeout)
	defer cancel()
	if err := x.starts.refuseRecord(ctx, id, unreadable, x.marks); err != nil {
		return kafka.AsCommitUnknown(fmt.Errorf("examine %v, which has an unreadable record: %w", id, err)) // a new client meets the record again
	}
	return fmt.Errorf("%w: %w", kafka.ErrMustAbort, unreadable)
}

// fencedErr returns the error of a poll which says that another process has joined the group with this worker's
// group.instance.id; nil for none. The worker checks it before anything else: otherwise the client would join
// again at once, and fence the other process.
func fencedErr(fetches kgo.Fetches) error {
	var fenced error
	fetches.EachError(func(_ string, _ int32, err error) {
		if errors.Is(err, kerr.FencedInstanceID) {
			fenced = err
		}
	})
	return fenced
}

// partitionErr returns an error of a polled partition, classified by the action that it requires. It returns nil
// if the poll's context has ended. It also returns nil if the client lacks memory to decompress a batch, because
// the client fetches that batch again.
func (x *transactions) partitionErr(p *kgo.FetchTopicPartition) error {
	switch {
	case errors.Is(p.Err, context.Canceled), errors.Is(p.Err, context.DeadlineExceeded), errors.Is(p.Err, kafka.ErrBudgetExhausted):
		return nil
	case errors.Is(p.Err, kerr.UnknownTopicID):
		return fmt.Errorf("%w: %s was deleted and recreated while it was read: %w", kafka.ErrTruncated, p.Topic, p.Err)
	case isLoss(p.Err):
		return x.stopLost(p)
	}
	if p.Topic == "" { // this is how the client reports errors of the group
		group := app.GroupName(x.cfg.AppID, x.member.stage)
		return fmt.Errorf("join group %s: %w", group, kafka.Denied(p.Err, "Read", kafka.ResourceGroup, group))
	}
	return fmt.Errorf("fetch %s/%d: %w", p.Topic, p.Partition, kafka.Denied(p.Err, "Read", kafka.ResourceTopic, p.Topic))
}

// inputLost restores a task whose input has lost records. The restore compares the input with the checkpoint,
// finds the loss, and waits for an operator's decision. A task in the open transaction restores anyway, because
// the transaction is aborted.
func (s *taskSet) inputLost(client *kgo.Client, id app.TaskID) {
	if t := s.tasks[id]; t != nil && t.state == running && !t.InTransaction {
		s.restoreAgain(client, t)
		s.publish()
	}
}
