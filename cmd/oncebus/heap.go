package main

import (
	"context"
	"runtime/debug"
	"runtime/metrics"
	"slices"
	"strings"
	"time"
)

const (
	// heapGrowthMax is how many bytes the heap may grow between two collections. By
	// default Go lets it double: 50 million keys, with up to 500 MiB live, would take
	// 1 GiB. Rows and filters contain no pointers, so a collection costs about the
	// same with many keys as with few.
	heapGrowthMax = 192 << 20
	// gcPercentMin limits how often a very large heap is collected.
	gcPercentMin = 25
	// heapInterval is how often boundHeap adjusts the percentage to the live heap.
	heapInterval = 5 * time.Second
)

// gcPercent returns the GOGC for a heap with so many live bytes.
func gcPercent(live uint64) int {
	return int(min(100, max(gcPercentMin, heapGrowthMax*100/max(live, 1))))
}

// boundHeap keeps the heap from growing by more than heapGrowthMax until ctx is
// done. It does nothing if environ sets GOGC or GOMEMLIMIT.
func boundHeap(ctx context.Context, environ []string) {
	if slices.ContainsFunc(environ, func(v string) bool {
		return strings.HasPrefix(v, "GOGC=") || strings.HasPrefix(v, "GOMEMLIMIT=")
	}) {
		return
	}
	live := []metrics.Sample{{Name: "/gc/heap/live:bytes"}}
	ticker := time.NewTicker(heapInterval)
	defer ticker.Stop()
	defer debug.SetGCPercent(debug.SetGCPercent(100))
	for now := 100; ; {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		metrics.Read(live)
		if next := gcPercent(live[0].Value.Uint64()); next != now {
			now = next
			debug.SetGCPercent(next)
		}
	}
}
