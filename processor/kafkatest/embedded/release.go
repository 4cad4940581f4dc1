package embedded

import "testing"

// cleanupsMax is more cleanups than a test has.
const cleanupsMax = 200

// releaseAtEnd makes a test release the memory of what the cleanups that are registered after this call refer to, when they have run.
// Package testing refers to every parallel test until the last one ends, and by it to the cleanups that have run: to brokers with their
// records, and to processes with their state. In package processor that was 3 GB, which each garbage collection marked.
func releaseAtEnd(tb testing.TB) {
	tb.Cleanup(func() {
		// In place of those that have run.
		for range cleanupsMax {
			tb.Cleanup(func() {})
		}
	})
}
