package app

import (
	"encoding/binary"

	"oncebus/processor/wire"
)

// note remembers that the open transaction may change the counts of a namespace id.
func (c *Counts) note(namespaceID uint8) {
	if !c.hasChanged[namespaceID] {
		c.hasChanged[namespaceID] = true
		c.changed = append(c.changed, namespaceID)
	}
}

// Open returns a copy of c for the open transaction to change. As long as each transaction ends with Commit or
// Discard, the two differ only in what the open transaction has changed.
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

// Commit makes c equal to open, which Open returned. It only copies what open has changed, so its cost does not
// depend on the number of all counts.
func (c *Counts) Commit(open *Counts) {
	for _, id := range open.changed {
		open.copyNamespace(c, id)
	}
	open.forgetChanges()
	c.senders.commit()
	c.tenants.commit()
}

// Discard makes open equal to c. It only copies what open has changed, so its cost does not depend on all
// counts.
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

// AppendChanges appends what open has changed since c: the end of a partial checkpoint. It leaves out the
// carried counts, because they never change.
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

// appendChanges appends how many events were counted since before, and sets their flags in the byte at head.
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

// appendChanges appends how the keys changed since before, and adds 1 to the number of counters in the byte at
// head.
func (s *StatusCounter) appendChanges(dst []byte, head int, before *StatusCounter) []byte {
	n := len(dst) + 1
	if dst = s.AppendChanges(append(dst, byte(s.status)), &before.KeyCounter); len(dst) == n {
		return dst[:n-1]
	}
	dst[head]++
	return dst
}
