package judge

import (
	"fmt"
	"slices"

	"github.com/twmb/franz-go/pkg/kgo"

	"oncebus/dedup"
	"oncebus/dedup/rules"
	"oncebus/processor/app"
	"oncebus/processor/wire"
)

// SkipBatch handles a batch that no client can read, or that decompresses to more than limit bytes. For a batch
// of an input topic it emits one dead letter, and the task continues after the batch. A batch of the repartition
// topic gets no dead letter: only oncebus may write there, so no event of a producer is lost with the batch. At
// such a batch the task waits, as the returned error says, until an operator decides to skip the batch. If asks
// is given, which describes the batch for an operator, the task waits at a batch of any topic.
func (t *Judge) SkipBatch(e *Emitter, batch *kgo.ErrDecompressTooLarge, limit int, asks *wire.UnreadableError) error {
	t.JoinTransaction()
	if batch.NextOffset <= t.Open.Next {
		return nil // an earlier transaction handled the batch
	}
	if asks == nil && t.Repartitioned {
		asks = wire.UnreadableBatch(batch.Topic, batch.Partition, batch.Offset, batch.NextOffset-1, batch)
	}
	if asks != nil {
		if err := t.skipDecided(asks); err != nil {
			return err
		}
	}
	if t.Repartitioned {
		t.passBatch(batch)
		return nil
	}
	if !t.Open.IsDeadLettered(batch.Offset) {
		e.DeadLetterBatch(batch, t.App.Clock.Now(), limit)
	}
	if t.Blind {
		t.Open.DeadLetter(batch.Offset, batch.NextOffset)
	}
	t.passBatch(batch)
	return nil
}

// passBatch sets the offset of the open checkpoint to the offset after a batch.
func (t *Judge) passBatch(batch *kgo.ErrDecompressTooLarge) {
	if t.Blind {
		t.BypassedUpTo(batch.NextOffset)
		return
	}
	t.Open.Next, t.Open.Epoch = batch.NextOffset, batch.Epoch
}

// DeadLetterBatch emits one dead letter for a batch that was not decompressed, to the dead-letter topic
// of the first route that reads the batch's topic.
func (e *Emitter) DeadLetterBatch(batch *kgo.ErrDecompressTooLarge, brokerTime int64, limit int) {
	i := slices.IndexFunc(e.rt.Routes, func(r *app.Route) bool {
		return slices.Contains(r.Topics, batch.Topic) || r.Mode == rules.ClaimMode && r.Claim.Outcomes == batch.Topic
	})
	route := e.rt.Routes[i]
	from := dedup.Position{Topic: e.rt.TopicNumbers[batch.Topic], Partition: batch.Partition, Offset: batch.Offset}
	ev := event{
		original: original{
			rec:  &kgo.Record{Topic: batch.Topic, Partition: batch.Partition, Offset: batch.Offset},
			from: from, timestamp: brokerTime,
		},
		route: route, verdict: dedup.Invalid, brokerTime: brokerTime, after: batch.NextOffset,
		reason: fmt.Sprintf(wire.ReasonBatch+"%d to %d decompresses to more than %d bytes (ONCEBUS_MAX_DECOMPRESSED_BATCH_BYTES), or its records take more memory than ONCEBUS_MAX_DECOMPRESSED_BYTES, or it is damaged so that no client can decompress it, or its checksum is wrong; they were not read and stand in %s/%d",
			batch.Offset, batch.NextOffset-1, limit, batch.Topic, batch.Partition),
	}
	e.byPolicy(&ev, rules.DeadLetter)
}
