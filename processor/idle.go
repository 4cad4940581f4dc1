package processor

import (
	"runtime/debug"
	"sync/atomic"
	"time"
)

// idleAfter is how long a worker has no transaction before it releases the memory that
// it reuses from one to the next.
const idleAfter = 5 * time.Second

// idleMemory returns the free memory of a process when all of its workers are idle. Go
// would keep what a burst of events needed: after half a million events a process had
// 220 MiB and used 60 of them.
type idleMemory struct {
	after  time.Duration
	active atomic.Int32 // workers that are not idle
	free   func()       // returns free memory to the system; tests replace it
}

func newIdleMemory() *idleMemory { return &idleMemory{after: idleAfter, free: debug.FreeOSMemory} }

// memoryUse is one worker's use of memory for transactions.
type memoryUse struct {
	shared *idleMemory
	active bool
	usedAt time.Time // when the worker last began a transaction or made a client
}

// use marks the worker as active: it has records, or a new client.
func (m *memoryUse) use() {
	if !m.active {
		m.active = true
		m.shared.active.Add(1)
	}
	m.usedAt = time.Now()
}

// releaseIfIdle calls release if the worker had no transaction for idleAfter. The last
// worker to do so also returns the free memory to the system.
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
