package judge

import (
	"slices"

	"github.com/twmb/franz-go/pkg/kgo"

	"oncebus/dedup"
	"oncebus/dedup/rules"
	"oncebus/processor/app"
	"oncebus/processor/wire"
)

// Router is the first stage: it derives dedup keys and produces every record to the partition of its key. It has
// no state. Its records and offsets must still be committed in one transaction (hazard G8), because not every
// repeated record is recognised as a duplicate: a repeated record without a key would be a repeated event, and a
// repeated old record would begin an expired window again.
type Router struct {
	App  *app.App
	Keys *Keys
	// Fronts has the highest event time of each namespace among the records of the last Process.
	Fronts []wire.Front
	// Skips has, by partition, the unreadable record of an earlier generation's repartition topic that
	// an operator decided to skip.
	Skips map[app.TaskID]*wire.UnreadableError
	now   int64 // broker time, ms, read once for all records of a Process
}

// Process routes the records of one partition into the open transaction. It returns a
// PendingSchemaError, or an error about a record of an earlier generation's repartition topic.
func (r *Router) Process(e *Emitter, records []*kgo.Record) error {
	r.Fronts, r.now = r.Fronts[:0], r.App.Clock.Now()
	if len(records) == 0 {
		return nil
	}
	if slices.Contains(r.App.Topology.Forwarded, records[0].Topic) {
		return r.forward(e, records)
	}
	topic := r.App.TopicNumbers[records[0].Topic]
	if r.App.Outcomes[records[0].Topic] != nil {
		for _, rec := range records {
			r.outcome(e, rec)
		}
		return nil
	}
	for rec, derived := range r.Keys.Of(records) {
		if derived.Finding == rules.SchemaPending {
			return pendingOf(rec, derived)
		}
		r.route(e, rec, derived, dedup.Position{Topic: topic, Partition: rec.Partition, Offset: rec.Offset})
	}
	return nil
}

// route sends one record with its envelope to the repartition topic. It applies the route's policy to a record
// without a key; a record that the topic would reject becomes a dead letter.
func (r *Router) route(e *Emitter, rec *kgo.Record, derived *rules.Derived, from dedup.Position) {
	route := r.App.Routes[derived.Route.Index]
	if derived.Finding != rules.Keyed {
		ev := event{
			original: originalOf(rec, from),
			route:    route, brokerTime: r.App.Clock.Now(), replyTo: route.ReplyAddress(rec), Details: wire.DetailsOf(derived),
		}
		e.applyKeyPolicy(&ev, derived)
		return
	}
	env := &e.current.envelope
	*env = wire.Envelope{
		Route: route.WireName, Digest: derived.Digest, Hashed: derived.Hashed, Key: derived.Key, RecordKey: rec.Key,
		EventTime: derived.Time, Timestamp: rec.Timestamp.UnixMilli(), From: from, Details: wire.DetailsOf(derived),
		ReplyTo: route.ReplyAddress(rec),
	}
	if route.Sender.Travels() {
		env.Sender = e.producerID(route, rec)
	}
	env.Tenant = e.tenantOf(derived)
	r.reach(route, derived.Time)
	if misfit := r.send(e, rec, env, r.App.Hasher.Partition(&derived.Routing)); misfit != "" {
		ev := event{
			original: originalOf(rec, from),
			route:    route, key: &derived.Key, digest: derived.Digest, Details: env.Details,
			verdict: dedup.Invalid, brokerTime: r.App.Clock.Now(), reason: misfit, replyTo: env.ReplyTo,
		}
		e.byPolicy(&ev, rules.DeadLetter)
	}
}

// reach raises the namespace's highest event time in Fronts to the time of an event, unless the event is from
// the future.
func (r *Router) reach(route *app.Route, at int64) {
	if at > r.now+route.Span.Skew {
		return
	}
	for i := range r.Fronts {
		if f := &r.Fronts[i]; f.NamespaceID == route.NamespaceID {
			f.At = max(f.At, at)
			return
		}
	}
	r.Fronts = append(r.Fronts, wire.Front{NamespaceID: route.NamespaceID, At: at})
}

// send produces a record with its envelope to a partition of the repartition topic. If the topic would
// reject the record, or has rejected it, send returns the reason instead.
func (r *Router) send(e *Emitter, rec *kgo.Record, env *wire.Envelope, partition int32) (misfit string) {
	e.Awaited = e.Awaited || env.ReplyTo.IsSet()
	out := e.NewRecord()
	out.Topic, out.Value = r.App.Topology.Repartition, rec.Value
	out.Partition = partition
	out.Key = env.Append(e.bytes.take(env.Size())[:0])
	// The task trusts oncebus headers, so headers with such names that the producer wrote are dropped. The
	// attempt of a redrive stays: it is only used to end loops, and a dead letter needs it.
	headers := e.headers.take(len(rec.Headers))[:0]
	for i := range rec.Headers {
		if wire.IsReserved(rec.Headers[i].Key) {
			if _, ok := wire.RedriveAttempt(&rec.Headers[i]); !ok {
				continue
			}
		}
		headers = append(headers, rec.Headers[i])
	}
	out.Headers = headers
	if !e.fits(out) {
		return e.tooLarge(out.Topic, wire.RecordBytes(out))
	}
	if reason, _ := e.refused(env.From, out.Topic); reason != "" {
		return reason
	}
	e.produce(out, env.From)
	return ""
}

// outcome sends an outcome to the partition that its claim token names, where the claim is. An outcome
// without a claim goes to the request that waits for it. An unreadable outcome becomes a dead letter
// and counts as refused.
func (r *Router) outcome(e *Emitter, rec *kgo.Record) {
	route, reason, unclaimed := r.answerUnclaimed(e, rec)
	var read wire.OutcomeEnvelope
	if !unclaimed {
		route, read, reason = r.App.ReadOutcome(rec)
	}
	if reason == "" && !unclaimed {
		env := wire.Envelope{Route: route.NameBytes, Timestamp: rec.Timestamp.UnixMilli(), From: r.App.PositionOf(rec), Outcome: &read, RecordKey: rec.Key}
		e.Awaited = e.Awaited || route.HTTP != nil && route.AwaitsOutcomes()
		if read.Kind.Asks() {
			env.ReplyTo = r.App.QuestionAddress(rec)
		}
		reason = r.send(e, rec, &env, r.App.OutcomePartition(route, &read.Token))
	}
	if reason == "" {
		return
	}
	e.count(route, unreadableOutcomes)
	e.deadLetter(&event{
		original: originalOf(rec, r.App.PositionOf(rec)),
		route:    route, verdict: dedup.Invalid, brokerTime: r.App.Clock.Now(), reason: wire.ReasonOutcome + reason, outcomeHeaders: wire.OutcomeHeaders(rec),
	})
}
