package judge

import (
	"slices"

	"oncebus/processor/wire"
)

// written describes which checkpoints a task has in the changelog, as of one transaction. A whole
// checkpoint has all fields; a partial checkpoint has only the fields that its transaction changed.
// Thanks to partial checkpoints, the changelog grows with the number of events, not of namespaces.
type written struct {
	// number counts the partial checkpoints since the last whole one, bytes is their total size, and
	// wholeBytes is the size of the whole checkpoint. All are 0 before the first whole checkpoint.
	number            uint32
	bytes, wholeBytes int
	// wholeAt is the changelog offset of the whole checkpoint, or a lower offset if it is not known
	// exactly.
	wholeAt int64
}

// partialFactor is how many times the size of the whole checkpoint its partial checkpoints may reach
// before the next whole one is due. A higher factor saves bytes in the changelog, but a reader of the
// newest checkpoint has to read more.
const partialFactor = 8

// checkpointsMax bounds the total size of the whole checkpoint and its partial ones, in bytes, because
// the local store keeps all of them.
const checkpointsMax = 3 << 20

// GoOn makes the task continue from checkpoint c. The next checkpoint that the task writes is a whole one. A
// partial one would be relative to c, which may not be in the changelog.
func (t *State) GoOn(c *wire.Checkpoint) {
	t.Committed = *c
	t.Open, t.InTransaction, t.CheckpointRecord = t.Committed, false, nil
	t.written = written{wholeAt: c.Floor} // a new floor is always written with a whole checkpoint, which lies above the floor
	t.openWritten = t.written
}

// wholeDue reports whether the checkpoint of the open transaction must be a whole one. There are three kinds of
// reasons: the partial checkpoints have grown too large; a field changed that a partial checkpoint does not
// carry (Set, Known, Closed, other sources); or an invariant needs a whole checkpoint, in these two cases:
//
//   - The floor moves. With a whole checkpoint after it, a changelog that is trimmed to its floor still
//     contains a whole checkpoint (T19).
//   - A bypass. The restore that runs meanwhile may end, and store the checkpoint that it read as a whole
//     one. A partial checkpoint of the bypass would be relative to a different checkpoint (T20).
func (t *State) wholeDue() bool {
	w := &t.written
	return t.Blind || w.wholeBytes == 0 || w.bytes >= partialFactor*w.wholeBytes || w.bytes+w.wholeBytes > checkpointsMax ||
		t.Open.Floor != t.Committed.Floor || t.Open.Incomplete != t.Committed.Incomplete || t.Open.Generation != t.Committed.Generation ||
		t.Open.Set != t.Committed.Set || !slices.Equal(t.Open.Known, t.Committed.Known) || t.Open.Closed != t.Committed.Closed ||
		!t.Open.SameSources(&t.Committed)
}

// floorSlack is the size, in bytes, up to which a whole checkpoint is so cheap that the floor may move at any
// time.
const floorSlack = 1 << 10

// floorMayMove reports whether moving the floor is worth the whole checkpoint that each move requires. With
// short windows the floor could move every few seconds. To leave the floor unchanged is always safe.
func (t *State) floorMayMove() bool { return t.written.wholeBytes <= t.written.bytes+floorSlack }

// encodeCheckpoint encodes the checkpoint of the open transaction into t.value. A partial checkpoint is
// relative to the last committed checkpoint.
func (t *State) encodeCheckpoint() {
	if t.wholeDue() {
		c := t.Open
		if !t.Blind {
			c.Counts, c.Counted = t.OpenCounts.Encode(), true
			c.Senders, c.Tenants = t.OpenCounts.Senders(), t.OpenCounts.Tenants()
		}
		t.value = c.Append(t.value[:0])
		t.openWritten = written{wholeBytes: len(t.value)}
		return
	}
	t.senders = t.OpenCounts.AppendSenders(t.senders[:0])
	t.tenants = t.OpenCounts.AppendTenants(t.tenants[:0])
	t.value = t.Open.AppendPartial(t.value[:0], &t.Committed, t.senders, t.tenants)
	if !t.Blind {
		t.value = t.Counts.AppendChanges(t.value, &t.OpenCounts)
	}
	t.openWritten = t.written
	t.openWritten.number++
	t.openWritten.bytes += len(t.value)
}

// commitCheckpoint records that the checkpoint of the open transaction was committed at offset.
func (t *State) commitCheckpoint(offset int64) {
	t.written = t.openWritten
	if t.written.number == 0 {
		t.written.wholeAt = offset
	}
}

// store applies the committed transaction to the store. The store keeps the same checkpoints as the
// changelog: the newest whole one and every partial one after it.
func (t *State) store(position int64) error {
	value := wire.AppendStored(nil, t.written.number, t.value)
	if t.written.number == 0 {
		return t.Store.Apply(position, value)
	}
	return t.Store.ApplyMore(position, value)
}
