package wire

import (
	"encoding/binary"
	"fmt"
	"math"

	"oncebus/dedup"
)

// Fold is the newest checkpoint of a changelog: the last whole checkpoint with the partial checkpoints
// after it applied. The zero Fold has no checkpoint.
type Fold struct {
	has    bool
	newest Checkpoint // if counts is set, newest.Counts is still that of the whole checkpoint
	// whole reports that newest has all fields. If false, a checkpoint before it is missing, and newest
	// has only the fields that a partial checkpoint states.
	whole  bool
	number uint32    // number of the newest partial checkpoint; 0 after a whole one
	counts keyCounts // counts of newest; nil if no partial checkpoint changed them
}

// Has reports whether the fold has a checkpoint.
func (f *Fold) Has() bool { return f.has }

// IsWhole reports whether the fold has a checkpoint and every checkpoint that it is relative to.
func (f *Fold) IsWhole() bool { return f.has && f.whole }

// Sequence returns the sequence of the newest checkpoint; 0 without a checkpoint.
func (f *Fold) Sequence() int64 { return f.newest.Sequence }

// Newest returns the newest checkpoint. If IsWhole is false, the result lacks stream times and counts. It then
// also lacks the fences and the progress, unless the transaction of that checkpoint changed them.
func (f *Fold) Newest() Checkpoint {
	c := f.newest
	if f.counts != nil {
		c.Counts = f.counts.encode()
	}
	return c
}

// Add adds the next checkpoint of the changelog. number is the number in its key: 0 for a whole
// checkpoint. Add ignores a partial checkpoint of a transaction that the fold already has. If a partial
// checkpoint does not follow the newest one, the fold is not whole from then on (hazard T18). The error
// wraps ErrCheckpoint.
func (f *Fold) Add(number uint32, value []byte) error {
	if number == 0 {
		c, err := DecodeCheckpoint(value)
		if err == nil {
			*f = Fold{has: true, newest: c, whole: true}
		}
		return err
	}
	p, err := decodePartial(value)
	switch {
	case err != nil:
		return err
	case f.has && p.small.Sequence <= f.newest.Sequence:
		return nil
	case !f.follows(number, p.small.Sequence):
		*f = Fold{has: true, newest: p.small, number: number}
		return nil
	}
	if err := f.apply(&p); err != nil {
		return fmt.Errorf("%w: transaction %d", err, p.small.Sequence)
	}
	f.number = number
	return nil
}

// follows reports whether a partial checkpoint with this number and sequence is relative to the newest
// checkpoint of the fold.
func (f *Fold) follows(number uint32, sequence int64) bool {
	return f.IsWhole() && sequence == f.newest.Sequence+1 && number == f.number+1
}

// apply applies a partial checkpoint to the newest checkpoint.
func (f *Fold) apply(p *partial) error {
	before := &f.newest
	c := p.small
	if p.marks&markFences == 0 {
		c.Fences = before.Fences
	}
	if p.marks&markClaims != 0 && p.marks&markProgress == 0 {
		c.Progress = before.Progress
	}
	c.Set, c.Known, c.Closed = before.Set, before.Known, before.Closed
	c.StreamTimes, c.Counts, c.Counted = before.StreamTimes, before.Counts, before.Counted
	if p.marks&markShadows == 0 {
		c.Shadows = before.Shadows
	}
	r := p.rest
	if c.Senders = before.Senders; len(p.senders) > 0 {
		c.applySenders(p.senders, &r)
	}
	if c.Tenants = before.Tenants; len(p.tenants) > 0 {
		c.applyTenants(p.tenants, &r)
	}
	if c.Sources = before.Sources; len(p.sources) > 0 {
		sources := dedup.NewCursor(p.sources)
		if c.Sources = applyChangedSources(&sources, before.Sources); !sources.Done() {
			r.Fail()
		}
	}
	for n := r.Uvarint(256); n > 0 && !r.Bad(); n-- {
		id := r.Byte()
		c.StreamTimes.At[id] += r.Varint()
		c.StreamTimes.Has[id] = true
	}
	if err := f.applyCounts(&r); err != nil {
		return err
	}
	if r.Bad() {
		return fmt.Errorf("%w: the changes of a partial checkpoint do not fit", ErrCheckpoint)
	}
	f.newest = c
	return nil
}

// applyCounts applies the rest of a partial checkpoint: the changes of the key counts.
func (f *Fold) applyCounts(r *dedup.Cursor) error {
	if r.Left() == 0 || r.Bad() {
		return nil
	}
	if f.counts == nil {
		counts, err := decodeKeyCounts(f.newest.Counts)
		if err != nil {
			return err
		}
		f.counts = counts
	}
	f.counts.apply(r)
	return nil
}

// AppendStored appends the next checkpoint of the changelog to what a local store keeps as its
// checkpoint. A whole checkpoint (number 0) replaces what is stored. The local store keeps the
// checkpoints as the changelog has them, so that storing a partial one costs only what it changes.
func AppendStored(stored []byte, number uint32, value []byte) []byte {
	if number == 0 {
		stored = stored[:0]
	}
	stored = binary.AppendUvarint(stored, uint64(len(value)))
	return append(stored, value...)
}

// Stored returns c in the form in which a local store keeps it.
func (c *Checkpoint) Stored() []byte { return AppendStored(nil, 0, c.Append(nil)) }

// ReadStored decodes what a local store keeps as its checkpoint; if b is empty, the store has none. The
// error wraps ErrCheckpoint.
func ReadStored(b []byte) (f Fold, err error) {
	r := dedup.NewCursor(b)
	for number := uint32(0); r.Left() > 0; number++ {
		value := r.Bytes(int(r.Uvarint(uint64(r.Left()))))
		if r.Bad() || number == math.MaxUint32 {
			return Fold{}, fmt.Errorf("%w: cut short in the local store", ErrCheckpoint)
		}
		if err := f.Add(number, value); err != nil {
			return Fold{}, err
		}
		if !f.IsWhole() {
			return Fold{}, fmt.Errorf("%w: one is missing in the local store", ErrCheckpoint)
		}
	}
	return f, nil
}
