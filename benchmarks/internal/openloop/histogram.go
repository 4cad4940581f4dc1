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
	// bucketCount is the number of buckets for all of int64: one bucket for each value below 2*bucketsPerOctave,
	// which takes the place of two octaves, and bucketsPerOctave buckets for each octave above.
	bucketCount = (64 - octaveBits) * bucketsPerOctave
)

// Histogram counts durations in log-linear buckets, like HdrHistogram. A quantile is never below the true quantile
// and at most 0.8 % above it. The zero value is an empty histogram.
type Histogram struct {
	counts  [bucketCount]uint64
	Total   uint64
	Highest time.Duration // exact, not rounded to a bucket
}

// bucketOf returns the bucket of v, which must not be negative. The bucket follows from the position of the highest
// bit of v and the octaveBits bits below it.
func bucketOf(v int64) int {
	shift := max(0, bits.Len64(uint64(v))-octaveBits-1)
	return shift*bucketsPerOctave + int(v>>shift)
}

// bucketTop returns the highest value of a bucket.
func bucketTop(bucket int) int64 {
	shift := max(0, bucket/bucketsPerOctave-1)
	return (int64(bucket-shift*bucketsPerOctave)+1)<<shift - 1
}

// Record counts d. A negative duration counts as 0, so that a clock that steps back loses no event.
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

// Quantile returns the upper bound of the lowest bucket such that a share of at least q of all values is not
// above that bound; 0 if there are no values.
func (h *Histogram) Quantile(q float64) time.Duration {
	if h.Total == 0 {
		return 0
	}
	// The rank counts from 1. At most (1-q) of the values are above it.
	rank := h.Total - min(h.Total-1, uint64((1-q)*float64(h.Total)+rankSlack))
	for i, n := range &h.counts {
		if n >= rank {
			return min(time.Duration(bucketTop(i)), h.Highest)
		}
		rank -= n
	}
	return h.Highest
}

// rankSlack compensates for rounding: in floating point 1-q is slightly too small. For example, of 1000 values the
// quantile 0.99 must leave 10 above it.
const rankSlack = 1e-6
