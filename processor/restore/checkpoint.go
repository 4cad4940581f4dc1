package restore

import (
	"oncebus/dedup"
	"oncebus/processor/app"
	"oncebus/processor/kafka"
	"oncebus/processor/wire"
)

// addCheckpoint adds a checkpoint of the changelog to the fold, and returns what the store
// has of checkpoints after it.
func (r *Restore) addCheckpoint(stored []byte, number uint32, value []byte) ([]byte, error) {
	before := r.fold.Sequence()
	if err := r.fold.Add(number, value); err != nil {
		return nil, err
	}
	if r.keepsUp() && (number == 0 || r.fold.Sequence() > before) {
		stored = wire.AppendStored(stored, number, value)
	}
	return stored, nil
}

// checkCounts returns an error if the counts of a whole checkpoint cannot be read.
func checkCounts(a *app.App, fold *wire.Fold) error {
	c, counts := fold.Newest(), app.NewCounts(a)
	_, err := counts.Decode(&c, a.Set)
	return err
}

// keepsUp reports whether the store gets each checkpoint that the restore reads, with the
// position after it. It gets none while the changelog alone is not the whole state, or lacks
// a checkpoint: if the restore is interrupted, the next one must decide the same.
func (r *Restore) keepsUp() bool {
	return r.accepted == nil && (r.base == nil || !r.base.Incomplete) && (!r.fold.Has() || r.fold.IsWhole())
}

// encode returns the restored checkpoint for the store, which has kept. If kept is that
// checkpoint, it stays as the changelog has it: the former owner may go on with partial
// checkpoints, when this one loses the task before it has written, and the next restore
// finds them by their numbers. While the store keeps up, what it has is the fold.
func (r *Restore) encode(kept []byte) []byte {
	if r.fold.Has() && r.fold.Sequence() == r.Checkpoint.Sequence && r.keepsUp() {
		return kept
	}
	return r.Checkpoint.Stored()
}

// newest returns the newest checkpoint of the store and of what the restore has read, nil
// for none. A partial one that is relative to a missing one is an operator error, unless the
// operator chose the local store.
func (r *Restore) newest() (*wire.Checkpoint, error) {
	switch {
	case !r.fold.Has() && r.logged == nil:
		return r.base, nil
	case !r.fold.Has():
		return newer(r.logged, r.base), nil
	}
	c := r.fold.Newest()
	switch {
	case r.fold.IsWhole(), r.base != nil && r.base.Sequence >= c.Sequence:
		return newer(&c, r.base), nil
	case r.accepted == nil || r.accepted.Way != app.BelieveLocal || r.base == nil:
		return nil, kafka.OperatorErrorf("changelog %s/%d: the checkpoint of transaction %d is relative to one that is missing; delete the local state of the task, and it is built again from the changelog",
			r.changelog, r.id.Partition, c.Sequence)
	}
	c.StreamTimes, c.Fences, c.Senders, c.Tenants = r.base.StreamTimes, nil, r.base.Senders, r.base.Tenants
	r.firsts.raise(&c)
	return &c, nil
}

// newer returns base, unless it is nil or before c.
func newer(c, base *wire.Checkpoint) *wire.Checkpoint {
	if base != nil && base.Sequence >= c.Sequence {
		return base
	}
	return c
}

// firstSeen is the latest first seen time of rows by namespace id, in ms.
type firstSeen struct {
	at  [256]int64
	has [256]bool
}

func (s *firstSeen) note(row *dedup.Row) {
	if id := row.NamespaceID; !s.has[id] || row.First > s.at[id] {
		s.at[id], s.has[id] = row.First, true
	}
}

// raise notes in a checkpoint the rows that were first seen after the stream time that it
// knows of. Else a fence would omit them.
func (s *firstSeen) raise(c *wire.Checkpoint) {
	for id, has := range s.has {
		if has && s.at[id] > c.StreamTimes.Of(uint8(id)) {
			c.SetAhead(uint8(id), s.at[id])
		}
	}
}
