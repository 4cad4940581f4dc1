package oracle

import (
	"bytes"
	"cmp"
	"fmt"
	"slices"
)

// storesOf returns the stores of a partition in the order of their positions.
func (c *check) storesOf(partition int32) []*Store {
	var stores []*Store
	for i := range c.h.Stores {
		if c.h.Stores[i].Partition == partition {
			stores = append(stores, &c.h.Stores[i])
		}
	}
	slices.SortStableFunc(stores, func(a, b *Store) int { return cmp.Compare(a.Position, b.Position) })
	return stores
}

// store compares a local store with the changelog below the store's position, which t has just folded (K5). The
// store may lack rows below the horizon. It may also lack rows that compaction had removed before the store was
// restored, because newer rows beyond the position had replaced them.
func (c *check) store(t *task, s *Store) {
	c.report.StoreRows += len(s.Rows)
	final := c.finals[c.cfg.Changelog][t.partition]
	gone := func(r *Record) bool { return !c.report.Unread && find(final, r.Offset) == nil }
	where := fmt.Sprintf("store of %s/%d at position %d", c.cfg.Changelog, t.partition, s.Position)
	if s.Position == 0 && len(s.Rows) == 0 && len(s.Checkpoint) == 0 {
		return
	}
	switch {
	case t.checkpoint == nil && len(s.Checkpoint) > 0:
		c.add("K5", "%s: a checkpoint %x, the changelog has none below the position", where, s.Checkpoint)
	case t.checkpoint == nil || t.stores(s.Checkpoint):
	case gone(t.checkpoint) && (len(s.Checkpoint) == 0 || t.wrote(s.Checkpoint)):
	default:
		c.add("K5", "%s: checkpoint %x, want that of %s, %x", where, s.Checkpoint, at(t.checkpoint), t.checkpoint.Value)
	}
	horizons := c.horizons(s)
	for _, d := range sortedKeys(t.latest) {
		newest := t.latest[d]
		got, ok := s.Rows[string(d[:])]
		switch {
		case ok && bytes.Equal(got, newest.Value), gone(newest), expired(newest.Value, &horizons) && (!ok || expired(got, &horizons)):
		case !ok:
			c.add("K5", "%s: no row for %x, want %x of %s", where, d, newest.Value, at(newest))
		default:
			c.add("K5", "%s: the row of %x is %x, want %x of %s", where, d, got, newest.Value, at(newest))
		}
	}
	for key, got := range s.Rows {
		if len(key) != len(digest{}) || t.latest[digest([]byte(key))] == nil {
			c.add("K5", "%s: a row for %x, which the changelog does not have below the position: %x", where, key, got)
		}
	}
}

// stores reports whether the checkpoint of a local store is the newest checkpoint.
func (t *task) stores(stored []byte) bool {
	cp, err := openStored(stored)
	return err == nil && len(stored) > 0 && cp.equals(&t.chain.newest)
}

// wrote reports whether the checkpoint of a local store is one of the checkpoints that were folded.
func (t *task) wrote(stored []byte) bool {
	cp, err := openStored(stored)
	if err != nil {
		return false
	}
	var all chain
	for _, r := range t.checkpoints {
		number, _ := numberOf(r.Key)
		if all.add(number, r.Value) == nil && cp.equals(&all.newest) {
			return true
		}
	}
	return false
}

// A horizon is the time below which the rows of a namespace may have been evicted.
type horizon struct {
	time int64
	ok   bool // the namespace has a horizon
}

// horizons returns the horizon of each namespace id. A namespace has a single stream time, and the longest
// retention of its routes counts. The horizon is computed from the partition's last checkpoint, and not from
// the store's checkpoint. The reason is that a process evicts rows by its newest stream time, which may be
// later than the store's checkpoint: when the process ends, it loses the rows above the position, which were
// only in its memory. The task that opens the store next reads those rows again before it judges.
func (c *check) horizons(s *Store) (before [256]horizon) {
	cp, err := openStored(s.Checkpoint)
	if newest := c.newestCheckpoint(s.Partition); newest != nil {
		cp, err = *newest, nil
	}
	if err != nil {
		return before // without a checkpoint there is no stream time, so no row may be missing
	}
	drop := func(namespaceID uint8, window, grace int64) {
		if !cp.seen[namespaceID] {
			return
		}
		time := c.horizonOf(&cp, namespaceID, window, grace)
		if b := &before[namespaceID]; !b.ok || time < b.time {
			*b = horizon{time, true}
		}
	}
	for i := range c.cfg.Routes {
		drop(c.cfg.Routes[i].NamespaceID, c.cfg.Routes[i].Window, c.cfg.Routes[i].Grace)
	}
	for i := range c.cfg.Claims {
		drop(c.cfg.Claims[i].NamespaceID, c.cfg.Claims[i].Window, c.cfg.Claims[i].Grace)
	}
	return before
}

// newestCheckpoint returns the last checkpoint of a partition; nil if there is none.
func (c *check) newestCheckpoint(partition int32) *checkpoint {
	var all chain
	for _, r := range wholeOnward(c.logs[c.cfg.Changelog][partition]) {
		if number, ok := numberOf(r.Key); ok {
			_ = all.add(number, r.Value) // task reports this error
		}
	}
	if !all.has {
		return nil
	}
	return &all.newest
}

// wholeOnward returns the records of a changelog from the last whole checkpoint on.
func wholeOnward(log []*Record) []*Record {
	for i, r := range slices.Backward(log) {
		if string(r.Key) == "checkpoint" {
			return log[i:]
		}
	}
	return nil
}

// expired reports whether a row, encoded as in the changelog, is below the horizon of its namespace.
func expired(value []byte, horizons *[256]horizon) bool {
	if len(value) < 5 {
		return false
	}
	f := fields{rest: value[4:]}
	first, h := f.signed(), horizons[value[2]]
	return !f.bad && h.ok && first < h.time
}
