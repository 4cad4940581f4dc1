package judge

import (
	"errors"
	"fmt"
	"log/slog"
	"slices"

	"github.com/twmb/franz-go/pkg/kgo"

	"oncebus/dedup"
	"oncebus/processor/app"
	"oncebus/processor/wire"
	"oncebus/state"
)

// State has the stored rows, the checkpoint and the key counts of one partition, as of
// the last committed transaction and as of the open one.
type State struct {
	ID        app.TaskID
	Changelog string
	App       *app.App

	Store *state.Store
	// Blind reports that the store cannot be used. Events of routes that fail open
	// are then forwarded unchecked; all others are judged after the restore.
	Blind bool

	// Committed is the checkpoint of the last committed transaction, Open
	// that of the open one. Invariant: Committed.Next <= Open.Next.
	Committed, Open wire.Checkpoint
	InTransaction   bool // the open transaction has work of this task
	// joinedAt is when the task joined the open transaction, StartedAt when the
	// task began to judge; broker time, ms.
	joinedAt, StartedAt int64
	// SteppedAt is when the task noticed that broker time went ahead by a step, ms; 0 for
	// none since the last one that a progress record showed.
	SteppedAt          int64
	Counts, OpenCounts app.Counts // as of Committed, and of Open
	// Waiting has the claims with requests that wait; nil before the restore.
	Waiting *app.Waiting
	// CheckpointRecord is the checkpoint row of the open transaction, its last row.
	CheckpointRecord *kgo.Record
	value            []byte // buffer for encoded rows; at last the checkpoint
	senders, tenants []byte // buffers for the changes of the senders, and of the tenants
	// written is as of Committed, openWritten as of Open.
	written, openWritten written

	joins joins
	packs packs
	seeds seeds
	sweep sweep
	lines [lineKinds]app.SampledLine
	// sweepRefused reports that a sweep cannot write a row.
	sweepRefused bool
	// owned has the namespace ids whose sources the open transaction has copied, so that it may
	// change them.
	owned [256]bool
	// counted has the namespace ids whose stream time the open transaction has moved to the least of the
	// sources while their counts held. Else an old count may have kept it back, and not a source.
	counted [256]bool
	// returned has, by the ids of namespaces without a route in force, the time of app.App.RetiredUntil
	// once an event was stored after it.
	returned [256]int64
	// placed has the place of each namespace's sources in the open checkpoint plus 1; 0 without any.
	placed [256]int16
	// SweepAfter replaces the constant of that name in tests; 0 for the constant.
	SweepAfter int64
	// JoinsMax replaces the constant of that name in tests; 0 for the constant.
	JoinsMax int
	Log      *slog.Logger
}

// JoinTransaction copies the checkpoint, so that Discard can restore it.
func (t *State) JoinTransaction() {
	if !t.InTransaction {
		t.InTransaction, t.joinedAt = true, t.App.Clock.Now()
		t.Open = t.Committed
		t.Open.Closed = 0 // the switch for which it was closed is aborted
		t.Open.Ahead = slices.Clone(t.Open.Ahead)
		t.joinSet()
		t.joinSources()
		if t.SteppedAt > max(t.Open.SteppedAt, t.Open.ProgressAt) {
			t.Open.SteppedAt = t.SteppedAt
		}
		if t.Blind {
			t.Open.Bypassed, t.Open.DeadLettered = slices.Clone(t.Open.Bypassed), slices.Clone(t.Open.DeadLettered)
		}
	}
}

func (t *State) streamTime(namespaceID uint8) int64 {
	return t.Open.StreamTimes.Of(namespaceID)
}

// change is a row to store, with its effect on the counts of keys.
type change struct {
	row      *dedup.Row
	replaced *dedup.Row   // the row that it replaces; nil for a new key
	left     int          // requests that no longer wait for the outcome of replaced
	joined   int          // requests that begin to wait for the outcome of row
	claim    *dedup.Claim // that of row, in claim mode
}

// put stores a row: in the store, in the changelog and in the counts of keys.
func (t *State) put(e *Emitter, c *change) {
	t.Store.Put(*c.row)
	if c.claim != nil && t.Waiting != nil {
		t.Waiting.Note(c.row, c.claim)
	}
	switch {
	case t.App.Packed[c.row.NamespaceID] && c.row.Packs():
		t.packRow(e, c.row)
	case t.App.Packed[c.row.NamespaceID]: // an erased row, which follows those of the pack
		t.sendPack(e)
		t.singleRow(e, c.row)
	default:
		t.singleRow(e, c.row)
	}
	t.Open.Rows++
	t.OpenCounts.Replace(c.row, c.replaced)
	if c.replaced != nil {
		t.OpenCounts.AddWaiting(c.replaced, -c.left)
	}
	t.OpenCounts.AddWaiting(c.row, c.joined)
}

// singleRow produces a row as a changelog record of its own.
func (t *State) singleRow(e *Emitter, row *dedup.Row, headers ...kgo.RecordHeader) {
	key := e.bytes.take(len(row.Digest))
	copy(key, row.Digest[:])
	t.value = row.AppendValue(t.value[:0])
	t.produceRow(e, key, t.value, headers...)
}

// produceRow produces a changelog record; value is copied.
func (t *State) produceRow(e *Emitter, key, value []byte, headers ...kgo.RecordHeader) *kgo.Record {
	r := e.NewRecord()
	r.Topic, r.Partition, r.Key, r.Headers = t.Changelog, t.ID.Partition, key, headers
	r.Value = e.bytes.take(len(value))
	copy(r.Value, value)
	e.produce(r, dedup.Position{})
	return r
}

// WriteCheckpoint produces the rows that are left, and then the checkpoint row, the
// task's last row in the open transaction.
func (t *State) WriteCheckpoint(e *Emitter) {
	t.writeAllJoined(e)
	t.sendPack(e)
	t.writeSeedCounts(e)
	t.Open.Sequence++
	if !t.Blind {
		t.Open.Counts, t.Open.Counted, t.Open.Senders, t.Open.Tenants = "", false, nil, nil // they are in OpenCounts
		t.Open.DropBypassed()
		t.Open.DropAhead()
		t.dropWhole()
		t.setFences()
		t.sweepIfLong()
	}
	t.encodeCheckpoint()
	var headers []kgo.RecordHeader
	if len(t.App.Outcomes) > 0 {
		headers = []kgo.RecordHeader{{Key: wire.HeaderLease, Value: fmt.Appendf(nil, "%d %d", t.joinedAt, t.StartedAt)}}
	}
	t.CheckpointRecord = t.produceRow(e, wire.AppendCheckpointKey(nil, t.openWritten.number), t.value, headers...)
}

// ErrNoOffset reports that the broker stored the checkpoint row and returned no offset,
// as it does for a batch that it received twice.
var ErrNoOffset = errors.New("the broker returned no offset for the checkpoint row")

// Commit applies the committed transaction to the store, in one step with the position
// after it. The checkpoint row is its last one, and its commit marker follows: a further
// owner of the task writes only after it has read this marker. So a store that is not
// behind has the changelog's end as its position, and nothing is missing if all before
// is deleted. Errors wrap ErrNoOffset, or are those of the store.
func (t *State) Commit() error {
	if t.Blind {
		t.commitCheckpoint(t.CheckpointRecord.Offset)
		t.Committed, t.InTransaction, t.CheckpointRecord = t.Open, false, nil
		return nil // a restore reads the checkpoint from the changelog
	}
	position := t.CheckpointRecord.Offset + 2
	if t.CheckpointRecord.Offset < t.Store.Position() {
		return fmt.Errorf("%w: %v has offset %d, the store is at %d", ErrNoOffset, t.ID, t.CheckpointRecord.Offset, t.Store.Position())
	}
	t.commitCheckpoint(t.CheckpointRecord.Offset)
	t.Committed, t.InTransaction, t.CheckpointRecord = t.Open, false, nil
	t.Counts.Commit(&t.OpenCounts)
	if err := t.store(position); err != nil {
		return fmt.Errorf("apply to the store of %v: %w", t.ID, err)
	}
	if t.Waiting != nil {
		t.Waiting.Commit()
	}
	t.commitSweep()
	t.discardPacks()
	t.discardSeeds()
	t.LogOmitted(false)
	t.Store.EvictBefore(t.App.Horizons(&t.Committed))
	return nil
}

// Discard drops the open transaction.
func (t *State) Discard() {
	if t.Store != nil {
		t.Store.Discard()
	}
	t.Open, t.InTransaction, t.CheckpointRecord = t.Committed, false, nil
	t.Counts.Discard(&t.OpenCounts)
	if t.Waiting != nil {
		t.Waiting.Discard()
	}
	t.discardSweep()
	t.discardJoins()
	t.discardPacks()
	t.discardSeeds()
}

// waitingMax is how many requests of a namespace may wait for an outcome in one
// partition, those of dispatched events included. Further duplicates get in_progress
// at once.
const waitingMax = 64 << 10

// mayWait reports whether one more request of a route may wait for an outcome.
func (t *State) mayWait(route *app.Route) bool {
	return t.OpenCounts.Waiting(route.NamespaceID) < waitingMax
}

// BypassedUpTo stores that the events of the namespaces that fail open were forwarded up
// to an offset.
func (t *State) BypassedUpTo(offset int64) {
	for _, id := range t.App.FailOpen[t.ID.Topic] {
		at := slices.IndexFunc(t.Open.Bypassed, func(p wire.BypassedOffset) bool { return p.NamespaceID == id })
		if at < 0 {
			t.Open.Bypassed = append(t.Open.Bypassed, wire.BypassedOffset{NamespaceID: id, To: offset})
			continue
		}
		t.Open.Bypassed[at].To = max(offset, t.Open.Bypassed[at].To)
	}
}
