package restore

import (
	"oncebus/dedup"
	"oncebus/processor/app"
	"oncebus/processor/kafka"
	"oncebus/processor/wire"
)

// addCheckpoint adds a checkpoint of the changelog to the fold. stored is what the store contains of checkpoints
// so far; the result is what it shall contain after this checkpoint.
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

// keepsUp reports whether the store gets each checkpoint that the restore reads, together with the changelog
// position after it. The store gets no checkpoint while the changelog alone is not the whole state, or lacks a
// checkpoint. The reason is that the restore may be interrupted then: the next restore must start from the same
// facts, so that it decides the same (hazard T18).
func (r *Restore) keepsUp() bool {
	return r.accepted == nil && (r.base == nil || !r.base.Incomplete) && (!r.fold.Has() || r.fold.IsWhole())
}

// encode returns the restored checkpoint in the form in which the store keeps it; kept is what the store
// contains already. If kept already is that checkpoint, encode does not rewrite it: it stays in the form of the
// changelog, a whole checkpoint and partial ones. Example (hazard T21): this process loses the task before it
// has written anything. The former owner never noticed that it had lost the task, and writes further partial
// checkpoints. The next restore of this store recognises them by their numbers, which follow those in the store;
// a rewritten checkpoint would not have the numbers. While keepsUp is true, the store contains exactly the fold.
func (r *Restore) encode(kept []byte) []byte {
	if r.fold.Has() && r.fold.Sequence() == r.Checkpoint.Sequence && r.keepsUp() {
		return kept
	}
	return r.Checkpoint.Stored()
}

// newest returns the newest checkpoint of the store and of what the restore has read; nil for none. If
// that is a partial checkpoint whose predecessor is missing, it returns an operator error, unless the
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

// newer returns the newer checkpoint of c and base: base, unless base is nil or before c.
func newer(c, base *wire.Checkpoint) *wire.Checkpoint {
	if base != nil && base.Sequence >= c.Sequence {
		return base
	}
	return c
}

// firstSeen has, by namespace id, the latest First (the event time of a key's first event) of rows, in
// ms.
type firstSeen struct {
	at  [256]int64
	has [256]bool
}

func (s *firstSeen) note(row *dedup.Row) {
	if id := row.NamespaceID; !s.has[id] || row.First > s.at[id] {
		s.at[id], s.has[id] = row.First, true
	}
}

// raise stores in a checkpoint those times of rows that are later than the checkpoint's stream time. Otherwise a
// fence would not cover these rows.
func (s *firstSeen) raise(c *wire.Checkpoint) {
	for id, has := range s.has {
		if has && s.at[id] > c.StreamTimes.Of(uint8(id)) {
			c.SetAhead(uint8(id), s.at[id])
		}
	}
}
