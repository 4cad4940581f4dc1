package state

import (
	"encoding/binary"
	"fmt"
	"math/bits"
	"math/rand/v2"
	"slices"

	"oncebus/dedup"
)

// slot is a row in memory: 56 bytes without a pointer, so that the garbage collector does not scan millions
// of slots.
type slot struct {
	digest      dedup.Digest
	first       int64
	offset      int64
	fingerprint uint64
	partition   int32
	attempt     uint32
	// extra is 0 for a row without an extra, else 1 + the index of the extra in table.extras.
	extra       uint32
	topic       uint16
	namespaceID uint8
	state       slotState
}

// slotState packs the row's status in bits 0 to 3, its Link in bits 4 and 5, Earlier in bit 6 and Again in
// bit 7.
type slotState uint8

func slotStateOf(r *dedup.Row) slotState {
	s := slotState(r.Status) | slotState(r.Link)<<4
	if r.Earlier {
		s |= 1 << 6
	}
	if r.Again {
		s |= 1 << 7
	}
	return s
}

// extra contains the fields that only some rows have.
type extra struct {
	result    []byte
	hasResult bool
	shift     int64
	before    int64 // Row.Before, with a link
}

const (
	chunkBits = 10
	chunkRows = 1 << chunkBits // slots are allocated in chunks of 56 KiB and never move
	chunkMask = chunkRows - 1

	minIndex    = 1 << 10
	ordinalMask = 1<<24 - 1
	maxOrdinal  = ordinalMask - 1

	// resultBytesPerRow is how many bytes of stored results count as one row in the memory budget.
	resultBytesPerRow = 64
)

// table is a hash table of rows, at most one per digest. It stores rows densely in order of arrival. The
// index uses open addressing with linear probing and is at most 3/4 full. An index entry combines 8 bits of
// the hash with the row's ordinal, so that a look-up of an absent digest rarely touches a row.
type table struct {
	seed   hashSeed
	index  []uint32 // hash bits 0-7 <<24 | ordinal+1; 0 is free
	shift  uint     // 64 - log2(len(index))
	chunks []*[chunkRows]slot
	rows   int
	extras []extra
	// resultBytes is the size of all results, overwritten ones included.
	resultBytes int
	// applied is what the table contained at the last commit: the rows added since then belong to the open
	// transaction. replaced has the applied rows that the open transaction replaced, in order.
	applied  extent
	replaced []replacedRow
}

// extent says how much a table contains.
type extent struct{ rows, extras, resultBytes int }

// replacedRow is a row as it was before the open transaction replaced it.
type replacedRow struct {
	ordinal int
	slot    slot
	extra   extra
}

// hashSeed makes the index position of a digest unpredictable: in an app
// without a secret, producers of events can compute digests.
type hashSeed struct{ add, mul uint64 }

func newHashSeed() hashSeed { return hashSeed{rand.Uint64(), rand.Uint64() | 1} }

func (s hashSeed) hash(d *dedup.Digest) uint64 {
	hi, lo := bits.Mul64(binary.LittleEndian.Uint64(d[:8])^s.add, s.mul)
	return (hi ^ lo ^ binary.LittleEndian.Uint64(d[8:])) * s.mul
}

func newTable(seed hashSeed) *table {
	t := &table{seed: seed}
	t.resize(minIndex)
	return t
}

// weight returns the table's share of the memory budget, in rows.
func (t *table) weight() int { return t.rows + t.resultBytes/resultBytesPerRow }

func (t *table) at(ordinal int) *slot { return &t.chunks[ordinal>>chunkBits][ordinal&chunkMask] }

// find returns the slot of d and its ordinal, or nil. hash is t.seed.hash(d).
func (t *table) find(hash uint64, d *dedup.Digest) (s *slot, ordinal int) {
	mask := uint64(len(t.index) - 1)
	for p := hash >> t.shift; ; p++ {
		e := t.index[p&mask]
		if e == 0 {
			return nil, 0
		}
		if uint64(e>>24) == hash&0xff {
			ordinal = int(e&ordinalMask) - 1
			if s := t.at(ordinal); s.digest == *d {
				return s, ordinal
			}
		}
	}
}

// put stores s and x under the digest of s, in place of an older row, until commit or rollback. It does not
// copy the result, and ignores s.extra.
func (t *table) put(hash uint64, s slot, x extra) {
	stored, i := t.find(hash, &s.digest)
	switch {
	case stored == nil:
		stored = t.add(hash)
	case i < t.applied.rows:
		t.replaced = append(t.replaced, replacedRow{i, *stored, t.extraOf(stored)})
	}
	ordinal := stored.extra
	s.extra = 0
	if x.hasResult || x.shift != 0 || x.before != 0 {
		if ordinal == 0 {
			t.extras = append(t.extras, extra{})
			ordinal = uint32(len(t.extras))
		}
		t.extras[ordinal-1] = x
		t.resultBytes += len(x.result)
		s.extra = ordinal
	}
	*stored = s
}

// add adds an empty slot for a digest that the table does not have.
func (t *table) add(hash uint64) *slot {
	if t.rows >= len(t.index)/4*3 {
		t.resize(2 * len(t.index))
	}
	t.enter(hash, t.rows)
	return t.appendSlot()
}

// enter adds the entry of a row to the index.
func (t *table) enter(hash uint64, ordinal int) {
	mask := uint64(len(t.index) - 1)
	p := hash >> t.shift
	for t.index[p&mask] != 0 {
		p++
	}
	t.index[p&mask] = uint32(hash&0xff)<<24 | uint32(ordinal+1)
}

// isOpen reports whether the table has rows of an open transaction.
func (t *table) isOpen() bool { return t.rows > t.applied.rows || len(t.replaced) > 0 }

// commit makes the rows of the open transaction applied rows.
func (t *table) commit() {
	t.applied = extent{t.rows, len(t.extras), t.resultBytes}
	t.dropReplaced()
}

// rollback removes the rows of the open transaction and restores the rows that they replaced. The index becomes
// what it would be if the rows had never been added. This works because they are the last rows of the table,
// also after a resize, and are removed in reverse order.
func (t *table) rollback() {
	for _, r := range slices.Backward(t.replaced) {
		if r.slot.extra != 0 {
			t.extras[r.slot.extra-1] = r.extra
		}
		*t.at(r.ordinal) = r.slot
	}
	t.dropReplaced()
	mask := uint64(len(t.index) - 1)
	for i := t.rows - 1; i >= t.applied.rows; i-- {
		p := t.seed.hash(&t.at(i).digest) >> t.shift
		for t.index[p&mask]&ordinalMask != uint32(i+1) {
			p++
		}
		t.index[p&mask] = 0
	}
	clear(t.extras[t.applied.extras:])
	t.rows, t.extras, t.resultBytes = t.applied.rows, t.extras[:t.applied.extras], t.applied.resultBytes
}

// dropReplaced empties replaced and keeps its memory.
func (t *table) dropReplaced() {
	clear(t.replaced)
	t.replaced = t.replaced[:0]
}

// moveOpen moves the rows of the open transaction from t to dst, where they stay open.
func (t *table) moveOpen(dst *table) {
	for i := range t.replaced {
		dst.putSlot(t, t.at(t.replaced[i].ordinal))
	}
	for i := t.applied.rows; i < t.rows; i++ {
		dst.putSlot(t, t.at(i))
	}
	t.rollback()
}

// appliedRows returns the table without the rows of the open transaction: t itself if there are none, else a
// copy.
func (t *table) appliedRows() *table {
	if !t.isOpen() {
		return t
	}
	c := newTable(t.seed)
	for i := range t.applied.rows {
		c.putSlot(t, t.at(i))
	}
	for _, r := range slices.Backward(t.replaced) {
		c.put(c.seed.hash(&r.slot.digest), r.slot, r.extra)
	}
	return c
}

// putSlot puts a slot of another table.
func (t *table) putSlot(from *table, s *slot) {
	t.put(t.seed.hash(&s.digest), *s, from.extraOf(s))
}

// appendSlot appends an empty slot.
func (t *table) appendSlot() *slot {
	if t.rows >= maxOrdinal {
		panic(fmt.Sprintf("state: table of %d rows is full", t.rows))
	}
	if t.rows>>chunkBits == len(t.chunks) {
		t.chunks = append(t.chunks, new([chunkRows]slot))
	}
	t.rows++
	s := t.at(t.rows - 1)
	*s = slot{}
	return s
}

func (t *table) resize(size int) {
	t.index = make([]uint32, size)
	t.shift = uint(64 - bits.TrailingZeros(uint(size)))
	for i := range t.rows {
		t.enter(t.seed.hash(&t.at(i).digest), i)
	}
}

// clear empties the table and keeps its memory.
func (t *table) clear() {
	clear(t.index)
	clear(t.extras)
	t.extras = t.extras[:0]
	t.rows, t.resultBytes = 0, 0
	t.commit()
}

// row returns the row of s. Its Result aliases the result in the table, which is immutable.
func (t *table) row(s *slot) dedup.Row {
	x := t.extraOf(s)
	return dedup.Row{
		Digest:      s.digest,
		First:       s.first,
		At:          dedup.Position{Topic: s.topic, Partition: s.partition, Offset: s.offset},
		Fingerprint: s.fingerprint,
		NamespaceID: s.namespaceID,
		Status:      dedup.Status(s.state & 0xf),
		Link:        dedup.Link(s.state >> 4 & 3),
		Earlier:     s.state&(1<<6) != 0,
		Again:       s.state&(1<<7) != 0,
		Attempt:     s.attempt,
		Result:      x.result,
		HasResult:   x.hasResult,
		Shift:       x.shift,
		Before:      x.before,
	}
}

// extraOf returns the extra of a slot of t.
func (t *table) extraOf(s *slot) extra {
	if s.extra == 0 {
		return extra{}
	}
	return t.extras[s.extra-1]
}

// slotOf returns r as a slot, without its extra.
func slotOf(r *dedup.Row) slot {
	return slot{
		digest:      r.Digest,
		first:       r.First,
		offset:      r.At.Offset,
		fingerprint: r.Fingerprint,
		partition:   r.At.Partition,
		attempt:     r.Attempt,
		topic:       r.At.Topic,
		namespaceID: r.NamespaceID,
		state:       slotStateOf(r),
	}
}

// extraOf returns the fields of r that a slot does not have.
func extraOf(r *dedup.Row) extra { return extra{r.Result, r.HasResult, r.Shift, r.Before} }
