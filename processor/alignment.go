package processor

import (
	"math"
	"sync"
	"time"

	"oncebus/processor/app"
)

// alignment tells the routing workers of a process how far each of them is with its backlogs, so that none
// of them reads far ahead of another (see timeOrder).
type alignment struct {
	mu      sync.Mutex
	workers map[alignedLane]*alignedWorker
	// left are the partitions that a worker has released and no other worker has got yet.
	left map[app.TaskID]leftPartition
}

// leftPartition is how far a released partition was read, and since when it has no worker.
type leftPartition struct {
	group uint16
	at    int64
	since time.Time
}

// leave notes that a worker gives up a partition with a backlog. Until another worker has it, no worker
// reads far ahead of it.
func (a *alignment) leave(id app.TaskID, group uint16, at int64) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.left == nil {
		a.left = map[app.TaskID]leftPartition{}
	}
	a.left[id] = leftPartition{group, at, time.Now()}
}

// taken notes that a worker has got a partition.
func (a *alignment) taken(id app.TaskID) {
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.left, id)
}

// alignedLane identifies the lane of one worker.
type alignedLane struct {
	group uint16
	order *timeOrder
}

// alignedWorker is how far a worker is in one group of partitions.
type alignedWorker struct {
	at    int64     // least timestamp of the worker's backlogs; math.MaxInt64 without any
	moved time.Time // when at last changed
	needs int64     // the timestamp of the record that waits for others; math.MaxInt64 for none
}

// least returns the least time of the other workers in a group, without workers and released partitions
// that have not moved for stuckAfter. If a record with the timestamp needs has to wait for others, the
// caller is woken as soon as the record need not wait any more.
func (a *alignment) least(group uint16, of *timeOrder, needs, room int64) int64 {
	a.mu.Lock()
	defer a.mu.Unlock()
	least := int64(math.MaxInt64)
	for key, w := range a.workers {
		if key.group == group && key.order != of && time.Since(w.moved) < stuckAfter {
			least = min(least, w.at)
		}
	}
	for id, p := range a.left {
		switch {
		case time.Since(p.since) >= stuckAfter:
			delete(a.left, id)
		case p.group == group:
			least = min(least, p.at)
		}
	}
	if own := a.workers[alignedLane{group, of}]; own != nil && needs > later(least, room) {
		own.needs = needs
	}
	return least
}

// set notes the least time of the backlogs of a worker in a group, math.MaxInt64 without any, and wakes the
// workers whose records waited for it.
func (a *alignment) set(group uint16, of *timeOrder, at, room int64) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.workers == nil {
		a.workers = map[alignedLane]*alignedWorker{}
	}
	key := alignedLane{group, of}
	own := a.workers[key]
	switch {
	case at == math.MaxInt64:
		delete(a.workers, key)
	case own == nil:
		a.workers[key] = &alignedWorker{at, time.Now(), math.MaxInt64}
	case own.at != at:
		own.at, own.moved = at, time.Now()
	}
	for other, w := range a.workers {
		if other.group == group && other.order != of && w.needs < math.MaxInt64 && w.needs <= later(at, room) {
			w.needs = math.MaxInt64
			other.order.wake()
		}
	}
}

// hasOthers reports whether other workers have backlogs.
func (a *alignment) hasOthers(of *timeOrder) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	for key := range a.workers {
		if key.order != of {
			return true
		}
	}
	return false
}
