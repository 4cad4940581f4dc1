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

// State has the stored rows, the checkpoint and the key counts of one partition, both as of the last
// committed transaction and as of the open one.
type State struct {
	ID        app.TaskID
	Changelog string
	App       *app.App

	Store *state.Store
	// Blind reports that the store cannot be used. Events of routes that fail open are then forwarded
	// unchecked (a bypass); all other events are judged after the restore.
	Blind bool

	// Committed is the checkpoint of the last committed transaction, Open is the checkpoint of the open
	// transaction. Invariant: Committed.Next <= Open.Next.
	Committed, Open wire.Checkpoint
	InTransaction   bool // the open transaction contains work of this task
	// joinedAt is when the task joined the open transaction, StartedAt is when the task began to judge;
	// both in broker time, ms.
	joinedAt, StartedAt int64
	// SteppedAt is when the task noticed that broker time had jumped ahead, ms; 0 if there was no jump
	// since the last jump that a progress record showed.
	SteppedAt          int64
	Counts, OpenCounts app.Counts // Counts belongs to Committed, OpenCounts to Open
	// Waiting has the claims for whose outcome requests wait; nil before the restore.
	Waiting *app.Waiting
	// CheckpointRecord is the checkpoint row of the open transaction, the last row that the task
	// produces in it.
	CheckpointRecord *kgo.Record
	value            []byte // buffer for encoded rows; after WriteCheckpoint it holds the encoded checkpoint
	senders, tenants []byte // buffers for the changes of the sender counts and of the tenant counts
	// written describes the checkpoints in the changelog as of Committed, openWritten as of Open.
	written, openWritten written

	joins joins
	packs packs
	seeds seeds
	sweep sweep
	lines [lineKinds]app.SampledLine
	// sweepRefused reports that the changelog does not accept a row that a sweep must write again.
	sweepRefused bool
	// owned tells, by namespace id, whether the open transaction has copied the namespace's sources.
	// Only the copy may be changed, because Committed shares the original.
	owned [256]bool
	// counted tells, by namespace id, whether the open transaction has set the stream time to the least of the
	// sources' times while the count of the sources was valid. If not, an old count may be what kept stream time
	// back, and not a slow source.
	counted [256]bool
	// returned is for namespaces without a route in force, by namespace id. If an event was stored after the
	// time in app.App.RetiredUntil, it has the value of that time; otherwise 0.
	returned [256]int64
	// placed has, by namespace id, the index of the namespace's sources in the open checkpoint, plus 1;
	// 0 if the checkpoint has no sources of the namespace.
	placed [256]int16
	// SweepAfter replaces the constant of that name in tests; 0 means the constant.
	SweepAfter int64
	// JoinsMax replaces the constant joinsMax in tests; 0 means the constant.
	JoinsMax int
	Log      *slog.Logger
}

// JoinTransaction makes the task part of the open transaction, if it is not yet. It copies the
// committed checkpoint, so that Discard can return to it.
func (t *State) JoinTransaction() {
	if !t.InTransaction {
		t.InTransaction, t.joinedAt = true, t.App.Clock.Now()
		t.Open = t.Committed
		t.Open.Closed = 0 // the switch for which the committed checkpoint was closed has been aborted
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

// change is a row to store, with its effect on the key counts.
type change struct {
	row      *dedup.Row
	replaced *dedup.Row   // the stored row that row takes the place of; nil for a new key
	left     int          // requests that no longer wait for the outcome of replaced
	joined   int          // requests that begin to wait for the outcome of row
	claim    *dedup.Claim // claim of row, in claim mode
}

// put stores a row: in the local store, in the changelog and in the key counts.
func (t *State) put(e *Emitter, c *change) {
	t.Store.Put(*c.row)
	if c.claim != nil && t.Waiting != nil {
		t.Waiting.Note(c.row, c.claim)
	}
	switch {
	case t.App.Packed[c.row.NamespaceID] && c.row.Packs():
		t.packRow(e, c.row)
	case t.App.Packed[c.row.NamespaceID]: // an erased row: it must follow the rows of its key that the pack holds
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

// singleRow produces a row as a changelog record of its own, not in a pack.
func (t *State) singleRow(e *Emitter, row *dedup.Row, headers ...kgo.RecordHeader) {
	key := e.bytes.take(len(row.Digest))
	copy(key, row.Digest[:])
	t.value = row.AppendValue(t.value[:0])
	t.produceRow(e, key, t.value, headers...)
}

// produceRow produces a changelog record. It copies value, so the caller may use the buffer again.
func (t *State) produceRow(e *Emitter, key, value []byte, headers ...kgo.RecordHeader) *kgo.Record {
	r := e.NewRecord()
	r.Topic, r.Partition, r.Key, r.Headers = t.Changelog, t.ID.Partition, key, headers
	r.Value = e.bytes.take(len(value))
	copy(r.Value, value)
	e.produce(r, dedup.Position{})
	return r
}

// WriteCheckpoint produces the rows that the task still holds back (joined claims, the pack, seed
// counts), and then the checkpoint row, the task's last row in the open transaction.
func (t *State) WriteCheckpoint(e *Emitter) {
	t.writeAllJoined(e)
	t.sendPack(e)
	t.writeSeedCounts(e)
	t.Open.Sequence++
	if !t.Blind {
		t.Open.Counts, t.Open.Counted, t.Open.Senders, t.Open.Tenants = "", false, nil, nil // encodeCheckpoint takes them from OpenCounts
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

// ErrNoOffset reports that the broker stored the checkpoint row but returned no offset for it. A broker does so
// if it receives a batch twice.
var ErrNoOffset = errors.New("the broker returned no offset for the checkpoint row")

// Commit applies the committed transaction to the store, in one step with the changelog position after the
// transaction. That position is the offset of the checkpoint row plus 2: the checkpoint row is the last row of
// the transaction, and the commit marker follows it. The next owner of the task writes only after it has read
// this marker. So the position of an up-to-date store is the end of the changelog, and the store lacks nothing
// even if everything before that position is deleted. Errors wrap ErrNoOffset or come from the store.
func (t *State) Commit() error {
	if t.Blind {
		t.commitCheckpoint(t.CheckpointRecord.Offset)
		t.Committed, t.InTransaction, t.CheckpointRecord = t.Open, false, nil
		return nil // the store cannot be used: a restore will read the checkpoint from the changelog
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

// Discard drops the open transaction and returns to the last committed one.
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

// waitingMax is how many requests of a namespace may wait for an outcome in one partition, including
// the requests of dispatched events. A duplicate beyond that number gets in_progress at once.
const waitingMax = 64 << 10

// mayWait reports whether another request of the route may wait for an outcome.
func (t *State) mayWait(route *app.Route) bool {
	return t.OpenCounts.Waiting(route.NamespaceID) < waitingMax
}

// BypassedUpTo records in the open checkpoint that a bypass handled every record below offset, for each
// namespace whose route fails open.
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
