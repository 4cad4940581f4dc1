package judge

import (
	"fmt"
	"slices"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"oncebus/dedup"
	"oncebus/dedup/rules"
	"oncebus/processor/app"
)

// applyKeyPolicy applies the route's policy to an event without a key.
func (e *Emitter) applyKeyPolicy(ev *event, derived *rules.Derived) {
	ev.reason = derived.Reason
	policy := rules.DeadLetter
	ev.verdict = dedup.Invalid
	if derived.Finding == rules.KeyMissing {
		ev.verdict, policy = dedup.MissingKey, ev.route.OnMissingKey
	}
	e.byPolicy(ev, policy)
}

// byPolicy forwards, drops or dead-letters an event that was not judged.
func (e *Emitter) byPolicy(ev *event, policy rules.Policy) {
	switch policy {
	case rules.Forward:
		e.emit(ev, ev.route.Output)
	case rules.Drop:
	case rules.DeadLetter, rules.ToTopic, rules.Clamp:
		e.deadLetter(ev)
	}
	e.conclude(ev)
}

func (e *Emitter) applyLatePolicy(ev *event, eventTime, streamTime int64) {
	ev.verdict = dedup.Late
	ev.reason = fmt.Sprintf("event time %d cannot be judged: stream time is %d, window %v, grace %v", eventTime, streamTime, ev.route.Window, ev.route.Grace)
	e.byPolicy(ev, ev.route.OnLate)
}

func (e *Emitter) applyDuplicatePolicy(ev *event, eventTime int64) {
	e.conclude(ev)
	var topic string
	switch ev.route.Duplicates.Policy {
	case rules.Forward:
		topic = ev.route.Output
	case rules.ToTopic:
		topic = ev.route.Duplicates.Topic
	case rules.DeadLetter, rules.Drop, rules.Clamp:
		return
	}
	ev.reason = "duplicate " + (time.Duration(eventTime-ev.first.First) * time.Millisecond).String() + " after the first, window " + ev.route.Window.String()
	e.emit(ev, topic)
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
		reason: fmt.Sprintf("the batch of offsets %d to %d decompresses to more than %d bytes (ONCEBUS_MAX_DECOMPRESSED_BATCH_BYTES); its records were not read and stand in %s/%d",
			batch.Offset, batch.NextOffset-1, limit, batch.Topic, batch.Partition),
	}
	e.byPolicy(&ev, rules.DeadLetter)
}
