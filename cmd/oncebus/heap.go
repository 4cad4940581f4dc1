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
	// heapGrowthMax is how many bytes the heap may grow between two collections. By default Go lets the heap
	// double: 50 million keys, with up to 500 MiB live, would take 1 GiB. Rows and filters contain no pointers,
	// so a collection costs about the same with many keys as with few.
	heapGrowthMax = 192 << 20
	// heapMin is the size below which the Go runtime does not collect at GOGC=100.
	heapMin = 4 << 20
	// busyGrowthMax and gcPercentMax limit how much the heap grows because the process allocates much. The
	// percentage is adjusted only once per interval, and the live heap may grow in the meantime: without these
	// limits the heap reached 130 MiB in a burst of requests (TestSystemIngressWithoutBus), with them 49 MiB.
	busyGrowthMax = 64 << 20
	gcPercentMax  = 200
	// gcPercentMin bounds how often the garbage collector runs on a very large heap.
	gcPercentMin = 25
	// heapInterval is how often boundHeap adjusts the percentage of GOGC.
	heapInterval = time.Second
	// gcPercentStep is by which fraction the percentage must differ before boundHeap changes it, because each
	// change stops all goroutines for a moment.
	gcPercentStep = 0.2
)

// gcPercent returns the value of GOGC for a heap with this many live bytes, in a process that allocates this
// many bytes per heapInterval. The heap may double. A small heap may also grow by the number of bytes that the
// process allocates in an interval, within the limits above, so that the garbage collector runs less often. At
// 10,000 requests/s, a percentage of 400 took 5 % less CPU and lowered p99 to 35 and 24 ms, from 43 and 34 ms
// (benchmarks/ingress, 2026-11-25).
func gcPercent(live, allocated uint64) int {
	live = max(live, heapMin)
	growth := min(heapGrowthMax, max(live, min(allocated, busyGrowthMax)))
	return int(min(gcPercentMax, max(gcPercentMin, growth*100/live)))
}

// boundHeap keeps the heap from growing by more than heapGrowthMax between collections, until ctx is done. It
// does nothing if environ sets GOGC or GOMEMLIMIT, because then the operator has chosen the behaviour.
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
