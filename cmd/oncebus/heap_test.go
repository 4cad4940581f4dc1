package main

import (
	"math"
	"testing"
)

// TestGCPercent: a small heap may double, a large one grows by heapGrowthMax, a huge
// one by a quarter.
func TestGCPercent(t *testing.T) {
	for live, want := range map[uint64]int{
		0: 100, 10 << 20: 100, heapGrowthMax: 100, 2 * heapGrowthMax: 50, 3 * heapGrowthMax: 33, 4 * heapGrowthMax: 25, 1 << 40: 25, math.MaxUint64: 25,
	} {
		if got := gcPercent(live); got != want {
			t.Errorf("with %d bytes live: %d, want %d", live, got, want)
		}
	}
}
