package processor

import (
	"context"
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
	"oncebus/processor/app"
	"oncebus/processor/kafka"
	"oncebus/processor/restore"
	"oncebus/processor/wire"
	"oncebus/state"
)

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

// A task is one partition of a topic whose records are partitioned by dedup
// key, in this process: its judge, and what its life needs. It belongs to one
// worker's goroutine; while restoring, its store belongs to the restore.
type task struct {
	*judge

	state taskState
	// groupOffset is where the group says to go on, as far as we know.
	// groupCommitted says that the group has committed it; else it is the
	// pinned start.
	groupOffset    int64
	groupCommitted bool
	highWatermark  int64 // of the input partition, as last fetched; -1 before
	// stable says that no transaction was open in that fetch: what then
	// follows without a record are control records and aborted records.
	stable bool
	since  time.Time

	broken  error            // why the store cannot go on as it is
	restore *restore.Restore // while restoring or bypassing
	detour  *restore.Bypass  // while restoring: the way without the store
	release func()           // gives the directory back; to be called once the store is closed
	life    *metrics
}

// judge owns the state of one partition and judges its records, one at a time,
// strictly in offset order. It has no client and no goroutine.
type judge struct {
	id            app.TaskID
	repartitioned bool // the partition is one of the repartition topic
	changelog     string
	rt            *app.App
	metrics       *judgeMetrics
	log           *slog.Logger

	store *state.Store
	// blind says that the store cannot be used: events of routes that fail open
	// are forwarded unchecked, all others are left where they are.
	blind bool

	// committed is the checkpoint of the last committed transaction, open
	// the one of the transaction in progress.
	// Invariant: committed.next <= open.next.
	committed, open wire.Checkpoint
	inTransaction   bool // the open transaction carries work of this task
	// joinedAt is when the open transaction took the task in, startedAt when
	// the task began to judge; broker time, ms.
	joinedAt, startedAt int64
	counts, openCounts  app.Counts // as of committed, and of open
	// checkpointRecord is the checkpoint row of the open transaction, its last
	// row. Once the broker has it, its offset + 1 is the changelog position.
	checkpointRecord *kgo.Record
	samples          uint
	value            []byte // scratch for encoded rows
}

// to moves the task. An illegal move is our bug: stop, do not limp.
func (t *task) to(next taskState) {
	if !slices.Contains(moves[t.state], next) {
		panic(fmt.Errorf("%w: task %v: no move from %v to %v", kafka.ErrIllegalState, t.id, t.state, next))
	}
	t.life.tasks.WithLabelValues(t.state.String()).Dec()
	if next != closed {
		t.life.tasks.WithLabelValues(next.String()).Inc()
	}
	t.state = next
	t.blind = next == passing
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
func (t *judge) process(j *judging, records []*kgo.Record) error {
	j.now = t.rt.Clock.Now()
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
		if t.repartitioned {
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
		if t.blind {
			t.passedUpTo(rec.Offset + 1)
		} else {
			t.open.Next, t.open.Epoch = rec.Offset+1, rec.LeaderEpoch
		}
	}
	return nil
}

// touch takes the task into the open transaction.
func (t *judge) touch() {
	if !t.inTransaction {
		t.inTransaction, t.joinedAt = true, t.rt.Clock.Now()
		t.open = t.committed
		if t.blind {
			t.open.Bypassed, t.open.DeadLettered = slices.Clone(t.open.Bypassed), slices.Clone(t.open.DeadLettered)
			return
		}
		t.counts.CopyTo(&t.openCounts)
	}
}

// processHop judges a record that came through the router.
func (t *judge) processHop(j *judging, rec *kgo.Record) error {
	var env wire.Envelope
	if err := wire.ReadEnvelope(rec, &env); err != nil {
		return fmt.Errorf("%w: %w", kafka.ErrIllegalState, err)
	}
	route := t.rt.ByName[string(env.Route)]
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
		ev.from = t.rt.PositionOf(rec)
	}
	switch {
	case env.Outcome != nil && t.blind:
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
func (t *judge) processKeyed(j *judging, rec *kgo.Record) error {
	in := wire.InputOf(rec)
	derived := t.derive(j.deriver, &in)
	route := t.rt.Routes[derived.Route.Index]
	ev := event{
		original: original{
			rec: rec, headers: rec.Headers, timestamp: in.Timestamp,
			from: t.rt.PositionOf(rec),
		},
		route:   route,
		present: j.presentOf(rec),
		ask:     route.Asked(rec),
	}
	switch {
	case t.leaves(route, rec.Offset):
		return nil
	case derived.Finding != rules.Keyed:
		if !t.passedBefore(route.Class, rec.Offset) {
			j.turnAway(&ev, &derived)
		}
		return nil
	}
	ev.key, ev.Details = &derived.Key, wire.DetailsOf(&derived)
	return t.judge(j, &ev, derived.Digest, derived.Time)
}

// derive is Deriver.Derive, timed for the records that are timed.
func (t *judge) derive(deriver *rules.Deriver, in *rules.Input) rules.Derived {
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
func (t *judge) lookUp(ev *event, decided *dedup.Event, streamTime int64) (dedup.Row, bool, error) {
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
	prior, held := decided.Prior(own, held, beside, ev.route.NearStep, ev.route.Span, streamTime)
	return prior, held, nil
}

// judge is the decision: admit by time, look up, decide, emit, record.
func (t *judge) judge(j *judging, ev *event, digest dedup.Digest, eventTime int64) error {
	route := ev.route
	streamTime := t.streamTime(route.Class)
	told := eventTime
	verdict, eventTime := route.Span.Admit(told, streamTime, ev.present)
	decided := dedup.Event{Digest: digest, Time: eventTime, At: ev.from, Class: route.Class, Fingerprint: ev.Fingerprint}
	if ev.HasAdjacent {
		decided.Shift = ev.Shift + told - eventTime // which may have been clamped
	}
	before := t.passedBefore(route.Class, ev.rec.Offset)
	switch {
	case before && (verdict != dedup.Unique || t.open.IsDeadLettered(ev.rec.Offset)):
		return nil // which was said then
	case verdict == dedup.Invalid:
		if t.blind {
			t.open.DeadLetter(ev.rec.Offset, ev.rec.Offset+1) // its time may have come when it is met again
		}
		ev.verdict = verdict
		ev.reason = fmt.Sprintf("event time %d is more than %v ahead of the broker's %d", eventTime, route.Skew, ev.present)
		j.byPolicy(ev, rules.DeadLetter)
		return nil
	case verdict == dedup.Late:
		t.turnLate(j, ev, eventTime, streamTime)
		return nil
	case t.blind:
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
	t.open.StreamTimes.At[route.Class] = dedup.NextStreamTime(streamTime, eventTime)
	t.open.StreamTimes.Has[route.Class] = true
	t.openCounts.Advance(route.Class, t.open.StreamTimes.At[route.Class])
	if !before {
		t.openCounts.CountLookup(route.Class, ev.verdict)
	}
	return nil
}

// decide judges an event of plain deduplication.
func (t *judge) decide(j *judging, ev *event, decided *dedup.Event, prior *dedup.Row, held bool, streamTime int64) error {
	route := ev.route
	verdict, row := dedup.Decide(*decided, *prior, held, route.Span, streamTime)
	switch verdict {
	case dedup.Unique, dedup.AfterWindow:
		stood := standing(route, prior, held, streamTime)
		if stood == nil && t.overLimit(route) {
			t.turnLimited(j, ev)
			break
		}
		ev.verdict = verdict
		if j.emit(ev, route.Output) {
			t.record(j, &row)
			t.openCounts.ReplaceRow(&row, stood)
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

func (t *judge) streamTime(class uint8) int64 { return t.open.StreamTimes.Of(class) }

// record puts a row into the overlay and into the changelog.
func (t *judge) record(j *judging, row *dedup.Row) {
	t.store.Put(*row)
	key := j.bytes.take(len(row.Digest))
	copy(key, row.Digest[:])
	t.value = row.AppendValue(t.value[:0])
	t.produceRow(j.emitter, key, t.value)
}

// produceRow produces a changelog record; value is copied.
func (t *judge) produceRow(e *emitter, key, value []byte, headers ...kgo.RecordHeader) *kgo.Record {
	r := e.newRecord()
	r.Topic, r.Partition, r.Key, r.Headers = t.changelog, t.id.Partition, key, headers
	r.Value = e.bytes.take(len(value))
	copy(r.Value, value)
	e.produce(r)
	return r
}

// seal ends the task's part of the open transaction with its checkpoint row.
func (t *judge) seal(e *emitter) {
	t.open.Sequence++
	if !t.blind {
		t.open.Counts, t.open.Counted = t.openCounts.Encode(), true
		t.open.DropBypassed()
	}
	t.value = t.open.Append(t.value[:0])
	var headers []kgo.RecordHeader
	if len(t.rt.Outcomes) > 0 {
		headers = []kgo.RecordHeader{{Key: wire.HeaderLease, Value: fmt.Appendf(nil, "%d %d", t.joinedAt, t.startedAt)}}
	}
	t.checkpointRecord = t.produceRow(e, []byte(wire.CheckpointKey), t.value, headers...)
}

// errNoOffset says that the broker has the checkpoint row but did not say
// where: it answers so when it recognises a batch that was sent twice.
var errNoOffset = errors.New("offset of the checkpoint row is not known")

// commit applies the transaction to the store: only now, when it is known to
// be committed, and as one step with the position behind its last row.
func (t *judge) commit() error {
	if t.blind {
		t.committed, t.inTransaction, t.checkpointRecord = t.open, false, nil
		return nil // the store reads it in the changelog
	}
	position := t.checkpointRecord.Offset + 1
	if position <= t.store.Position() {
		return fmt.Errorf("%w: changelog row of %v at offset %d, the store is at %d", errNoOffset, t.id, t.checkpointRecord.Offset, t.store.Position())
	}
	t.committed, t.inTransaction, t.checkpointRecord = t.open, false, nil
	t.counts, t.openCounts = t.openCounts, t.counts
	if err := t.store.Apply(position, t.committed.Append(nil)); err != nil {
		return fmt.Errorf("apply to the store of %v: %w", t.id, err)
	}
	t.store.EvictBefore(t.horizons())
	return nil
}

// discard forgets the open transaction.
func (t *judge) discard() {
	if t.store != nil {
		t.store.Discard()
	}
	t.open, t.inTransaction, t.checkpointRecord = t.committed, false, nil
}

// horizons returns, by class, the first-seen time below which no event can be
// judged against a row any more. A class without a route keeps its rows.
func (t *judge) horizons() [256]int64 {
	var before [256]int64
	for class := range before {
		before[class] = math.MinInt64
	}
	for _, r := range t.rt.Routes {
		if t.committed.StreamTimes.Has[r.Class] {
			before[r.Class] = r.Span.Horizon(t.committed.StreamTimes.At[r.Class])
		}
	}
	return before
}

// close gives the store up. Rows not flushed yet come back from the changelog.
func (t *task) close() error {
	t.dropDetour()
	if t.restore != nil {
		t.restore.Stop()
		t.store, t.restore = t.restore.Store, nil
	}
	t.to(closed)
	partition := strconv.Itoa(int(t.id.Partition))
	t.life.lag.DeleteLabelValues(t.id.Topic, partition)
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

// startRestore moves the task to restoring.
func (t *task) startRestore(ctx context.Context, src *restore.Source, finished func()) {
	if t.state != restoring {
		t.to(restoring)
	}
	t.restore = restore.Start(ctx, src, t.id, t.log, t.store, t.broken, finished)
	t.store, t.broken = nil, nil
}

func (t *task) showLag() {
	t.life.lag.WithLabelValues(t.id.Topic, strconv.Itoa(int(t.id.Partition))).Set(float64(t.lag()))
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

// standing returns the row that was looked up if it still speaks for its key,
// so that an event's own would take its place; nil if the key is new.
func standing(r *app.Route, prior *dedup.Row, held bool, streamTime int64) *dedup.Row {
	if held && r.Span.Stands(prior, streamTime) {
		return prior
	}
	return nil
}
