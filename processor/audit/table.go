package audit

import (
	"encoding/binary"

	"oncebus/dedup"
)

// entry is a key with its first record. It contains no pointer, so that the garbage collector need not scan the
// entries.
type entry struct {
	digest    dedup.Digest
	time      int64 // event time of the first record
	offset    int64
	payload   uint64
	partition int32
	copies    uint32
}

// table finds entries by digest. A Go map with the same entries takes twice the memory, and copies the entries
// when it grows. table copies only the slots, of which at most 3 in 4 are in use; the entries are in chunks
// that stay where they are.
type table struct {
	slots  []uint64 // half of the digest and the number of the entry + 1; 0 if the slot is free
	chunks [][]entry
	n      int
}

const (
	chunkEntries = 1 << 14
	slotsMin     = 1 << 10
)

// hash returns the half of a digest that chooses the slot. The other half decides whether the key is in the
// sample.
func hash(d *dedup.Digest) uint64 { return binary.LittleEndian.Uint64(d[:8]) }

// entry returns the i-th entry.
func (t *table) entry(i int) *entry { return &t.chunks[i/chunkEntries][i%chunkEntries] }

// find returns the entry with a digest; if there is none, it returns nil and the slot where the entry belongs.
func (t *table) find(d *dedup.Digest) (found *entry, slot int) {
	if len(t.slots) == 0 {
		t.slots = make([]uint64, slotsMin)
	}
	h := hash(d)
	tag, mask := h>>32<<32, uint64(len(t.slots)-1)
	for at := h & mask; ; at = (at + 1) & mask {
		s := t.slots[at]
		if s == 0 {
			return nil, int(at)
		}
		if s>>32<<32 == tag {
			if e := t.entry(int(uint32(s)) - 1); e.digest == *d {
				return e, int(at)
			}
		}
	}
}

// add adds an entry at the slot that find has returned.
func (t *table) add(slot int, e *entry) {
	t.append(e)
	t.slots[slot] = hash(&e.digest)>>32<<32 | uint64(t.n)
	if 4*t.n > 3*len(t.slots) {
		t.index(2 * len(t.slots))
	}
}

// append appends an entry without giving it a slot.
func (t *table) append(e *entry) {
	if t.n == len(t.chunks)*chunkEntries {
		t.chunks = append(t.chunks, make([]entry, chunkEntries))
	}
	*t.entry(t.n) = *e
	t.n++
}

// index makes a new table of slots for all entries.
func (t *table) index(slots int) {
	t.slots = make([]uint64, slots)
	mask := uint64(slots - 1)
	for i := range t.n {
		h := hash(&t.entry(i).digest)
		at := h & mask
		for t.slots[at] != 0 {
			at = (at + 1) & mask
		}
		t.slots[at] = h>>32<<32 | uint64(i+1)
	}
}

// retain drops the entries for which keep returns false, and reuses the chunks.
func (t *table) retain(keep func(*entry) bool) {
	before := t.n
	t.n = 0
	for i := range before {
		if e := t.entry(i); keep(e) {
			t.append(e)
		}
	}
	t.index(len(t.slots))
}
