package processor

import (
	"math"
	"sync"
	"time"

	"oncebus/processor/app"
)

// alignment tells the routing workers of a process how far, in record time, each of them has read the partitions
// in which it has a backlog. A worker that is ahead then waits, so that no worker reads far ahead of another one
// (see timeOrder).
type alignment struct {
	mu      sync.Mutex
	workers map[alignedLane]*alignedWorker
	// left holds the partitions that one worker has released, and that no other worker has been assigned yet.
	left map[app.TaskID]leftPartition
}

// leftPartition says up to which time a released partition was read, and since when no worker has it.
type leftPartition struct {
	group uint16
	at    int64
	since time.Time
}

// leave notes that a worker gives up a partition with a backlog. Until another worker has the partition, no
// worker reads far ahead of the time up to which the partition was read.
func (a *alignment) leave(id app.TaskID, group uint16, at int64) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.left == nil {
		a.left = map[app.TaskID]leftPartition{}
	}
	a.left[id] = leftPartition{group, at, time.Now()}
}

// taken notes that a worker was assigned a partition that leave may have noted.
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

// alignedWorker says how far a worker has read its backlogs in one group of partitions.
type alignedWorker struct {
	at    int64     // least timestamp of the worker's backlogs; math.MaxInt64 without any
	moved time.Time // when at changed last
	needs int64     // timestamp of the record that waits for other workers; math.MaxInt64 for none
}

// least returns the least time of the other workers in a group. It leaves out workers and released partitions
// whose time has not changed for stuckAfter. needs is the timestamp of a record of the caller that may have to
// wait for others: the caller is woken as soon as the record need not wait any more.
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

// set notes the least time of the backlogs of a worker in a group, math.MaxInt64 if the worker has no backlog.
// It wakes the other workers if they have a record that waited until this worker had reached that time.
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

// hasOthers reports whether workers other than that of the given timeOrder have backlogs.
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
