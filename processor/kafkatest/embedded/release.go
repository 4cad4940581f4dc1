package embedded

import "testing"

// cleanupsMax is larger than the number of cleanups that any test registers.
const cleanupsMax = 200

// releaseAtEnd makes a test release the memory that its cleanups refer to, once they have run. Package testing keeps
// every parallel test until the last one ends, and with each test the cleanups that have run. These refer to brokers
// with their records and to processes with their state: in package processor this was 3 GB, which each garbage
// collection had to mark. Call releaseAtEnd before the cleanups are registered.
func releaseAtEnd(tb testing.TB) {
	tb.Cleanup(func() {
		// Empty functions overwrite the cleanups that have run in the list that package testing keeps.
		for range cleanupsMax {
			tb.Cleanup(func() {})
		}
	})
}
