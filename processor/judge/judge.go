package judge

import (
	"bytes"
	"errors"
	"fmt"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"oncebus/dedup"
	"oncebus/dedup/rules"
	"oncebus/processor/app"
	"oncebus/processor/kafka"
	"oncebus/processor/wire"
)

// sampleEvery says how rarely a judge measures its own time: it times one record in sampleEvery,
// because reading the clock twice costs as much as the decision itself.
const sampleEvery = 64

// Judge judges the records of one partition, one at a time, strictly in offset order. It has no Kafka
// client: it hands its records to the Emitter of the worker.
type Judge struct {
	State

	Repartitioned bool // the partition belongs to the repartition topic, not to a prepartitioned input
	Metrics       *Metrics
	Skips         *wire.UnreadableError // the unreadable record that an operator decided to skip; nil for none
	samples       uint
}

// Judging has what all judges of one worker share: the emitter, the derived keys, and the broker time.
type Judging struct {
	*Emitter
	Keys    *Keys
	Shadows *Shadows // of the dedup stage
	// Held reports that a route was promoted to a new key rule, and that the hold of the promotion is still in
	// force. Records with keys of the former rule then wait.
	Held    bool
	senders rules.SenderReader
	// now is broker time and certain is app.BrokerClock.Certain, both in ms. Process reads them once
	// for all records of a poll: to read a clock for each record costs 4 % of the time that a record
	// takes.
	now, certain int64
	topic        uint16 // number of the topic of these records; 0 for the repartition topic
}

// Release drops the references to the last processed record, so that its memory can be used again.
func (j *Judging) Release() {
	j.Keys.Release()
	if j.Shadows != nil {
		j.Shadows.release()
	}
}

// UnknownRouteError reports a record of a route that the routes file of this process does not have.
// During a rolling update this is normal: a process that already has the new file knows the route.
type UnknownRouteError struct {
	Route  string
	Offset int64 // offset of the record
	Set    int64 // newest route set that this process has read; 0 for an app at level 1, which has no route sets
	// Held reports another case: the route is known, but the record has a key of the rule that the
	// route had before a promotion. The record waits until the hold of the promotion ends.
	Held bool
}

// Error implements error. The text is what an operator reads in /readyz.
func (e *UnknownRouteError) Error() string {
	if e.Held {
		return fmt.Sprintf("the record at offset %d has a key of the rule that route %s had before its promotion: it waits until the hold of the promotion ends", e.Offset, e.Route)
	}
	if e.Set > 0 {
		return fmt.Sprintf("the record at offset %d has route %s, which no route set up to %d has: it waits, and all after it, until the process has read a newer set", e.Offset, e.Route, e.Set)
	}
	return fmt.Sprintf("the record at offset %d has route %s, which is not in the routes file of this process: it waits, and all after it, for a process with that route; "+
		"restart this process with the route, or, if the route was removed, put it back until its records are processed", e.Offset, e.Route)
}

// ErrClockDoubtful reports an event whose time is in the future by our estimate of broker time, while that
// estimate may itself be wrong (hazard T14). The worker then aborts the transaction and observes the brokers'
// clock again. After that the event is judged again.
var ErrClockDoubtful = errors.New("broker time is doubtful: an event contradicts the estimate")

// Process judges records in the open transaction. It skips records below the checkpoint, because an
// earlier transaction judged them (invariant 6). It stops with an error before the first record
//
//   - whose route is unknown (UnknownRouteError),
//   - whose schema has not been read yet (PendingSchemaError), or
//   - that cannot be read (wire.UnreadableError).
//
// The records before that one are part of the transaction.
func (t *Judge) Process(j *Judging, records []*kgo.Record) error {
	j.now, j.certain = t.App.Clock.Now(), t.App.Clock.Certain()
	if t.Repartitioned {
		for _, rec := range records {
			if err := t.process(j, rec, nil); err != nil {
				return err
			}
		}
		return nil
	}
	j.topic = t.App.TopicNumbers[t.ID.Topic]
	for rec, derived := range j.Keys.Of(records) {
		if derived.Finding == rules.SchemaPending {
			t.JoinTransaction() // every transaction of a task needs a checkpoint, also when it judged no record
			return pendingOf(rec, derived)
		}
		if err := t.process(j, rec, derived); err != nil {
			return err
		}
	}
	return nil
}

// process judges one record. derived is its dedup key; a record of the repartition topic carries its
// key in the envelope, and derived is nil.
func (t *Judge) process(j *Judging, rec *kgo.Record, derived *rules.Derived) error {
	t.JoinTransaction()
	if rec.Offset < t.Open.Next {
		t.Metrics.Reread.Inc()
		return nil
	}
	t.samples++
	timed := t.samples%sampleEvery == 0
	var began time.Time
	if timed {
		began = time.Now()
	}
	var err error
	if t.Repartitioned {
		err = t.skipDecided(t.processRepartitioned(j, rec))
	} else {
		err = t.processPrepartitioned(j, rec, derived)
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
	return nil
}

// turn is how a judge treats an event because of a bypass, apart from its verdict. During a bypass the
// local store cannot be used, and routes that fail open forward their events unchecked.
type turn uint8

const (
	// turnFresh is the normal case: judge the event.
	turnFresh turn = iota
	// turnUnchecked forwards the event unchecked: the store cannot be used, and the route fails open.
	turnUnchecked
	// turnSkip skips the event, because the store cannot be used. Either the event was forwarded
	// unchecked before, or its route does not fail open, and the task judges the event after the
	// restore.
	turnSkip
	// turnForwarded stores the event without emitting it: a bypass has already forwarded it unchecked.
	turnForwarded
	// turnDeadLettered skips the event: it became a dead letter during a bypass.
	turnDeadLettered
)

// turnOf returns the turn of a record. It is the only function of this package that compares Blind with
// a route's FailOpen.
func (t *Judge) turnOf(route *app.Route, offset int64) turn {
	bypassed := offset < t.Open.BypassedTo(route.NamespaceID)
	switch {
	case t.Blind && (bypassed || !route.FailOpen):
		return turnSkip
	case t.Blind:
		return turnUnchecked
	case bypassed && t.Open.IsDeadLettered(offset):
		return turnDeadLettered
	case bypassed:
		return turnForwarded
	}
	return turnFresh
}

// processRepartitioned judges a record of the repartition topic.
func (t *Judge) processRepartitioned(j *Judging, rec *kgo.Record) error {
	env := &j.current.envelope
	if err := wire.ReadEnvelope(rec, env); err != nil {
		return err
	}
	if env.IsProgress {
		return t.applyProgress(j, rec)
	}
	route := t.App.ByName[string(env.Route)]
	if route == nil {
		return &UnknownRouteError{Route: string(env.Route), Offset: rec.Offset, Set: t.App.Set}
	}
	ev := event{
		original:   original{rec: rec, recordKey: env.RecordKey, headers: rec.Headers, timestamp: env.Timestamp, from: env.From},
		route:      route,
		brokerTime: rec.Timestamp.UnixMilli(),
		replyTo:    env.ReplyTo,
		replaces:   env.Replaces,
		tenant:     env.Tenant,
	}
	if env.FromIngress {
		ev.from = t.App.PositionOf(rec)
	}
	if env.Shadow != 0 {
		if t.Blind {
			return nil // the task applies it after the restore
		}
		return t.judgeShadow(j, route, env)
	}
	if route.IsShadow() { // the router that wrote the record has a newer set, in which this shadow is promoted
		return &UnknownRouteError{Route: string(env.Route), Offset: rec.Offset, Set: t.App.Set}
	}
	if env.IsQuery {
		ev.envelope, ev.digest, ev.Details = env, env.Digest, env.Details
		return t.query(j, &ev, env)
	}
	if !bytes.Equal(route.WireName, env.Route) {
		return t.forwardFormer(j, &ev, env)
	}
	if env.Outcome != nil {
		if t.Blind {
			return nil // the task applies it after the restore
		}
		return t.outcome(j, &ev, env.Outcome)
	}
	ev.envelope, ev.digest, ev.Details = env, env.Digest, env.Details
	if env.IsSeed {
		return t.processSeed(j, &ev, env)
	}
	turn := t.turnOf(route, rec.Offset)
	if turn == turnSkip || turn == turnDeadLettered || t.passOff(j, &ev, turn) {
		return nil
	}
	if err := t.deriveShadow(j, &ev); err != nil {
		return err
	}
	return t.judge(j, &ev, turn, env.Digest, env.EventTime)
}

// processSeed applies a seed record: a seeded key, or the stream time that the task had in another cluster.
func (t *Judge) processSeed(j *Judging, ev *event, env *wire.Envelope) error {
	switch {
	case t.Blind:
		return nil // the task applies it after the restore
	case env.IsTime:
		return t.takeStreamTime(j, ev)
	}
	return t.seed(j, ev)
}

// processPrepartitioned judges a record of a prepartitioned topic with the key derived from it.
func (t *Judge) processPrepartitioned(j *Judging, rec *kgo.Record, derived *rules.Derived) error {
	route := t.App.Routes[derived.Route.Index]
	ev := event{
		original:   originalOf(rec, dedup.Position{Topic: j.topic, Partition: rec.Partition, Offset: rec.Offset}),
		route:      route,
		brokerTime: j.brokerTimeOf(rec),
		replyTo:    route.ReplyAddress(rec),
	}
	turn := t.turnOf(route, rec.Offset)
	switch {
	case turn == turnSkip || turn == turnDeadLettered:
		return nil
	case !route.Off && derived.Finding == rules.Keyed && derived.Time > j.certain && rec.Attrs.TimestampType() != kafka.TimestampAppend && t.App.Clock.Doubts(derived.Time, route.Span.Skew):
		return ErrClockDoubtful
	case derived.Finding != rules.Keyed:
		if turn != turnForwarded {
			j.applyKeyPolicy(&ev, derived)
		}
		return nil
	}
	ev.key, ev.Details = &derived.Key, wire.DetailsOf(derived)
	ev.tenant = j.tenantOf(derived)
	if t.passOff(j, &ev, turn) {
		return nil
	}
	return t.judge(j, &ev, turn, derived.Digest, derived.Time)
}

// brokerTimeOf returns the broker time of a record of a prepartitioned topic, ms: the time at which the
// broker appended it, if the topic records that, else our estimate of broker time now.
func (j *Judging) brokerTimeOf(rec *kgo.Record) int64 {
	if rec.Attrs.TimestampType() == kafka.TimestampAppend {
		return rec.Timestamp.UnixMilli()
	}
	return j.now
}

// candidate is an event that is being judged, with the stored row and the stream time that decide it.
type candidate struct {
	event      dedup.Event
	digest     dedup.Digest // digest of the event's first key: in a route that forwards collisions, event.Digest may be its second key
	clamped    bool         // its event time was clamped; a clamped time does not move stream time
	window     dedup.Window // window by which the task judges the namespace
	streamTime int64        // stream time of the namespace, ms
	front      int64        // highest event time of its source, or streamTime if later, ms; the grace counts from it
	prior      dedup.Row
	hasPrior   bool
	// replaced is prior if that row still decides, because the event's own row will replace it. It is nil for a
	// new key.
	replaced *dedup.Row
	// descent is the path from the key's latest row down to the rows of its earlier windows; nil for an
	// event that the latest row decides.
	descent *dedup.Descent
	// collided is the row of a different event that has the same key, in a route that forwards
	// collisions.
	collided *dedup.Row
}

// lookUp finds the row that decides an event: the row of its key or, with adjacent buckets, of an adjacent key.
// In a route that forwards collisions, an event that collides gets a second key, and lookUp may return the row
// of that key. If requests joined the row's claim in this transaction, the row may not have them yet.
func (t *Judge) lookUp(ev *event, c *candidate) error {
	own, found, err := t.Store.Get(c.event.Digest)
	if err != nil {
		return err
	}
	c.prior, c.hasPrior = own, found
	if err := t.lookUpPrior(ev, c); err != nil {
		return err
	}
	if ev.route.ForwardsCollisions() {
		var other *dedup.Row
		if found {
			row := own // a copy on the heap, which only these routes need
			other = &row
		}
		if err := t.lookUpCollision(ev, c, other); err != nil {
			return err
		}
	}
	if c.hasPrior && c.window.Decides(&c.prior, c.streamTime) {
		c.replaced = &c.prior
	}
	return nil
}

// lookUpPrior looks up the rows of the event's adjacent keys, if it has any, and chooses the row that decides.
func (t *Judge) lookUpPrior(ev *event, c *candidate) (err error) {
	if !ev.HasAdjacent {
		return nil
	}
	var rows [2 * len(ev.Adjacent)]dedup.Row
	adjacent := rows[:0]
	for _, digest := range ev.Adjacent {
		if adjacent, err = t.lookUpAdjacent(adjacent, digest); err != nil {
			return err
		}
		if ev.route.ForwardsCollisions() {
			if adjacent, err = t.lookUpAdjacent(adjacent, dedup.CollisionDigest(digest, ev.Fingerprint)); err != nil {
				return err
			}
		}
	}
	c.prior, c.hasPrior = c.event.Prior(c.prior, c.hasPrior, adjacent, ev.route.AdjacentStepMS, c.window, c.streamTime)
	return nil
}

// lookUpAdjacent appends the row of an adjacent key to rows, if the key has a row.
func (t *Judge) lookUpAdjacent(rows []dedup.Row, digest dedup.Digest) ([]dedup.Row, error) {
	row, found, err := t.Store.Get(digest)
	if found {
		rows = append(rows, row)
	}
	return rows, err
}

// judge reaches the verdict on an event with a key, in these steps: admit the event by its time, look up
// its row, decide, emit, store. Any step may be the last. Stream time advances after all of them.
func (t *Judge) judge(j *Judging, ev *event, turn turn, digest dedup.Digest, eventTime int64) error {
	route := ev.route
	c := &j.current.candidate
	*c = candidate{streamTime: t.streamTime(route.NamespaceID), window: t.window(route)}
	c.front = max(c.streamTime, t.front(ev))
	verdict, admitted := c.window.Admit(eventTime, c.front, ev.brokerTime)
	c.event = dedup.Event{Digest: digest, Time: admitted, At: ev.from, NamespaceID: route.NamespaceID, Fingerprint: ev.Fingerprint}
	c.digest, c.clamped, c.event.Linked = digest, admitted != eventTime, t.links(route)
	if ev.HasAdjacent {
		c.event.Shift = ev.Shift + eventTime - admitted // eventTime may have been clamped
	}
	switch {
	case turn == turnForwarded && verdict != dedup.Unique:
		return nil // during the bypass the event was late or became a dead letter
	case verdict == dedup.Invalid:
		if turn == turnUnchecked {
			t.Open.DeadLetter(ev.rec.Offset, ev.rec.Offset+1) // judged after the bypass, its time might be valid
		}
		ev.verdict = verdict
		ev.reason = fmt.Sprintf("event time %d is more than %v ahead of the broker's %d", admitted, route.Skew, ev.brokerTime)
		j.byPolicy(ev, rules.DeadLetter)
		return nil
	case verdict == dedup.Late && (turn == turnUnchecked || route.Mode != rules.ClaimMode):
		j.applyLatePolicy(ev, c)
		return nil
	case turn == turnUnchecked:
		t.forwardUnchecked(j, ev, &c.event)
		return nil
	case turn == turnFresh && !t.takeTenant(j, ev):
		return nil
	}
	if err := t.lookUp(ev, c); err != nil {
		return err
	}
	// A late event of claim mode may repeat an event whose claim is stored, so the judge looks for the claim
	// before it applies the policy for late events. DecideClaim dispatches a late event only if the lease of the
	// claim has expired. But the event may also lie outside the whole window of a stored row: after the window
	// changed, or if the event's source is ahead of stream time. The event is then another operation, and late.
	if verdict == dedup.Late && (c.replaced == nil || c.window.Over(c.replaced.First, admitted)) {
		j.applyLatePolicy(ev, c)
		return nil
	}
	var err error
	switch {
	case turn == turnForwarded:
		err = t.storeForwarded(j, ev, c)
	case route.Mode == rules.ClaimMode:
		err = t.claim(j, ev, c)
	default:
		err = t.decide(j, ev, c)
	}
	if err != nil {
		return err
	}
	if !c.clamped && verdict != dedup.Late {
		if err := t.advance(j.Emitter, ev, admitted); err != nil {
			return err
		}
	}
	if admitted > t.streamTime(route.NamespaceID) {
		t.Open.SetAhead(route.NamespaceID, admitted) // its source is not read least far, or it was clamped
	}
	if turn != turnForwarded {
		t.countLookup(j, ev, c)
	}
	return nil
}

// decide judges an event of a route in plain mode.
func (t *Judge) decide(j *Judging, ev *event, c *candidate) error {
	route := ev.route
	verdict, row, err := t.decidePlain(c)
	if err != nil {
		return err
	}
	switch verdict {
	case dedup.Unique, dedup.AfterWindow:
		if verdict == dedup.AfterWindow && route.RejectsAfterWindow {
			ev.rejectAfterWindow(c)
			j.applyDuplicatePolicy(ev, c.event.Time)
			break
		}
		if t.overLimit(route, c) {
			t.applyLimitPolicy(j, ev)
			break
		}
		if !t.hasRoom(j, ev) {
			break
		}
		ev.verdict = verdict
		if j.emit(ev, route.Output) {
			ev.turn.addKey()
			t.putFirst(j.Emitter, c, &row)
			t.shadow(j, ev, c, true)
		}
		j.conclude(ev)
	case dedup.Duplicate:
		ev.verdict, ev.first = verdict, &c.prior
		j.applyDuplicatePolicy(ev, c.event.Time)
		return t.countHit(j, ev, c)
	case dedup.Collision:
		t.applyCollisionPolicy(j, ev, &c.prior)
	case dedup.Late:
		j.applyLatePolicy(ev, c)
	case dedup.MissingKey, dedup.Invalid, dedup.Limited, dedup.InProgress, dedup.Replayed, dedup.Bypassed:
		return fmt.Errorf("%w: Decide returned %v", kafka.ErrIllegalState, verdict)
	}
	return nil
}
