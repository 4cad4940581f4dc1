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
	// heapRoom is what the heap may grow by between two collections. Go lets it
	// double: with 50 million keys, 500 MiB of which are live at times, it would
	// take 1 GiB. Rows and filters hold no pointers, so a collection costs about
	// the same with many keys as with few.
	heapRoom = 192 << 20
	// gcPercentMin keeps collections apart when very much is live.
	gcPercentMin = 25
	// heapInterval is how often the percentage follows what is live.
	heapInterval = 5 * time.Second
)

// gcPercent is Go's GOGC for a heap of which so many bytes are live.
func gcPercent(live uint64) int {
	return int(min(100, max(gcPercentMin, heapRoom*100/max(live, 1))))
}

// boundHeap keeps the heap from growing by more than heapRoom until ctx is
// done, unless the environment says how it shall grow.
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
