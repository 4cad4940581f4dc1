package main

import (
	"math"
	"testing"
)

// TestGCPercent: a small heap may double, or grow by what is allocated in an interval within
// limits. A large one grows by heapGrowthMax, a huge one by a quarter.
func TestGCPercent(t *testing.T) {
	for _, c := range []struct {
		live, allocated uint64
		want            int
	}{
		{0, 0, 100},
		{10 << 20, 0, 100},
		{10 << 20, 5 << 20, 100},
		{30 << 20, 45 << 20, 150},
		{40 << 20, 100 << 20, 160},
		{10 << 20, 100 << 20, gcPercentMax},
		{0, 1 << 40, gcPercentMax},
		{busyGrowthMax, 1 << 40, 100},
		{heapGrowthMax, 0, 100},
		{heapGrowthMax, 1 << 40, 100},
		{2 * heapGrowthMax, 1 << 40, 50},
		{3 * heapGrowthMax, 0, 33},
		{4 * heapGrowthMax, 0, 25},
		{1 << 40, 1 << 40, 25},
		{math.MaxUint64, math.MaxUint64, 25},
	} {
		if got := gcPercent(c.live, c.allocated); got != c.want {
			t.Errorf("%d bytes live, %d allocated: %d, want %d", c.live, c.allocated, got, c.want)
		}
	}
}
