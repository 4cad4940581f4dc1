package processor

import (
	"context"
	"fmt"

	"github.com/twmb/franz-go/pkg/kgo"

	"oncebus/processor/kafka"
)

// newestMax is how many offsets a partition may have after its newest record: those of
// control records and of aborted transactions.
const newestMax = 64

// observeClock asks a broker for its time.
func (s *shared) observeClock() error {
	if err := s.rt.ObserveClock(context.Background(), s.source.Client, s.cfg.InstanceID); err != nil {
		return fmt.Errorf("observe broker time: %w", err)
	}
	return nil
}

// compareClock compares the estimate of broker time with a fetch, before the task judges
// it. After a step of the broker time the task's leases begin again, as at its start: those
// that began before the step would otherwise end too early, or a day too late. A
// transaction has one start of the task, so an open one is aborted.
func (s *taskSet) compareClock(t *task, fetched *kgo.FetchTopicPartition) error {
	if n := len(fetched.Records); n > 0 && (t.Repartitioned || fetched.Records[n-1].Attrs.TimestampType() == kafka.TimestampAppend) {
		last := fetched.Records[n-1]
		if s.clock.Received(last.Timestamp.UnixMilli(), fetched.HighWatermark-last.Offset <= newestMax) {
			if err := s.observeClock(); err != nil {
				return fmt.Errorf("%w: %w", kafka.ErrMustAbort, err)
			}
		}
	}
	steps := s.clock.Steps()
	switch {
	case steps == t.clockSteps:
	case t.InTransaction:
		return fmt.Errorf("%w: broker time changed by a step", kafka.ErrMustAbort)
	default:
		t.StartedAt, t.clockSteps = s.clock.Now(), steps
	}
	return nil
}
