package judge

import (
	"errors"
	"fmt"
	"math"
	"slices"

	"github.com/twmb/franz-go/pkg/kgo"

	"oncebus/dedup"
	"oncebus/processor/app"
	"oncebus/processor/wire"
	"oncebus/state"
)

// State is what the judge of one partition has stored: rows, checkpoint and counts
// of keys, of the last committed transaction and of the open one.
type State struct {
	ID        app.TaskID
	Changelog string
	App       *app.App

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
	value            []byte // scratch for encoded rows
}

// JoinTransaction takes the task into the open transaction.
func (t *State) JoinTransaction() {
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

func (t *State) streamTime(class uint8) int64 { return t.Open.StreamTimes.Of(class) }

// change is a row to store, with what it changes in the counts of keys.
type change struct {
	row      *dedup.Row
	replaced *dedup.Row // the row that it replaces; nil for a new key
	left     int        // requests that no longer wait for the outcome of replaced
	joined   int        // requests that begin to wait for the outcome of row
}

// put stores a row: in the overlay, in the changelog and in the counts of keys.
func (t *State) put(j *Judging, c *change) {
	t.Store.Put(*c.row)
	key := j.bytes.take(len(c.row.Digest))
	copy(key, c.row.Digest[:])
	t.value = c.row.AppendValue(t.value[:0])
	t.produceRow(j.Emitter, key, t.value)
	t.OpenCounts.Replace(c.row, c.replaced)
	if c.replaced != nil {
		t.OpenCounts.AddWaiting(c.replaced, -c.left)
	}
	t.OpenCounts.AddWaiting(c.row, c.joined)
}

// produceRow produces a changelog record; value is copied.
func (t *State) produceRow(e *Emitter, key, value []byte, headers ...kgo.RecordHeader) *kgo.Record {
	r := e.NewRecord()
	r.Topic, r.Partition, r.Key, r.Headers = t.Changelog, t.ID.Partition, key, headers
	r.Value = e.bytes.take(len(value))
	copy(r.Value, value)
	e.produce(r)
	return r
}

// WriteCheckpoint ends the task's part of the open transaction with its checkpoint row.
func (t *State) WriteCheckpoint(e *Emitter) {
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
func (t *State) Commit() error {
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
func (t *State) Discard() {
	if t.Store != nil {
		t.Store.Discard()
	}
	t.Open, t.InTransaction, t.CheckpointRecord = t.Committed, false, nil
}

// horizons returns, by class, the first-seen time below which no event can be
// judged against a row any more. A class without a route keeps its rows.
func (t *State) horizons() [256]int64 {
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

// waitingMax is how many requests of a namespace may wait in one partition,
// those of dispatched events included. A duplicate beyond it gets in_progress at once.
const waitingMax = 64 << 10

// overLimit reports whether an event's key is new and one too many.
func (t *State) overLimit(route *app.Route, c *candidate) bool {
	return c.replaced == nil && route.Limits.LiveKeys > 0 && t.OpenCounts.LiveKeys(route.NamespaceID) >= uint64(route.Limits.LiveKeys)
}

// mayWait reports whether one more request of a route may wait.
func (t *State) mayWait(route *app.Route) bool {
	return t.OpenCounts.Waiting(route.NamespaceID) < waitingMax
}

// BypassedUpTo notes that the events of fail-open classes are out up to an offset.
func (t *State) BypassedUpTo(offset int64) {
	for _, class := range t.App.FailOpen[t.ID.Topic] {
		at := slices.IndexFunc(t.Open.Bypassed, func(p wire.BypassedOffset) bool { return p.Class == class })
		if at < 0 {
			t.Open.Bypassed = append(t.Open.Bypassed, wire.BypassedOffset{Class: class, To: offset})
			continue
		}
		t.Open.Bypassed[at].To = max(offset, t.Open.Bypassed[at].To)
	}
}
