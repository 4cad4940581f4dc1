package main

import (
	"context"
	"math"
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
	// heapMin is Go's own least heap at 100 %.
	heapMin = 4 << 20
	// busyGrowthMax and gcPercentMax limit the growth of a heap because much is allocated. The
	// percentage holds for an interval, in which the live heap may grow too: without these
	// limits a burst of requests had 130 MiB (TestSystemIngressWithoutBus), with them 49.
	busyGrowthMax = 64 << 20
	gcPercentMax  = 200
	// gcPercentMin limits how often a very large heap is collected.
	gcPercentMin = 25
	// heapInterval is how often boundHeap adjusts the percentage.
	heapInterval = time.Second
	// gcPercentStep is by which part a percentage has to change, because each change stops
	// all goroutines for a moment.
	gcPercentStep = 0.2
)

// gcPercent returns the GOGC for a heap with so many live bytes, in a process that
// allocates so many in a heapInterval. The heap may double. A small one may also grow by
// what is allocated in an interval, within the limits above, so that it is collected less often.
// At 10,000 requests/s a percentage of 400 had 5 % less CPU and p99 of 35 and 24 ms instead
// of 43 and 34 (benchmarks/ingress, 2026-11-25).
func gcPercent(live, allocated uint64) int {
	live = max(live, heapMin)
	growth := min(heapGrowthMax, max(live, min(allocated, busyGrowthMax)))
	return int(min(gcPercentMax, max(gcPercentMin, growth*100/live)))
}

// boundHeap keeps the heap from growing by more than heapGrowthMax until ctx is
// done. It does nothing if environ sets GOGC or GOMEMLIMIT.
func boundHeap(ctx context.Context, environ []string) {
	if slices.ContainsFunc(environ, func(v string) bool {
		return strings.HasPrefix(v, "GOGC=") || strings.HasPrefix(v, "GOMEMLIMIT=")
	}) {
		return
	}
	heap := []metrics.Sample{{Name: "/gc/heap/live:bytes"}, {Name: "/gc/heap/allocs:bytes"}}
	metrics.Read(heap)
	before := heap[1].Value.Uint64()
	ticker := time.NewTicker(heapInterval)
	defer ticker.Stop()
	defer debug.SetGCPercent(debug.SetGCPercent(100))
	for now := 100; ; {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		metrics.Read(heap)
		next := gcPercent(heap[0].Value.Uint64(), heap[1].Value.Uint64()-before)
		before = heap[1].Value.Uint64()
		if math.Abs(float64(next-now)) > gcPercentStep*float64(now) {
			now = next
			debug.SetGCPercent(next)
		}
	}
}
