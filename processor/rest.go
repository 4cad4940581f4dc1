package processor

import (
	"runtime/debug"
	"sync/atomic"
	"time"
)

// restAfter is how long a worker does without transactions before it gives up
// the memory that it keeps from one to the next.
const restAfter = 5 * time.Second

// rest is what the workers of a process share to find out that none of them
// has anything to do. Go would keep what a burst of events needed: after half a
// million of them a process held 220 MiB, 60 of which it still used.
type rest struct {
	after    time.Duration
	awake    atomic.Int32 // workers that are not at rest
	giveBack func()       // tests look on
}

func newRest() *rest { return &rest{after: restAfter, giveBack: debug.FreeOSMemory} }

// awaken notes that the worker has something to do: records, or a new client.
func (w *worker) awaken() {
	if !w.awake {
		w.awake = true
		w.p.rest.awake.Add(1)
	}
	w.workedAt = time.Now()
}

// releaseIdleMemory drops the memory of the worker's transactions if there has been none
// for a while; the last worker to do so gives all that is free back.
func (w *worker) releaseIdleMemory() {
	if !w.awake || time.Since(w.workedAt) < w.p.rest.after {
		return
	}
	w.awake = false
	w.emitter.Release()
	if w.p.rest.awake.Add(-1) == 0 {
		w.p.rest.giveBack()
	}
}
