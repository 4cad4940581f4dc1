package main

import (
	"math"
	"testing"
)

// A small heap may double as Go's do; a large one grows by heapRoom, a huge one
// by a quarter.
func TestGCPercent(t *testing.T) {
	for live, want := range map[uint64]int{
		0: 100, 10 << 20: 100, heapRoom: 100, 2 * heapRoom: 50, 3 * heapRoom: 33, 4 * heapRoom: 25, 1 << 40: 25, math.MaxUint64: 25,
	} {
		if got := gcPercent(live); got != want {
			t.Errorf("with %d bytes live: %d, want %d", live, got, want)
		}
	}
}
