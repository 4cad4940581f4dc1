package judge

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"oncebus/dedup"
	"oncebus/dedup/rules"
	"oncebus/processor/kafka"
	"oncebus/processor/wire"
)

// sampleEvery is how many records share one timing of key derivation or
// check: reading the clock twice costs as much as the decision itself.
const sampleEvery = 64

// Judge judges the records of one partition, one at a time, strictly in offset
// order. It has no client and no goroutine.
type Judge struct {
	State

	Repartitioned bool // the partition is one of the repartition topic
	Metrics       *Metrics
	Log           *slog.Logger
	samples       uint
}

// Judging is what a task needs of its worker to judge records.
type Judging struct {
	*Emitter
	Deriver *rules.Deriver
	now     int64 // broker-observed present, once for the records of a poll, ms
}

// Process judges records into the open transaction. Records below the
// checkpoint were judged before: they are skipped (invariant 6).
func (t *Judge) Process(j *Judging, records []*kgo.Record) error {
	j.now = t.App.Clock.Now()
	for _, rec := range records {
		t.JoinTransaction()
		if rec.Offset < t.Open.Next {
			t.Metrics.Reread.Inc()
			continue
		}
		t.samples++
		timed := t.samples%sampleEvery == 0
		var began time.Time
		if timed {
			began = time.Now()
		}
		var err error
		if t.Repartitioned {
			err = t.processRepartitioned(j, rec)
		} else {
			err = t.processPrepartitioned(j, rec)
		}
		if err != nil {
			return fmt.Errorf("judge %s/%d/%d: %w", rec.Topic, rec.Partition, rec.Offset, err)
		}
		if timed {
			t.Metrics.decisionSeconds.Observe(time.Since(began).Seconds())
		}
		if t.Blind {
			t.BypassedUpTo(rec.Offset + 1)
		} else {
			t.Open.Next, t.Open.Epoch = rec.Offset+1, rec.LeaderEpoch
		}
	}
	return nil
}

// processRepartitioned judges a record that came through the router.
func (t *Judge) processRepartitioned(j *Judging, rec *kgo.Record) error {
	var env wire.Envelope
	if err := wire.ReadEnvelope(rec, &env); err != nil {
		return fmt.Errorf("%w: %w", kafka.ErrIllegalState, err)
	}
	route := t.App.ByName[string(env.Route)]
	if route == nil {
		return kafka.OperatorErrorf("route %s is gone from the routes file, but its records still wait in %s: put the route back until they are done", env.Route, rec.Topic)
	}
	ev := event{
		original:   original{rec: rec, headers: rec.Headers[1:], timestamp: env.Timestamp, from: env.From},
		route:      route,
		brokerTime: rec.Timestamp.UnixMilli(),
		replyTo:    env.ReplyTo,
	}
	if env.FromIngress {
		ev.from = t.App.PositionOf(rec)
	}
	if env.Outcome != nil {
		if t.Blind {
			return nil // it is applied after the restore
		}
		return t.outcome(j, &ev, env.Outcome)
	}
	turn := t.turnOf(route, rec.Offset)
	if turn == turnWaits || turn == turnDone {
		return nil
	}
	ev.key, ev.Details = &env.Key, env.Details
	return t.judge(j, &ev, turn, env.Digest, env.EventTime)
}

// processPrepartitioned derives the key of a record of a prepartitioned topic and judges it.
func (t *Judge) processPrepartitioned(j *Judging, rec *kgo.Record) error {
	in := wire.InputOf(rec)
	derived := t.derive(j.Deriver, &in)
	route := t.App.Routes[derived.Route.Index]
	ev := event{
		original: original{
			rec: rec, headers: rec.Headers, timestamp: in.Timestamp,
			from: t.App.PositionOf(rec),
		},
		route:      route,
		brokerTime: j.presentOf(rec),
		replyTo:    route.Asked(rec),
	}
	turn := t.turnOf(route, rec.Offset)
	switch {
	case turn == turnWaits || turn == turnDone:
		return nil
	case derived.Finding != rules.Keyed:
		if turn != turnKnown {
			j.turnAway(&ev, &derived)
		}
		return nil
	}
	ev.key, ev.Details = &derived.Key, wire.DetailsOf(&derived)
	return t.judge(j, &ev, turn, derived.Digest, derived.Time)
}

// derive is Deriver.Derive, timed for the records that are timed.
func (t *Judge) derive(deriver *rules.Deriver, in *rules.Input) rules.Derived {
	if t.samples%sampleEvery != 0 {
		return deriver.Derive(in)
	}
	began := time.Now()
	derived := deriver.Derive(in)
	t.Metrics.keyDerivationSeconds.Observe(time.Since(began).Seconds())
	return derived
}

// presentOf returns the broker-observed present of a record of a prepartitioned topic.
func (j *Judging) presentOf(rec *kgo.Record) int64 {
	if rec.Attrs.TimestampType() == kafka.TimestampAppend {
		return rec.Timestamp.UnixMilli()
	}
	return j.now
}

// candidate is an event that is judged, with what it is judged against.
type candidate struct {
	event      dedup.Event
	streamTime int64 // of its namespace, ms
	prior      dedup.Row
	held       bool // there is a prior row
	// replaced is the prior row if it stands: the event's own row replaces it. nil
	// for a new key.
	replaced *dedup.Row
}

// lookUp finds the row that an event is judged against: its key's, or with
// adjacent buckets that of an adjacent key.
func (t *Judge) lookUp(ev *event, c *candidate) error {
	if err := t.lookUpPrior(ev, c); err != nil {
		return err
	}
	if c.held && ev.route.Span.Stands(&c.prior, c.streamTime) {
		c.replaced = &c.prior
	}
	return nil
}

func (t *Judge) lookUpPrior(ev *event, c *candidate) (err error) {
	c.prior, c.held, err = t.Store.Get(c.event.Digest)
	if err != nil || !ev.HasAdjacent {
		return err
	}
	var rows [len(ev.Adjacent)]dedup.Row
	adjacent := rows[:0]
	for _, digest := range ev.Adjacent {
		row, found, err := t.Store.Get(digest)
		switch {
		case err != nil:
			return err
		case found:
			adjacent = append(adjacent, row)
		}
	}
	c.prior, c.held = c.event.Prior(c.prior, c.held, adjacent, ev.route.AdjacentStepMS, ev.route.Span, c.streamTime)
	return nil
}

// judge reaches the verdict on an event with a key: admit by time, look up,
// decide, emit, record. Each step may end it; only the last moves stream time.
func (t *Judge) judge(j *Judging, ev *event, turn turn, digest dedup.Digest, eventTime int64) error {
	route := ev.route
	c := candidate{streamTime: t.streamTime(route.NamespaceID)}
	verdict, admitted := route.Span.Admit(eventTime, c.streamTime, ev.brokerTime)
	c.event = dedup.Event{Digest: digest, Time: admitted, At: ev.from, NamespaceID: route.NamespaceID, Fingerprint: ev.Fingerprint}
	if ev.HasAdjacent {
		c.event.Shift = ev.Shift + eventTime - admitted // which may have been clamped
	}
	switch {
	case turn == turnKnown && verdict != dedup.Unique:
		return nil // it was a dead letter, or late, when it was forwarded
	case verdict == dedup.Invalid:
		if turn == turnUnchecked {
			t.Open.DeadLetter(ev.rec.Offset, ev.rec.Offset+1) // it may be valid when it is read again
		}
		ev.verdict = verdict
		ev.reason = fmt.Sprintf("event time %d is more than %v ahead of the broker's %d", admitted, route.Skew, ev.brokerTime)
		j.byPolicy(ev, rules.DeadLetter)
		return nil
	case verdict == dedup.Late:
		j.applyLatePolicy(ev, admitted, c.streamTime)
		return nil
	case turn == turnUnchecked:
		t.forwardUnchecked(j, ev, &c.event)
		return nil
	}
	if err := t.lookUp(ev, &c); err != nil {
		return err
	}
	var err error
	switch {
	case turn == turnKnown:
		err = t.storeForwarded(j, ev, &c)
	case route.Mode == rules.ClaimMode:
		err = t.claim(j, ev, &c)
	default:
		err = t.decide(j, ev, &c)
	}
	if err != nil {
		return err
	}
	t.Open.StreamTimes.At[route.NamespaceID] = dedup.NextStreamTime(c.streamTime, admitted)
	t.Open.StreamTimes.Has[route.NamespaceID] = true
	t.OpenCounts.Advance(route.NamespaceID, t.Open.StreamTimes.At[route.NamespaceID])
	if turn != turnKnown {
		t.OpenCounts.CountLookup(route.NamespaceID, ev.verdict)
	}
	return nil
}

// decide judges an event of plain deduplication.
func (t *Judge) decide(j *Judging, ev *event, c *candidate) error {
	route := ev.route
	verdict, row := dedup.Decide(c.event, c.prior, c.held, route.Span, c.streamTime)
	switch verdict {
	case dedup.Unique, dedup.AfterWindow:
		if t.overLimit(route, c) {
			t.applyLimitPolicy(j, ev)
			break
		}
		ev.verdict = verdict
		if j.emit(ev, route.Output) {
			t.put(j, &change{row: &row, replaced: c.replaced})
		}
		j.conclude(ev)
	case dedup.Duplicate:
		ev.verdict, ev.first = verdict, &c.prior
		j.applyDuplicatePolicy(ev, c.event.Time)
	case dedup.Collision:
		t.applyCollisionPolicy(j, ev, &c.prior)
	case dedup.Late:
		j.applyLatePolicy(ev, c.event.Time, c.streamTime)
	case dedup.MissingKey, dedup.Invalid, dedup.Limited, dedup.InProgress, dedup.Replayed, dedup.Bypassed:
		return fmt.Errorf("%w: decided %v", kafka.ErrIllegalState, verdict)
	}
	return nil
}

// applyLimitPolicy lets an event with a key too many go, unchecked. Its time counts
// all the same: time is what makes room for new keys.
func (t *Judge) applyLimitPolicy(j *Judging, ev *event) {
	ev.verdict = dedup.Limited
	ev.reason = fmt.Sprintf("new key beyond the limit: %d keys of namespace %s are live in %v, live_keys is %d",
		t.OpenCounts.LiveKeys(ev.route.NamespaceID), ev.route.Namespace, t.ID, ev.route.Limits.LiveKeys)
	j.byPolicy(ev, ev.route.Limits.OnLimit)
}

// levelCritical is for what somebody has to look at now.
const levelCritical = slog.LevelError + 4

// applyCollisionPolicy handles an event that has the key of another by the
// route's policy. It is not a duplicate, so the operator must learn of it.
func (t *Judge) applyCollisionPolicy(j *Judging, ev *event, standing *dedup.Row) {
	ev.verdict, ev.first = dedup.Collision, standing
	ev.reason = "the key of another event, whose details differ: the fields of fingerprint do not agree"
	t.Log.LogAttrs(context.Background(), levelCritical, "collision: two events with one key and different details",
		slog.String("route", ev.route.Name), slog.String("key", wire.KeyText(ev.key)),
		slog.String("event", string(t.App.PositionText(ev.from))), slog.String("first", string(t.App.PositionText(standing.At))))
	j.byPolicy(ev, ev.route.Collision)
}

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
