package judge

import (
	"errors"
	"fmt"
	"log/slog"
	"math"
	"slices"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"oncebus/dedup"
	"oncebus/dedup/rules"
	"oncebus/processor/app"
	"oncebus/processor/kafka"
	"oncebus/processor/wire"
	"oncebus/state"
)

// sampleEvery is how many records share one timing of key derivation or
// check: reading the clock twice costs as much as the decision itself.
const sampleEvery = 64

// Judge owns the state of one partition and judges its records, one at a time,
// strictly in offset order. It has no client and no goroutine.
type Judge struct {
	ID            app.TaskID
	Repartitioned bool // the partition is one of the repartition topic
	Changelog     string
	App           *app.App
	Metrics       *Metrics
	Log           *slog.Logger

	Store *state.Store
	// Blind says that the store cannot be used: events of routes that fail open
	// are forwarded unchecked, all others are left where they are.
	Blind bool

	// Committed is the checkpoint of the last committed transaction, open
	// the one of the transaction in progress.
	// Invariant: committed.next <= open.next.
	Committed, Open wire.Checkpoint
	InTransaction   bool // the open transaction carries work of this task
	// joinedAt is when the open transaction took the task in, startedAt when
	// the task began to judge; broker time, ms.
	joinedAt, StartedAt int64
	Counts, OpenCounts  app.Counts // as of committed, and of open
	// CheckpointRecord is the checkpoint row of the open transaction, its last
	// row. Once the broker has it, its offset + 1 is the changelog position.
	CheckpointRecord *kgo.Record
	samples          uint
	value            []byte // scratch for encoded rows
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

// JoinTransaction takes the task into the open transaction.
func (t *Judge) JoinTransaction() {
	if !t.InTransaction {
		t.InTransaction, t.joinedAt = true, t.App.Clock.Now()
		t.Open = t.Committed
		if t.Blind {
			t.Open.Bypassed, t.Open.DeadLettered = slices.Clone(t.Open.Bypassed), slices.Clone(t.Open.DeadLettered)
			return
		}
		t.Counts.CopyTo(&t.OpenCounts)
	}
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
		replyTo:    route.ReplyAddress(rec),
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
}

// replaces returns the row that the event's own row replaces, nil for a new key.
func (c *candidate) replaces(span *dedup.Window) *dedup.Row {
	if c.held && span.Decides(&c.prior, c.streamTime) {
		return &c.prior
	}
	return nil
}

// lookUp finds the row that an event is judged against: its key's, or with
// adjacent buckets that of an adjacent key.
func (t *Judge) lookUp(ev *event, c *candidate) (err error) {
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
		t.applyLatePolicy(j, ev, admitted, c.streamTime)
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
		replaced := c.replaces(&route.Span)
		if replaced == nil && t.overLimit(route) {
			t.applyLimitPolicy(j, ev)
			break
		}
		ev.verdict = verdict
		if j.emit(ev, route.Output) {
			t.putRow(j, &row)
			t.OpenCounts.ReplaceRow(&row, replaced)
		}
		j.conclude(ev)
	case dedup.Duplicate:
		ev.verdict, ev.first = verdict, &c.prior
		t.applyDuplicatePolicy(j, ev, c.event.Time)
	case dedup.Collision:
		t.applyCollisionPolicy(j, ev, &c.prior)
	case dedup.Late:
		t.applyLatePolicy(j, ev, c.event.Time, c.streamTime)
	case dedup.MissingKey, dedup.Invalid, dedup.Limited, dedup.InProgress, dedup.Replayed, dedup.Bypassed:
		return fmt.Errorf("%w: decided %v", kafka.ErrIllegalState, verdict)
	}
	return nil
}

func (t *Judge) streamTime(class uint8) int64 { return t.Open.StreamTimes.Of(class) }

// putRow puts a row into the overlay and into the changelog.
func (t *Judge) putRow(j *Judging, row *dedup.Row) {
	t.Store.Put(*row)
	key := j.bytes.take(len(row.Digest))
	copy(key, row.Digest[:])
	t.value = row.AppendValue(t.value[:0])
	t.produceRow(j.Emitter, key, t.value)
}

// produceRow produces a changelog record; value is copied.
func (t *Judge) produceRow(e *Emitter, key, value []byte, headers ...kgo.RecordHeader) *kgo.Record {
	r := e.NewRecord()
	r.Topic, r.Partition, r.Key, r.Headers = t.Changelog, t.ID.Partition, key, headers
	r.Value = e.bytes.take(len(value))
	copy(r.Value, value)
	e.produce(r)
	return r
}

// WriteCheckpoint ends the task's part of the open transaction with its checkpoint row.
func (t *Judge) WriteCheckpoint(e *Emitter) {
	t.Open.Sequence++
	if !t.Blind {
		t.Open.Counts, t.Open.Counted = t.OpenCounts.Encode(), true
		t.Open.DropBypassed()
	}
	t.value = t.Open.Append(t.value[:0])
	var headers []kgo.RecordHeader
	if len(t.App.Outcomes) > 0 {
		headers = []kgo.RecordHeader{{Key: wire.HeaderLease, Value: fmt.Appendf(nil, "%d %d", t.joinedAt, t.StartedAt)}}
	}
	t.CheckpointRecord = t.produceRow(e, []byte(wire.CheckpointKey), t.value, headers...)
}

// ErrNoOffset says that the broker has the checkpoint row but did not say
// where: it answers so when it recognises a batch that was sent twice.
var ErrNoOffset = errors.New("offset of the checkpoint row is not known")

// Commit applies the transaction to the store: only now, when it is known to
// be committed, and as one step with the position behind its last row.
func (t *Judge) Commit() error {
	if t.Blind {
		t.Committed, t.InTransaction, t.CheckpointRecord = t.Open, false, nil
		return nil // the store reads it in the changelog
	}
	position := t.CheckpointRecord.Offset + 1
	if position <= t.Store.Position() {
		return fmt.Errorf("%w: changelog row of %v at offset %d, the store is at %d", ErrNoOffset, t.ID, t.CheckpointRecord.Offset, t.Store.Position())
	}
	t.Committed, t.InTransaction, t.CheckpointRecord = t.Open, false, nil
	t.Counts, t.OpenCounts = t.OpenCounts, t.Counts
	if err := t.Store.Apply(position, t.Committed.Append(nil)); err != nil {
		return fmt.Errorf("apply to the store of %v: %w", t.ID, err)
	}
	t.Store.EvictBefore(t.horizons())
	return nil
}

// Discard forgets the open transaction.
func (t *Judge) Discard() {
	if t.Store != nil {
		t.Store.Discard()
	}
	t.Open, t.InTransaction, t.CheckpointRecord = t.Committed, false, nil
}

// horizons returns, by class, the first-seen time below which no event can be
// judged against a row any more. A class without a route keeps its rows.
func (t *Judge) horizons() [256]int64 {
	var before [256]int64
	for class := range before {
		before[class] = math.MinInt64
	}
	for _, r := range t.App.Routes {
		if t.Committed.StreamTimes.Has[r.NamespaceID] {
			before[r.NamespaceID] = r.Span.Horizon(t.Committed.StreamTimes.At[r.NamespaceID])
		}
	}
	return before
}
