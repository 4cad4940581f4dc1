package judge

import (
	"fmt"
	"slices"

	"github.com/twmb/franz-go/pkg/kgo"

	"oncebus/dedup"
	"oncebus/dedup/rules"
	"oncebus/processor/app"
)

// SkipBatch takes a batch that decompresses to more than limit bytes into the
// open transaction, as one dead letter.
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
		t.BypassedUpTo(batch.NextOffset)
		return
	}
	t.Open.Next, t.Open.Epoch = batch.NextOffset, batch.Epoch
}

// DeadLetterBatch emits what is known about a batch that was not decompressed. It
// goes the way of a record that no route takes: that of the topic's first
// route.
func (e *Emitter) DeadLetterBatch(batch *kgo.ErrDecompressTooLarge, present int64, limit int) {
	i := slices.IndexFunc(e.rt.Routes, func(r *app.Route) bool {
		return slices.Contains(r.Topics, batch.Topic) || r.Mode == rules.ClaimMode && r.Claim.Outcomes == batch.Topic
	})
	route := e.rt.Routes[i]
	from := dedup.Position{Topic: e.rt.TopicNumbers[batch.Topic], Partition: batch.Partition, Offset: batch.Offset}
	ev := event{
		original: original{
			rec:  &kgo.Record{Topic: batch.Topic, Partition: batch.Partition, Offset: batch.Offset},
			from: from, timestamp: present,
		},
		route: route, verdict: dedup.Invalid, brokerTime: present, last: batch.NextOffset - 1,
		reason: fmt.Sprintf("the batch of offsets %d to %d decompresses to more than %d bytes (ONCEBUS_MAX_DECOMPRESSED_BATCH_BYTES); its records were not read and stand in %s/%d",
			batch.Offset, batch.NextOffset-1, limit, batch.Topic, batch.Partition),
	}
	e.byPolicy(&ev, rules.DeadLetter)
}
