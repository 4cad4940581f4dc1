package dedup

import (
	"cmp"
	"encoding/binary"
	"slices"
)

// onlyNewest is the first byte of the encoding of changes if only the row count of the newest bucket differs.
const onlyNewest = 1

// AppendChanges appends the changes from before, a counter of the same window, to c: the buckets in which the
// two counters differ. It appends nothing if no bucket differs.
//
//	[width uvarint: if before is empty] | 2 * buckets uvarint | for each, ascending: difference
//	to the number before, difference of the rows, [difference of the lowest time], varints
//
// The first number is relative to the newest bucket of before. A bucket that has no rows any more has no
// lowest time; the lowest time of a new bucket is relative to the start of the bucket. If only the row count
// of the newest bucket of before differs, and is not 0, the encoding is
//
//	1 | difference of the rows varint
func (c *KeyCounter) AppendChanges(dst []byte, before *KeyCounter) []byte {
	n, number, short := uint64(0), int64(0), false
	if last := len(before.buckets) - 1; last >= 0 {
		number = before.buckets[last].number
	}
	var rows int64
	c.eachChange(before, func(old, b counterBucket) {
		n++
		rows = int64(b.rows - old.rows)
		short = b.number == number && b.lowest == old.lowest && old.rows > 0 && b.rows > 0
	})
	switch {
	case n == 0:
		return dst
	case n == 1 && short:
		return binary.AppendVarint(append(dst, onlyNewest), rows)
	case len(before.buckets) == 0:
		dst = binary.AppendUvarint(dst, uint64(c.width))
	}
	dst = binary.AppendUvarint(dst, 2*n)
	c.eachChange(before, func(old, b counterBucket) {
		dst = binary.AppendVarint(dst, b.number-number)
		dst = binary.AppendVarint(dst, int64(b.rows-old.rows)) // wraps around, and ApplyChanges wraps it back
		if number = b.number; b.rows > 0 {
			dst = binary.AppendVarint(dst, b.lowest-old.lowest)
		}
	})
	return dst
}

// eachChange calls each for every bucket of c that differs from the bucket of before, in ascending order. For
// a new bucket, old has no rows; for a removed bucket, b has none.
func (c *KeyCounter) eachChange(before *KeyCounter, each func(old, b counterBucket)) {
	old, buckets := before.buckets, c.buckets
	for len(old) > 0 || len(buckets) > 0 {
		switch {
		case len(buckets) == 0 || len(old) > 0 && old[0].number < buckets[0].number:
			each(old[0], counterBucket{number: old[0].number})
			old = old[1:]
		case len(old) == 0 || buckets[0].number < old[0].number:
			b := buckets[0]
			each(counterBucket{number: b.number, lowest: b.number * c.width}, b)
			buckets = buckets[1:]
		default:
			if old[0] != buckets[0] {
				each(old[0], buckets[0])
			}
			old, buckets = old[1:], buckets[1:]
		}
	}
}

// ApplyChanges turns c, which must equal the counter before, into the counter whose AppendChanges wrote what
// r reads. It makes r bad if the changes do not fit c.
func (c *KeyCounter) ApplyChanges(r *Cursor) {
	number := int64(0)
	if last := len(c.buckets) - 1; last >= 0 {
		number = c.buckets[last].number
	} else if c.width = int64(r.Uvarint(1 << 62)); c.width == 0 {
		r.Fail()
	}
	c.last, c.nextEviction = 0, NoStreamTime
	head := r.Uvarint(uint64(2 * r.Left()))
	if head == onlyNewest {
		c.applyRows(r)
		return
	}
	n := head / 2
	if n == 0 || head%2 != 0 {
		r.Fail()
	}
	for ; n > 0 && !r.Bad(); n-- {
		number += r.Varint()
		c.applyChange(number, r)
	}
}

// applyRows reads and applies a change of the row count of the newest bucket.
func (c *KeyCounter) applyRows(r *Cursor) {
	change := r.Varint()
	last := len(c.buckets) - 1
	if last < 0 || change == 0 || change < 0 && uint64(-change) >= c.buckets[last].rows {
		r.Fail()
		return
	}
	c.live += uint64(change)
	c.buckets[last].rows += uint64(change)
}

// applyChange reads and applies the change of one bucket.
func (c *KeyCounter) applyChange(number int64, r *Cursor) {
	change := r.Varint()
	i, found := slices.BinarySearchFunc(c.buckets, number, func(b counterBucket, n int64) int { return cmp.Compare(b.number, n) })
	b := counterBucket{number: number, lowest: number * c.width}
	if found {
		b = c.buckets[i]
	}
	if change < 0 && uint64(-change) > b.rows || !found && change <= 0 {
		r.Fail()
		return
	}
	c.live += uint64(change)
	if b.rows += uint64(change); b.rows == 0 {
		c.buckets = slices.Delete(c.buckets, i, i+1)
		return
	}
	b.lowest += r.Varint()
	if b.lowest < number*c.width || b.lowest-number*c.width >= c.width {
		r.Fail()
		return
	}
	if !found {
		c.buckets = slices.Insert(c.buckets, i, b)
		return
	}
	c.buckets[i] = b
}
