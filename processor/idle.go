package processor

import (
	"runtime/debug"
	"sync/atomic"
	"time"
)

// idleAfter is how long a worker does without transactions before it releases
// the memory that it keeps from one to the next.
const idleAfter = 5 * time.Second

// idleMemory is what the workers of a process share to find out that all of them
// are idle. Go would keep what a burst of events needed: after half a million of
// them a process held 220 MiB, 60 of which it still used.
type idleMemory struct {
	after  time.Duration
	active atomic.Int32 // workers that are not idle
	free   func()       // returns free memory to the system; tests watch it
}

func newIdleMemory() *idleMemory { return &idleMemory{after: idleAfter, free: debug.FreeOSMemory} }

// memoryUse is one worker's use of memory for transactions.
type memoryUse struct {
	shared *idleMemory
	active bool
	usedAt time.Time // when it last began a transaction or got a client
}

// use notes that the worker has something to do: records, or a new client.
func (m *memoryUse) use() {
	if !m.active {
		m.active = true
		m.shared.active.Add(1)
	}
	m.usedAt = time.Now()
}

// releaseIfIdle calls release if the worker had no transaction for a while. The
// last worker to do so also returns the free memory to the system.
func (m *memoryUse) releaseIfIdle(release func()) {
	if !m.active || time.Since(m.usedAt) < m.shared.after {
		return
	}
	m.active = false
	release()
	if m.shared.active.Add(-1) == 0 {
		m.shared.free()
	}
}
