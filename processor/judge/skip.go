package judge

import (
	"errors"

	"github.com/twmb/franz-go/pkg/kgo"

	"oncebus/processor/wire"
)

// skipDecided returns nil in place of the error about the record that an operator skips.
func (t *Judge) skipDecided(err error) error {
	if t.Skips == nil || !errors.Is(err, t.Skips) {
		return err
	}
	t.Metrics.Skipped.Inc()
	t.Log.Warn("record skipped, as an operator decided", "reason", err)
	return nil
}

// SkipForeign continues after a batch of the repartition topic that was not decompressed, if an
// operator skips it. Else it returns the error about it. No event is lost with it, because only
// oncebus may write there, so it makes no dead letter.
func (t *Judge) SkipForeign(batch *kgo.ErrDecompressTooLarge) error {
	t.JoinTransaction()
	if batch.NextOffset <= t.Open.Next {
		return nil // processed before
	}
	if err := t.skipDecided(wire.UnreadableBatch(batch.Topic, batch.Partition, batch.Offset, batch.NextOffset-1, batch)); err != nil {
		return err
	}
	t.passBatch(batch)
	return nil
}

// passBatch continues after a batch.
func (t *Judge) passBatch(batch *kgo.ErrDecompressTooLarge) {
	if t.Blind {
		t.BypassedUpTo(batch.NextOffset)
		return
	}
	t.Open.Next, t.Open.Epoch = batch.NextOffset, batch.Epoch
}
