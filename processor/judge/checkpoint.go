package judge

import (
	"slices"

	"oncebus/processor/wire"
)

// written is what a task wrote of checkpoints, as of a transaction. A whole checkpoint has
// all fields, a partial one those that its transaction changed. So the changelog grows with
// the events, not with the namespaces.
type written struct {
	// number counts the partial checkpoints since the whole one, bytes their bytes, and
	// wholeBytes are those of the whole one. They are 0 before the first whole one.
	number            uint32
	bytes, wholeBytes int
	// wholeAt is the changelog offset of the whole one, or less.
	wholeAt int64
}

// partialFactor is how many times the bytes of the whole checkpoint the partial ones after
// it may have. A higher one saves bytes of the changelog, and lengthens what a reader of the
// newest checkpoint reads.
const partialFactor = 8

// checkpointsMax bounds the bytes of the whole checkpoint and of the partial ones after it,
// all of which the local store has.
const checkpointsMax = 3 << 20

// GoOn lets the task go on from a checkpoint. The next one that it writes is whole, as what
// it is relative to may not be in the changelog.
func (t *State) GoOn(c *wire.Checkpoint) {
	t.Committed = *c
	t.Open, t.InTransaction, t.CheckpointRecord = t.Committed, false, nil
	t.written = written{wholeAt: c.Floor} // a floor comes with a whole checkpoint above it
	t.openWritten = t.written
}

// wholeDue reports whether the checkpoint of the open transaction must be whole. That of a
// new floor must be, so that a changelog that begins at its floor or before always has one.
// Those of a bypass must be, as a restore that ends meanwhile stores what it read as a whole
// one. Nothing that follows may be relative to another than that.
func (t *State) wholeDue() bool {
	w := &t.written
	return t.Blind || w.wholeBytes == 0 || w.bytes >= partialFactor*w.wholeBytes || w.bytes+w.wholeBytes > checkpointsMax ||
		t.Open.Floor != t.Committed.Floor || t.Open.Incomplete != t.Committed.Incomplete || t.Open.Generation != t.Committed.Generation ||
		t.Open.Set != t.Committed.Set || !slices.Equal(t.Open.Known, t.Committed.Known) || t.Open.Closed != t.Committed.Closed ||
		!t.Open.SameSources(&t.Committed)
}

// floorSlack is the bytes of a whole checkpoint that a new floor may always cost.
const floorSlack = 1 << 10

// floorMayMove reports whether a whole checkpoint for a new floor is worth its bytes. With
// short windows the floor could move every few seconds. It may always stay for longer.
func (t *State) floorMayMove() bool { return t.written.wholeBytes <= t.written.bytes+floorSlack }

// encodeCheckpoint encodes the checkpoint of the open transaction into t.value. A partial
// one is relative to the last committed one.
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

// commitCheckpoint notes that the checkpoint of the open transaction was committed.
func (t *State) commitCheckpoint(offset int64) {
	t.written = t.openWritten
	if t.written.number == 0 {
		t.written.wholeAt = offset
	}
}

// store applies the committed transaction to the store. The store has the checkpoints that
// the changelog has from the newest whole one on.
func (t *State) store(position int64) error {
	value := wire.AppendStored(nil, t.written.number, t.value)
	if t.written.number == 0 {
		return t.Store.Apply(position, value)
	}
	return t.Store.ApplyMore(position, value)
}
