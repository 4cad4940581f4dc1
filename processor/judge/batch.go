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

// SkipBatch emits one dead letter for a batch that decompresses to more than limit bytes,
// and continues after it.
func (t *Judge) SkipBatch(e *Emitter, batch *kgo.ErrDecompressTooLarge, limit int) {
	t.JoinTransaction()
	if batch.NextOffset <= t.Open.Next {
		return // processed before
	}
	if !t.Open.IsDeadLettered(batch.Offset) {
		e.DeadLetterBatch(batch, t.App.Clock.Now(), limit)
	}
	if t.Blind {
		t.Open.DeadLetter(batch.Offset, batch.NextOffset)
	}
	t.passBatch(batch)
}

// DeadLetterBatch emits a dead letter for a batch that was not decompressed, to the
// dead-letter topic of the first route that reads the batch's topic.
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
		route: route, verdict: dedup.Invalid, brokerTime: brokerTime, last: batch.NextOffset - 1,
		reason: fmt.Sprintf(wire.ReasonBatch+"%d to %d decompresses to more than %d bytes (ONCEBUS_MAX_DECOMPRESSED_BATCH_BYTES), or its records take more memory than ONCEBUS_MAX_DECOMPRESSED_BYTES, or it is damaged so that no client can decompress it; they were not read and stand in %s/%d",
			batch.Offset, batch.NextOffset-1, limit, batch.Topic, batch.Partition),
	}
	e.byPolicy(&ev, rules.DeadLetter)
}
