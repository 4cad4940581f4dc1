//go:build unix

package openloop

import (
	"math"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"
)

func TestHistogramBucketsHoldTheirValuesWithinOnePercent(t *testing.T) {
	check := func(v int64) {
		top := bucketTop(bucketOf(v))
		if top < v || float64(top-v) > 0.01*float64(v) {
			t.Fatalf("%d is in bucket %d, which ends at %d", v, bucketOf(v), top)
		}
	}
	for v := range int64(1 << 16) {
		check(v)
	}
	for shift := range 63 {
		for _, near := range []int64{-1, 0, 1} {
			check(1<<shift + near)
		}
	}
	check(math.MaxInt64)
	if got := bucketOf(math.MaxInt64); got != bucketCount-1 {
		t.Fatalf("the highest value is in bucket %d of %d", got, bucketCount)
	}
}

func TestHistogramBucketsFollowOneAnother(t *testing.T) {
	for bucket := range bucketCount - 1 {
		if next := bucketOf(bucketTop(bucket) + 1); next != bucket+1 {
			t.Fatalf("after bucket %d comes %d", bucket, next)
		}
	}
}

func TestHistogramQuantilesOfAHundredValues(t *testing.T) {
	var h Histogram
	for ms := range 100 {
		h.Record(time.Duration(ms+1) * time.Millisecond)
	}
	for q, ms := range map[float64]int{0: 1, 0.5: 50, 0.9: 90, 0.99: 99, 0.999: 100, 1: 100} {
		want := time.Duration(ms) * time.Millisecond
		if got := h.Quantile(q); got < want || float64(got) > 1.01*float64(want) {
			t.Errorf("quantile %v is %v, want %v", q, got, want)
		}
	}
	if h.Highest != 100*time.Millisecond {
		t.Errorf("the highest is %v, want it exactly", h.Highest)
	}
}

// TestHistogramAgainstSortedValues compares with the definition.
func TestHistogramAgainstSortedValues(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		values := rapid.SliceOfN(rapid.Int64Range(0, int64(10*time.Minute)), 1, 500).Draw(t, "values")
		split := rapid.IntRange(0, len(values)).Draw(t, "split")
		var h, rest Histogram
		for i, v := range values {
			if i < split {
				h.Record(time.Duration(v))
			} else {
				rest.Record(time.Duration(v))
			}
		}
		h.Add(&rest)
		slices.Sort(values)
		percent := rapid.IntRange(1, 100).Draw(t, "percent")
		want := values[(len(values)*percent+99)/100-1]
		got := int64(h.Quantile(float64(percent) / 100))
		if got < want || float64(got-want) > 0.01*float64(want) {
			t.Fatalf("p%d is %d, want %d", percent, got, want)
		}
	})
}

func TestHistogramWithoutValues(t *testing.T) {
	var h Histogram
	if got := h.Quantile(0.5); got != 0 {
		t.Errorf("the median without values is %v", got)
	}
	h.Record(-time.Second)
	if h.Total != 1 || h.Quantile(1) != 0 {
		t.Errorf("a negative duration counts as %v of %d values", h.Quantile(1), h.Total)
	}
}
