package app

import (
	"encoding/binary"

	"oncebus/processor/wire"
)

// note says that the counts of a namespace id may change.
func (c *Counts) note(namespaceID uint8) {
	if !c.hasChanged[namespaceID] {
		c.hasChanged[namespaceID] = true
		c.changed = append(c.changed, namespaceID)
	}
}

// Open returns a copy of c for a transaction. While Commit or Discard ends each
// transaction, the two differ only in what the open one changed.
func (c *Counts) Open(rt *App) Counts {
	open := NewCounts(rt)
	open.senders, open.tenants = c.senders, c.tenants
	for i := range c.Counters {
		c.Counters[i].CopyTo(&open.Counters[i].KeyCounter)
	}
	copy(open.Hits, c.Hits)
	open.carried = c.carried
	return open
}

// Commit makes c equal to open, which Open returned. It costs what open changed.
func (c *Counts) Commit(open *Counts) {
	for _, id := range open.changed {
		open.copyNamespace(c, id)
	}
	open.forgetChanges()
	c.senders.commit()
	c.tenants.commit()
}

// Discard makes open equal to c. It costs what open changed.
func (c *Counts) Discard(open *Counts) {
	for _, id := range open.changed {
		c.copyNamespace(open, id)
	}
	open.forgetChanges()
	c.senders.discard()
	c.tenants.discard()
}

func (c *Counts) copyNamespace(to *Counts, id uint8) {
	p := &c.place[id]
	for i := p.from; i < p.to; i++ {
		c.Counters[i].CopyTo(&to.Counters[i].KeyCounter)
	}
	if p.known {
		to.Hits[p.hits] = c.Hits[p.hits]
	}
}

func (c *Counts) forgetChanges() {
	for _, id := range c.changed {
		c.hasChanged[id] = false
	}
	c.changed = c.changed[:0]
}

// AppendChanges appends what open changed since c, as the end of a partial checkpoint. The
// carried counts never change.
func (c *Counts) AppendChanges(dst []byte, open *Counts) []byte {
	for _, id := range open.changed {
		head := len(dst) + 1
		dst = append(dst, id, 0)
		if p := &c.place[id]; p.known {
			dst = open.Hits[p.hits].appendChanges(dst, head, &c.Hits[p.hits])
			for i := p.from; i < p.to; i++ {
				dst = open.Counters[i].appendChanges(dst, head, &c.Counters[i])
			}
		}
		if dst[head] == 0 {
			dst = dst[:head-1]
		}
	}
	return dst
}

// appendChanges appends the events since before, and sets their flags at head.
func (h *lookupCounts) appendChanges(dst []byte, head int, before *lookupCounts) []byte {
	if n := h.judged - before.judged; n > 0 {
		dst[head] |= wire.ChangedEvents
		dst = binary.AppendUvarint(dst, n)
	}
	if n := h.duplicates - before.duplicates; n > 0 {
		dst[head] |= wire.ChangedDuplicates
		dst = binary.AppendUvarint(dst, n)
	}
	return dst
}

// appendChanges appends the keys since before, and counts the counter at head.
func (s *StatusCounter) appendChanges(dst []byte, head int, before *StatusCounter) []byte {
	n := len(dst) + 1
	if dst = s.AppendChanges(append(dst, byte(s.status)), &before.KeyCounter); len(dst) == n {
		return dst[:n-1]
	}
	dst[head]++
	return dst
}
