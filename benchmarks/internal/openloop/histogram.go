//go:build unix

package openloop

import (
	"math/bits"
	"time"
)

// Every power of two of nanoseconds is divided into bucketsPerOctave buckets
// of equal width, so that a bucket is at most 1/128 of its values wide (0.8 %),
// whether they are microseconds or minutes.
const (
	octaveBits       = 7
	bucketsPerOctave = 1 << octaveBits
	// bucketCount covers all of int64: the values below 2*bucketsPerOctave one
	// by one, which is two octaves' worth, and the octaves above them.
	bucketCount = (64 - octaveBits) * bucketsPerOctave
)

// Histogram counts durations in log-linear buckets, as HdrHistogram does. Its
// quantiles are never below the true ones and at most 0.8 % above. The zero
// value is empty and ready.
type Histogram struct {
	counts  [bucketCount]uint64
	Total   uint64
	Highest time.Duration // exact
}

// bucketOf returns the bucket of v, which is not negative: the position of its
// highest bit and the octaveBits bits below it.
func bucketOf(v int64) int {
	shift := max(0, bits.Len64(uint64(v))-octaveBits-1)
	return shift*bucketsPerOctave + int(v>>shift)
}

// bucketTop returns the highest value of a bucket.
func bucketTop(bucket int) int64 {
	shift := max(0, bucket/bucketsPerOctave-1)
	return (int64(bucket-shift*bucketsPerOctave)+1)<<shift - 1
}

// Record counts d. A negative duration counts as 0: a clock that steps back must not
// lose an event.
func (h *Histogram) Record(d time.Duration) {
	d = max(0, d)
	h.counts[bucketOf(int64(d))]++
	h.Total++
	h.Highest = max(h.Highest, d)
}

// Add adds the counts of other.
func (h *Histogram) Add(other *Histogram) {
	for i, n := range &other.counts {
		h.counts[i] += n
	}
	h.Total += other.Total
	h.Highest = max(h.Highest, other.Highest)
}

// Quantile returns the value that a share of q of all values does not exceed; 0 if
// there are none.
func (h *Histogram) Quantile(q float64) time.Duration {
	if h.Total == 0 {
		return 0
	}
	// The rank is counted from 1; above it are at most (1-q) of the values.
	rank := h.Total - min(h.Total-1, uint64((1-q)*float64(h.Total)+rankSlack))
	for i, n := range &h.counts {
		if n >= rank {
			return min(time.Duration(bucketTop(i)), h.Highest)
		}
		rank -= n
	}
	return h.Highest
}

// rankSlack compensates for 1-q, which floating point makes slightly too small: of
// 1000 values, 0.99 must leave 10 above it.
const rankSlack = 1e-6
