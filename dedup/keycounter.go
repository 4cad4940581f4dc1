package dedup

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"slices"
)

// KeyCounter counts the live rows of one namespace in one task. Its value depends only on the records of the
// log, like the rows themselves. It divides the retention into counterBuckets buckets by first seen time, and
// removes a bucket when all its rows have expired. Therefore it may count an expired row for at most the width
// of one bucket too long (45 min with a retention of 48 h), and never stops counting a row too early. Make a
// KeyCounter with NewKeyCounter.
type KeyCounter struct {
	width int64 // length of a bucket, in ms
	live  uint64
	// buckets are sorted by number; none is empty.
	buckets []counterBucket
	// last is the index of the bucket that got the last row: find looks there first, because the next row most
	// often goes into the same bucket.
	last int
	// nextEviction is the earliest stream time at which a bucket can expire.
	nextEviction int64
	// endedTo is a bucket number: the windows of all rows in buckets below it have ended. nextEnd is the
	// earliest stream time at which the windows of a further bucket can end. Both are unknown before the
	// first Advance.
	endedTo, nextEnd int64
}

// counterBucket has the rows that were first seen within one width of time.
type counterBucket struct {
	number int64 // it has the rows first seen from number*width on
	rows   uint64
	lowest int64 // earliest first seen time of a row in it, ms
}

// counterBuckets is the number of buckets into which the retention is divided.
const counterBuckets = 64

// NewKeyCounter returns an empty counter for rows of a window.
func NewKeyCounter(w Window) KeyCounter {
	return KeyCounter{width: max(1, w.Retention()/counterBuckets), nextEviction: NoStreamTime, nextEnd: NoStreamTime}
}

// Fits reports whether the buckets of c have the width that NewKeyCounter chooses for the window w.
func (c *KeyCounter) Fits(w Window) bool { return c.width == NewKeyCounter(w).width }

// IsCoarse reports whether the buckets are wider than NewKeyCounter makes them for this window.
func (c *KeyCounter) IsCoarse(w Window) bool { return c.width > NewKeyCounter(w).width }

// MergeFor merges the buckets of a shorter window into the wider buckets of w, as far as a whole number of old
// buckets fits into one new bucket. The counts of all rows stay.
func (c *KeyCounter) MergeFor(w Window) {
	n := NewKeyCounter(w).width / c.width
	if n < 2 {
		return
	}
	merged := c.buckets[:0]
	for _, b := range c.buckets {
		b.number = floorDiv(b.number, n)
		if last := len(merged) - 1; last >= 0 && merged[last].number == b.number {
			merged[last].rows += b.rows
			merged[last].lowest = min(merged[last].lowest, b.lowest)
			continue
		}
		merged = append(merged, b)
	}
	c.width, c.buckets, c.last, c.nextEviction, c.nextEnd = c.width*n, merged, 0, NoStreamTime, NoStreamTime
}

// Buckets returns the number of buckets with rows.
func (c *KeyCounter) Buckets() int { return len(c.buckets) }

// Each calls f with the number and the row count of each bucket, in ascending order.
func (c *KeyCounter) Each(f func(number int64, rows uint64)) {
	for _, b := range c.buckets {
		f(b.number, b.rows)
	}
}

// RemoveWhere removes the buckets for whose number fits returns true.
func (c *KeyCounter) RemoveWhere(fits func(number int64) bool) {
	c.buckets = slices.DeleteFunc(c.buckets, func(b counterBucket) bool {
		if fits(b.number) {
			c.live -= b.rows
			return true
		}
		return false
	})
}

// Live returns the number of live rows.
func (c *KeyCounter) Live() uint64 { return c.live }

// Active returns how many live rows are still within their window at a stream time. It may count a row too
// long, for at most the width of one bucket.
func (c *KeyCounter) Active(w Window, streamTime int64) uint64 {
	if streamTime == NoStreamTime {
		return c.live
	}
	bound := floorDiv(saturate(streamTime, -w.Size), c.width)
	active := uint64(0)
	for i := len(c.buckets) - 1; i >= 0 && c.buckets[i].number >= bound; i-- {
		active += c.buckets[i].rows
	}
	return active
}

// Add counts a row that was first seen at first, in ms.
func (c *KeyCounter) Add(first int64) {
	i, found := c.find(first)
	if !found {
		c.buckets = slices.Insert(c.buckets, i, counterBucket{number: floorDiv(first, c.width), lowest: first})
	}
	c.buckets[i].rows++
	c.buckets[i].lowest = min(c.buckets[i].lowest, first)
	c.live++
	c.last = i
	if i == 0 {
		c.nextEviction = NoStreamTime
	}
}

// Oldest returns the first seen time of the oldest row, or false without rows. The row with that time may
// already be removed, while its bucket still has other rows.
func (c *KeyCounter) Oldest() (first int64, ok bool) {
	if len(c.buckets) == 0 {
		return 0, false
	}
	return c.buckets[0].lowest, true
}

// Remove removes a row that Add counted with the same first seen time.
func (c *KeyCounter) Remove(first int64) {
	i, found := c.find(first)
	if !found {
		return // Advance has removed the bucket of this row
	}
	c.live--
	if c.buckets[i].rows--; c.buckets[i].rows == 0 {
		c.buckets = slices.Delete(c.buckets, i, i+1)
	}
}

// Ended counts the rows whose window or retention ended when stream time advanced.
type Ended struct {
	Windows    uint64 // rows whose window is over
	Retentions uint64 // rows whose retention is over, too
}

// Advance removes the buckets that have expired at a stream time. It returns for how many rows the window or
// the retention ended since the previous call; all rows of a bucket end together.
func (c *KeyCounter) Advance(w Window, streamTime int64) (ended Ended) {
	if streamTime == NoStreamTime {
		return ended
	}
	if streamTime >= c.nextEnd {
		ended.Windows = c.endWindows(w, streamTime)
	}
	if streamTime >= c.nextEviction {
		ended.Retentions = c.evict(w, streamTime)
	}
	return ended
}

// GoOn tells a decoded counter the stream time at which the counter was encoded, so that the next Advance
// counts only the rows that end after it.
func (c *KeyCounter) GoOn(w Window, streamTime int64) {
	if streamTime != NoStreamTime {
		c.endWindows(w, streamTime)
	}
}

// endWindows returns the number of rows whose windows ended since the previous call. It counts whole buckets.
// The first call after a start returns 0 and only remembers from where to count.
func (c *KeyCounter) endWindows(w Window, streamTime int64) (rows uint64) {
	bound := floorDiv(saturate(streamTime, -w.Size), c.width)
	if c.nextEnd != NoStreamTime {
		for _, b := range c.buckets {
			if b.number >= c.endedTo && b.number < bound {
				rows += b.rows
			}
		}
	}
	c.endedTo, c.nextEnd = bound, saturate((bound+1)*c.width, w.Size)
	return rows
}

// evict removes the buckets that have expired at a stream time, and returns the number of their rows.
func (c *KeyCounter) evict(w Window, streamTime int64) (rows uint64) {
	bound := floorDiv(saturate(streamTime, -w.Retention()), c.width)
	n := 0
	for n < len(c.buckets) && c.buckets[n].number < bound {
		rows += c.buckets[n].rows
		n++
	}
	c.live -= rows
	if n > 0 {
		c.buckets = slices.Delete(c.buckets, 0, n)
	}
	// The next bucket expires only when stream time has advanced by the width of one bucket.
	c.nextEviction = saturate((bound+1)*c.width, w.Retention())
	return rows
}

// CopyTo copies c into to and reuses the memory of to.
func (c *KeyCounter) CopyTo(to *KeyCounter) {
	*to = KeyCounter{c.width, c.live, append(to.buckets[:0], c.buckets...), c.last, c.nextEviction, c.endedTo, c.nextEnd}
}

// find returns the index of the bucket for a first seen time, or the index at which to insert the bucket.
func (c *KeyCounter) find(first int64) (int, bool) {
	if i := c.last; i < len(c.buckets) {
		if from := c.buckets[i].number * c.width; first >= from && first-from < c.width {
			return i, true
		}
	}
	return slices.BinarySearchFunc(c.buckets, floorDiv(first, c.width), func(b counterBucket, n int64) int {
		switch {
		case b.number < n:
			return -1
		case b.number > n:
			return 1
		}
		return 0
	})
}

// floorDiv divides and rounds down, for negative times too; b is positive.
func floorDiv(a, b int64) int64 {
	q := a / b
	if a%b < 0 {
		q--
	}
	return q
}

// errKeyCounter is wrapped by the errors of DecodeKeyCounter.
var errKeyCounter = errors.New("corrupt key counter")

// Append appends the encoding: width and number of buckets; for each bucket its number, its row count, and
// the distance of its lowest time from its start. All are varints.
func (c *KeyCounter) Append(dst []byte) []byte {
	dst = binary.AppendUvarint(dst, uint64(c.width))
	dst = binary.AppendUvarint(dst, uint64(len(c.buckets)))
	for _, b := range c.buckets {
		dst = binary.AppendVarint(dst, b.number)
		dst = binary.AppendUvarint(dst, b.rows)
		dst = binary.AppendUvarint(dst, uint64(b.lowest-b.number*c.width))
	}
	return dst
}

// DecodeKeyCounter decodes what Append wrote and returns the bytes after it.
func DecodeKeyCounter(b []byte) (KeyCounter, []byte, error) {
	r := NewCursor(b)
	c := KeyCounter{width: int64(r.Uvarint(1 << 62)), nextEviction: NoStreamTime, nextEnd: NoStreamTime}
	if c.width == 0 {
		r.Fail()
	}
	for n := r.Uvarint(uint64(len(b))); n > 0 && !r.Bad(); n-- {
		number, rows, into := r.Varint(), r.Uvarint(math.MaxUint64), r.Uvarint(uint64(max(c.width-1, 0)))
		if last := len(c.buckets) - 1; last >= 0 && number <= c.buckets[last].number || rows == 0 || c.live+rows < c.live {
			r.Fail()
		}
		c.buckets = append(c.buckets, counterBucket{number, rows, number*c.width + int64(into)})
		c.live += rows
	}
	rest := r.Rest()
	if r.Bad() {
		return KeyCounter{}, nil, fmt.Errorf("%w: cut short, out of order or out of range in %d bytes", errKeyCounter, len(b))
	}
	return c, rest, nil
}
