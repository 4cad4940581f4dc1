package audit

import (
	"encoding/binary"

	"oncebus/dedup"
)

// entry is a key with its first record. It has no pointer, so the garbage collector does not
// look into it.
type entry struct {
	digest    dedup.Digest
	time      int64 // event time of the first record
	offset    int64
	payload   uint64
	partition int32
	copies    uint32
}

// table finds entries by digest. A Go map of the same entries takes twice the memory, and
// copies them when it grows. Here only the slots are copied, of which 3 in 4 are in use at most.
// The entries are in chunks, which stay where they are.
type table struct {
	slots  []uint64 // half of a digest and number of the entry + 1; 0 is free
	chunks [][]entry
	n      int
}

const (
	chunkEntries = 1 << 14
	slotsMin     = 1 << 10
)

// hash returns the part of a digest that chooses the slot. Its other half chooses the sample.
func hash(d *dedup.Digest) uint64 { return binary.LittleEndian.Uint64(d[:8]) }

// entry returns the i-th entry.
func (t *table) entry(i int) *entry { return &t.chunks[i/chunkEntries][i%chunkEntries] }

// find returns the entry of a digest, or nil and the slot where it belongs.
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

// add adds an entry at the slot that find returned.
func (t *table) add(slot int, e *entry) {
	t.append(e)
	t.slots[slot] = hash(&e.digest)>>32<<32 | uint64(t.n)
	if 4*t.n > 3*len(t.slots) {
		t.index(2 * len(t.slots))
	}
}

// append appends an entry without a slot.
func (t *table) append(e *entry) {
	if t.n == len(t.chunks)*chunkEntries {
		t.chunks = append(t.chunks, make([]entry, chunkEntries))
	}
	*t.entry(t.n) = *e
	t.n++
}

// index writes all slots again.
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

// retain drops the entries that keep refuses. The chunks are used again.
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
