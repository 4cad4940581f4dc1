package hanging

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"

	"oncebus/processor/kafka"
)

// ErrHangs is wrapped by the error about a transaction that is open although its coordinator has
// completed it.
var ErrHangs = errors.New("a transaction hangs")

// offsetsMax is how long the offsets of a transaction may stay pending after the coordinator has completed the
// transaction. Longer pending offsets need not be a fault: after a rebalance another member may have committed
// offsets of the same partitions meanwhile.
const offsetsMax = 2 * time.Second

// AwaitClosed returns nil once the last transaction of a producer id is closed in each of its partitions, and
// its offsets are the group's offsets. If waiting will not achieve that, it returns an error that wraps
// [ErrHangs]. Once ctx is done it returns another error. skip has the topics that the user has no right to read.
func (s *Closer) AwaitClosed(ctx context.Context, last *Last, producer int64, skip map[string]bool) error {
	wait := newWaiter(s.Waits)
	defer wait.over()
	var completed time.Time
	for {
		err := s.lookClosed(ctx, last, producer, skip, &completed)
		if err == nil || errors.Is(err, ErrHangs) || kafka.Classify(err) == kafka.Stop {
			return err
		}
		if wait.pause(ctx, err) != nil {
			return fmt.Errorf("the last transaction of %s is not known to be closed: %w", last.ID, errors.Join(ctx.Err(), err))
		}
	}
}

// lookClosed returns why the transaction is not known to be closed; nil if it is closed. When it first finds
// that the coordinator has completed the transaction, it sets completed to the present time.
func (s *Closer) lookClosed(ctx context.Context, last *Last, producer int64, skip map[string]bool, completed *time.Time) error {
	if completed.IsZero() {
		at, err := s.describe(ctx, last.ID)
		if err != nil {
			return err
		}
		switch p := phaseOf(at); {
		case p == open:
			return fmt.Errorf("%w: its coordinator has it open after its end", ErrHangs)
		case p == begun, p == ending:
			return waitError("the coordinator of transactional id " + last.ID + " ends its transaction (" + at.Name + ")")
		}
		*completed = time.Now()
	}
	sight := Look(ctx, s.Client, last.Partitions, skip)
	if open := sight.Of(producer); len(open) > 0 {
		return fmt.Errorf("%w: its coordinator has completed it, and %s", ErrHangs, Describe(open))
	}
	for topic := range sight.Denied {
		skip[topic] = true
	}
	if why := sight.Unknown(); why != "" {
		return waitError(why + ", so it is not known whether the last transaction of " + last.ID + " is closed there")
	}
	if len(last.Offsets) == 0 {
		return nil
	}
	stable, err := kafka.StableOffsets(ctx, s.Client, last.Group, last.Offsets)
	if errors.Is(err, kerr.GroupIDNotFound) {
		return nil
	} else if err != nil {
		return err
	}
	if last.Offsets = kafka.Unstable(last.Offsets, stable); len(last.Offsets) > 0 { // the transactions of stable offsets have ended
		left := last.Offsets
		why := fmt.Errorf("its offsets of %v are pending in group %s", left, last.Group)
		if time.Since(*completed) > offsetsMax {
			return fmt.Errorf("%w: its coordinator has completed it, and %w", ErrHangs, why)
		}
		return why
	}
	return nil
}
