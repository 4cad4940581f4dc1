package dedup

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"slices"
)

// Census counts the live rows of one namespace in one task: a function of the
// log, like the rows themselves. Rows are counted by the time of their first
// sighting, in censusBuckets steps of the retention; a step is taken off when
// all of it is out of time. So a row may count a step too long, and never too
// short. The zero value counts nothing; use NewCensus.
type KeyCounter struct {
	width int64 // of a bucket, ms
	live  uint64
	// buckets are in order of number; none is empty.
	buckets []counterBucket
	// usual is where the last row was counted: the next one's place, usually.
	last int
	// ripe is the stream time at which a step may be out of time: not before.
	nextEviction int64
}

type counterBucket struct {
	number int64 // first sightings from number*width on
	rows   uint64
	lowest int64 // first sighting that was counted here
}

// censusBuckets is how many steps the retention has.
const counterBuckets = 64

// NewCensus returns an empty census for rows of a window.
func NewKeyCounter(w Window) KeyCounter {
	return KeyCounter{width: max(1, w.Retention()/counterBuckets), nextEviction: NoStreamTime}
}

// Fits reports whether the census counts by the steps of this window.
func (c *KeyCounter) Fits(w Window) bool { return c.width == NewKeyCounter(w).width }

// Live is how many rows are live.
func (c *KeyCounter) Live() uint64 { return c.live }

// Active is how many of the live rows have a window that is not over at a stream
// time; one may count as active a step too long.
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

// Add counts a row first seen at first.
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

// Oldest is the first sighting of the oldest row, or of one removed since that
// was at most a step older; false if none is counted.
func (c *KeyCounter) Oldest() (first int64, ok bool) {
	if len(c.buckets) == 0 {
		return 0, false
	}
	return c.buckets[0].lowest, true
}

// Remove takes a row off that was counted with first.
func (c *KeyCounter) Remove(first int64) {
	i, found := c.find(first)
	if !found {
		return // its step is out of time and was taken off
	}
	c.live--
	if c.buckets[i].rows--; c.buckets[i].rows == 0 {
		c.buckets = slices.Delete(c.buckets, i, i+1)
	}
}

// Advance takes off what is out of time at a stream time.
func (c *KeyCounter) Advance(w Window, streamTime int64) {
	if streamTime == NoStreamTime || streamTime < c.nextEviction {
		return
	}
	bound := floorDiv(saturate(streamTime, -w.Retention()), c.width)
	n := 0
	for n < len(c.buckets) && c.buckets[n].number < bound {
		c.live -= c.buckets[n].rows
		n++
	}
	if n > 0 {
		c.buckets = slices.Delete(c.buckets, 0, n)
	}
	// The next step of stream time is soon enough to look again.
	c.nextEviction = saturate((bound+1)*c.width, w.Retention())
}

// CopyTo makes to equal to c; it reuses to's memory.
func (c *KeyCounter) CopyTo(to *KeyCounter) {
	*to = KeyCounter{c.width, c.live, append(to.buckets[:0], c.buckets...), c.last, c.nextEviction}
}

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

func floorDiv(a, b int64) int64 {
	q := a / b
	if a%b < 0 {
		q--
	}
	return q
}

// errCensus is wrapped by what DecodeCensus returns.
var errKeyCounter = errors.New("corrupt key counter")

// Append appends the encoded census: width, number of buckets, and of each its
// number, its rows and how far into it the lowest is, as varints.
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

// DecodeKeyCounter decodes what Append wrote and returns what follows it.
func DecodeKeyCounter(b []byte) (KeyCounter, []byte, error) {
	r := NewCursor(b)
	c := KeyCounter{width: int64(r.Uvarint(1 << 62)), nextEviction: NoStreamTime}
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
