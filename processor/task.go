package processor

import (
	"errors"
	"fmt"
	"log/slog"
	"math"
	"slices"
	"strconv"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"oncebus/dedup"
	"oncebus/dedup/rules"
	"oncebus/processor/kafka"
	"oncebus/processor/wire"
	"oncebus/state"
)

// taskID names a task: a partition whose records are partitioned by dedup key.
type taskID struct {
	topic     string
	partition int32
}

func (id taskID) String() string { return id.topic + "/" + strconv.Itoa(int(id.partition)) }

// taskState is a task's place in its life:
//
//	created --> restoring <--> running
//	   \         ^    |           |
//	    \        |    v           |
//	     \       passing          |
//	      \__________|____________|____> closed
//
// There is one way back: boot, rebalance, abort and doubt all pass through
// restoring, which is nearly free when nothing is missing. A task is passing
// while its store cannot be used and its routes do not wait for it.
type taskState uint8

const (
	created taskState = iota
	restoring
	passing
	running
	closed
	taskStates
)

func (s taskState) String() string {
	return [...]string{"created", "restoring", "passing", "running", "closed"}[s]
}

var moves = [taskStates][]taskState{
	created:   {restoring, closed},
	restoring: {passing, running, closed},
	passing:   {restoring, closed},
	running:   {restoring, closed},
}

// A task owns the state of one partition and judges its records, one at a
// time, strictly in offset order. It belongs to one worker's goroutine; while
// restoring, its store belongs to the restore alone.
type task struct {
	id        taskID
	hop       bool // the partition is one of the repartition topic
	changelog string
	rt        *runtime
	metrics   *metrics
	log       *slog.Logger

	state taskState
	store *state.Store

	// committed is the checkpoint of the last committed transaction, open
	// the one of the transaction in progress.
	// Invariant: committed.next <= open.next.
	committed, open wire.Checkpoint
	touched         bool // the open transaction carries work of this task
	// began is when the open transaction took the task in, up when the task
	// began to judge; the broker's present, in ms.
	began, up          int64
	counts, openCounts counts // as of committed, and of open
	// sealed is the checkpoint row of the open transaction, its last row.
	// Once the broker has it, sealed.Offset + 1 is the changelog position.
	sealed *kgo.Record

	// groupOffset is where the group says to go on, as far as we know.
	// groupCommitted says that this is what the group has committed, and not
	// the beginning in its place.
	groupOffset    int64
	groupCommitted bool
	highWatermark  int64 // of the input partition, as last fetched; -1 before
	// stable says that no transaction was open in that fetch: what then
	// follows without a record are markers and aborted records.
	stable  bool
	since   time.Time
	samples uint
	value   []byte // scratch for encoded rows

	broken  error    // why the store cannot go on as it is
	restore *restore // while restoring or passing
	detour  *detour  // while restoring: the way without the store
	release func()   // gives the directory back; to be called once the store is closed
}

// to moves the task. An illegal move is our bug: stop, do not limp.
func (t *task) to(next taskState) {
	if !slices.Contains(moves[t.state], next) {
		panic(fmt.Errorf("%w: task %v: no move from %v to %v", kafka.ErrIllegalState, t.id, t.state, next))
	}
	t.metrics.tasks.WithLabelValues(t.state.String()).Dec()
	if next != closed {
		t.metrics.tasks.WithLabelValues(next.String()).Inc()
	}
	t.state = next
	t.since = time.Now()
}

// judging is what a task needs of its worker to judge records.
type judging struct {
	*emitter
	deriver *rules.Deriver
	now     int64 // broker-observed present, once for the records of a poll, ms
}

// process judges records into the open transaction. Records below the
// checkpoint were judged before: they are passed over (invariant 6).
func (t *task) process(j *judging, records []*kgo.Record) error {
	j.now = t.rt.clock.now()
	for _, rec := range records {
		t.touch()
		if rec.Offset < t.open.Next {
			t.metrics.reread.Inc()
			continue
		}
		t.samples++
		timed := t.samples%sampleEvery == 0
		var began time.Time
		if timed {
			began = time.Now()
		}
		var err error
		if t.hop {
			err = t.processHop(j, rec)
		} else {
			err = t.processKeyed(j, rec)
		}
		if err != nil {
			return fmt.Errorf("judge %s/%d/%d: %w", rec.Topic, rec.Partition, rec.Offset, err)
		}
		if timed {
			t.metrics.decisionSeconds.Observe(time.Since(began).Seconds())
		}
		if t.state == passing {
			t.passedUpTo(rec.Offset + 1)
		} else {
			t.open.Next, t.open.Epoch = rec.Offset+1, rec.LeaderEpoch
		}
	}
	return nil
}

// touch takes the task into the open transaction.
func (t *task) touch() {
	if !t.touched {
		t.touched, t.began = true, t.rt.clock.now()
		t.open = t.committed
		if t.state == passing {
			t.open.Bypassed, t.open.DeadLettered = slices.Clone(t.open.Bypassed), slices.Clone(t.open.DeadLettered)
			return
		}
		t.counts.copyTo(&t.openCounts)
	}
}

// processHop judges a record that came through the router.
func (t *task) processHop(j *judging, rec *kgo.Record) error {
	var env wire.Envelope
	if err := wire.ReadEnvelope(rec, &env); err != nil {
		return fmt.Errorf("%w: %w", kafka.ErrIllegalState, err)
	}
	route := t.rt.byName[string(env.Route)]
	if route == nil {
		return kafka.OperatorErrorf("route %s is gone from the routes file, but its records still wait in %s: put the route back until they are done", env.Route, rec.Topic)
	}
	ev := event{
		original: original{rec: rec, headers: rec.Headers[1:], timestamp: env.Timestamp, from: env.From},
		route:    route,
		present:  rec.Timestamp.UnixMilli(),
		ask:      env.ReplyTo,
	}
	if env.FromIngress {
		ev.from = t.rt.positionOf(rec)
	}
	switch {
	case env.Outcome != nil && t.state == passing:
		return nil // for when there are claims again
	case env.Outcome != nil:
		return t.outcome(j, &ev, env.Outcome)
	case t.leaves(route, rec.Offset):
		return nil
	}
	ev.key, ev.Details = &env.Key, env.Details
	return t.judge(j, &ev, env.Digest, env.EventTime)
}

// processKeyed derives the key of a record of a prepartitioned topic and judges it.
func (t *task) processKeyed(j *judging, rec *kgo.Record) error {
	in := wire.InputOf(rec)
	derived := t.derive(j.deriver, &in)
	route := t.rt.routes[derived.Route.Index]
	ev := event{
		original: original{
			rec: rec, headers: rec.Headers, timestamp: in.Timestamp,
			from: t.rt.positionOf(rec),
		},
		route:   route,
		present: j.presentOf(rec),
		ask:     route.asked(rec),
	}
	switch {
	case t.leaves(route, rec.Offset):
		return nil
	case derived.Finding != rules.Keyed:
		if !t.passedBefore(route.class, rec.Offset) {
			j.turnAway(&ev, &derived)
		}
		return nil
	}
	ev.key, ev.Details = &derived.Key, wire.DetailsOf(&derived)
	return t.judge(j, &ev, derived.Digest, derived.Time)
}

// derive is Deriver.Derive, timed for the records that are timed.
func (t *task) derive(deriver *rules.Deriver, in *rules.Input) rules.Derived {
	if t.samples%sampleEvery != 0 {
		return deriver.Derive(in)
	}
	began := time.Now()
	derived := deriver.Derive(in)
	t.metrics.keyDerivationSeconds.Observe(time.Since(began).Seconds())
	return derived
}

// presentOf returns the broker-observed present of a record of a prepartitioned topic.
func (j *judging) presentOf(rec *kgo.Record) int64 {
	if rec.Attrs.TimestampType() == kafka.TimestampAppend {
		return rec.Timestamp.UnixMilli()
	}
	return j.now
}

// lookUp returns the row that an event is judged against: its key's, or with
// neighbours that of a key beside it.
func (t *task) lookUp(ev *event, decided *dedup.Event, streamTime int64) (dedup.Row, bool, error) {
	own, held, err := t.store.Get(decided.Digest)
	if err != nil || !ev.HasAdjacent {
		return own, held, err
	}
	var rows [len(ev.Adjacent)]dedup.Row
	beside := rows[:0]
	for _, digest := range ev.Adjacent {
		row, found, err := t.store.Get(digest)
		switch {
		case err != nil:
			return row, found, err
		case found:
			beside = append(beside, row)
		}
	}
	prior, held := decided.Prior(own, held, beside, ev.route.nearStep, ev.route.span, streamTime)
	return prior, held, nil
}

// judge is the decision: admit by time, look up, decide, emit, record.
func (t *task) judge(j *judging, ev *event, digest dedup.Digest, eventTime int64) error {
	route := ev.route
	streamTime := t.streamTime(route.class)
	told := eventTime
	verdict, eventTime := route.span.Admit(told, streamTime, ev.present)
	decided := dedup.Event{Digest: digest, Time: eventTime, At: ev.from, NamespaceID: route.class, Fingerprint: ev.Fingerprint}
	if ev.HasAdjacent {
		decided.Shift = ev.Shift + told - eventTime // which may have been clamped
	}
	before := t.passedBefore(route.class, ev.rec.Offset)
	switch {
	case before && (verdict != dedup.Unique || t.open.IsDeadLettered(ev.rec.Offset)):
		return nil // which was said then
	case verdict == dedup.Invalid:
		if t.state == passing {
			t.open.DeadLetter(ev.rec.Offset, ev.rec.Offset+1) // its time may have come when it is met again
		}
		ev.verdict = verdict
		ev.reason = fmt.Sprintf("event time %d is more than %v ahead of the broker's %d", eventTime, route.Skew, ev.present)
		j.byPolicy(ev, rules.DeadLetter)
		return nil
	case verdict == dedup.Late:
		t.turnLate(j, ev, eventTime, streamTime)
		return nil
	case t.state == passing:
		t.pass(j, ev, &decided)
		return nil
	}
	prior, held, err := t.lookUp(ev, &decided, streamTime)
	if err != nil {
		return err
	}
	switch {
	case before:
		err = t.remember(j, ev, &decided, &prior, held, streamTime)
	case route.Mode == rules.ClaimMode:
		err = t.claim(j, ev, &decided, &prior, held, streamTime)
	default:
		err = t.decide(j, ev, &decided, &prior, held, streamTime)
	}
	if err != nil {
		return err
	}
	t.open.StreamTimes.At[route.class] = dedup.NextStreamTime(streamTime, eventTime)
	t.open.StreamTimes.Has[route.class] = true
	t.advanceCensus(route.class, t.open.StreamTimes.At[route.class])
	if !before {
		t.countHit(route.class, ev.verdict)
	}
	return nil
}

// decide judges an event of plain deduplication.
func (t *task) decide(j *judging, ev *event, decided *dedup.Event, prior *dedup.Row, held bool, streamTime int64) error {
	route := ev.route
	verdict, row := dedup.Decide(*decided, *prior, held, route.span, streamTime)
	switch verdict {
	case dedup.Unique, dedup.AfterWindow:
		stood := route.standing(prior, held, streamTime)
		if stood == nil && t.overLimit(route) {
			t.turnLimited(j, ev)
			break
		}
		ev.verdict = verdict
		if j.emit(ev, route.Output) {
			t.record(j, &row)
			t.recount(&row, stood)
		}
		j.conclude(ev)
	case dedup.Duplicate:
		ev.verdict, ev.first = verdict, prior
		t.turnDuplicate(j, ev, decided.Time)
	case dedup.Collision:
		t.turnCollision(j, ev, prior)
	case dedup.Late:
		t.turnLate(j, ev, decided.Time, streamTime)
	default:
		return fmt.Errorf("%w: decided %v", kafka.ErrIllegalState, verdict)
	}
	return nil
}

func (t *task) streamTime(class uint8) int64 { return t.open.StreamTimes.Of(class) }

// record puts a row into the overlay and into the changelog.
func (t *task) record(j *judging, row *dedup.Row) {
	t.store.Put(*row)
	key := j.bytes.take(len(row.Digest))
	copy(key, row.Digest[:])
	t.value = row.AppendValue(t.value[:0])
	t.produceRow(j.emitter, key, t.value)
}

// produceRow produces a changelog record; value is copied.
func (t *task) produceRow(e *emitter, key, value []byte, headers ...kgo.RecordHeader) *kgo.Record {
	r := &e.records.take(1)[0]
	r.Topic, r.Partition, r.Key, r.Headers = t.changelog, t.id.partition, key, headers
	r.Value = e.bytes.take(len(value))
	copy(r.Value, value)
	e.produce(r)
	return r
}

// seal ends the task's part of the open transaction with its checkpoint row.
func (t *task) seal(e *emitter) {
	t.open.Sequence++
	if t.state == running {
		t.open.Counts, t.open.Counted = t.openCounts.encode(), true
		t.open.DropBypassed()
	}
	t.value = t.open.Append(t.value[:0])
	var headers []kgo.RecordHeader
	if len(t.rt.outcomes) > 0 {
		headers = []kgo.RecordHeader{{Key: wire.HeaderLease, Value: fmt.Appendf(nil, "%d %d", t.began, t.up)}}
	}
	t.sealed = t.produceRow(e, []byte(wire.CheckpointKey), t.value, headers...)
}

// errNoOffset says that the broker has the checkpoint row but did not say
// where: it answers so when it recognises a batch that was sent twice.
var errNoOffset = errors.New("offset of the checkpoint row is not known")

// commit applies the transaction to the store: only now, when it is known to
// be committed, and as one step with the position behind its last row.
func (t *task) commit() error {
	if t.state == passing {
		t.committed, t.touched, t.sealed = t.open, false, nil
		return nil // the store reads it in the changelog
	}
	position := t.sealed.Offset + 1
	if position <= t.store.Position() {
		return fmt.Errorf("%w: changelog row of %v at offset %d, the store is at %d", errNoOffset, t.id, t.sealed.Offset, t.store.Position())
	}
	t.committed, t.touched, t.sealed = t.open, false, nil
	t.counts, t.openCounts = t.openCounts, t.counts
	if err := t.store.Apply(position, t.committed.Append(nil)); err != nil {
		return fmt.Errorf("apply to the store of %v: %w", t.id, err)
	}
	t.store.EvictBefore(t.horizons())
	return nil
}

// discard forgets the open transaction.
func (t *task) discard() {
	if t.store != nil {
		t.store.Discard()
	}
	t.open, t.touched, t.sealed = t.committed, false, nil
}

// horizons returns, by class, the first-seen time below which no event can be
// judged against a row any more. A class without a route keeps its rows.
func (t *task) horizons() [256]int64 {
	var before [256]int64
	for class := range before {
		before[class] = math.MinInt64
	}
	for _, r := range t.rt.routes {
		if t.committed.StreamTimes.Has[r.class] {
			before[r.class] = r.span.Horizon(t.committed.StreamTimes.At[r.class])
		}
	}
	return before
}

// close gives the store up. Rows not flushed yet come back from the changelog.
func (t *task) close() error {
	t.dropDetour()
	if t.restore != nil {
		t.restore.stop()
		t.store, t.restore = t.restore.store, nil
	}
	t.to(closed)
	partition := strconv.Itoa(int(t.id.partition))
	t.metrics.lag.DeleteLabelValues(t.id.topic, partition)
	t.metrics.restoreLeft.DeleteLabelValues(t.id.topic, partition)
	if t.store == nil {
		return nil
	}
	defer t.release()
	err := t.store.Close()
	t.store = nil
	if err != nil && !errors.Is(err, state.ErrCorrupt) {
		return fmt.Errorf("close the store of %v: %w", t.id, err)
	}
	return nil
}

func (t *task) showLag() {
	t.metrics.lag.WithLabelValues(t.id.topic, strconv.Itoa(int(t.id.partition))).Set(float64(t.lag()))
}

// lag is the number of input records after the last committed one.
func (t *task) lag() int64 {
	if t.highWatermark < 0 || t.committed.Next < 0 {
		return -1
	}
	if t.stable && time.Since(t.since) >= idlePoll {
		return 0 // polls came back without records
	}
	return max(0, t.highWatermark-t.committed.Next)
}
