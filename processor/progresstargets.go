package processor

import (
	"slices"
	"time"
)

// unwellInterval is the time after which a partition that did not acknowledge its last progress record gets one
// again.
const unwellInterval = 30 * time.Second

// progressTargets chooses the partitions of the repartition topic to which progress records go. If a partition
// does not acknowledge its record, the transaction stays open until its timeout, and until then no task can read
// any record of that transaction. So such a partition counts as unwell: its next progress records go into
// transactions that have none for well partitions. The task of the unwell partition learns later how far the
// inputs were read, but no verdict depends on when it learns that. Only the worker uses progressTargets.
type progressTargets struct {
	unwell  map[int32]bool
	retryAt time.Time
}

// choose returns a function that reports whether a partition gets the next progress record. Usually the well
// partitions get it, and once in unwellInterval the unwell ones instead.
func (t *progressTargets) choose(now time.Time) func(partition int32) bool {
	if len(t.unwell) == 0 {
		return func(int32) bool { return true }
	}
	retries := !now.Before(t.retryAt)
	if retries {
		t.retryAt = now.Add(unwellInterval)
	}
	return func(partition int32) bool { return t.unwell[partition] == retries }
}

// failed notes, for a transaction that had to end, which partitions have acknowledged its progress record, and
// which have not. If no partition has, the brokers are unreachable, and no partition counts as unwell.
func (t *progressTargets) failed(sent, unacked []int32, now time.Time) {
	for _, partition := range sent {
		if !slices.Contains(unacked, partition) {
			delete(t.unwell, partition) // otherwise an unwell partition that never recovers would keep progress records from this one
		}
	}
	if len(unacked) == 0 || len(unacked) == len(sent) {
		return
	}
	if t.unwell == nil {
		t.unwell = map[int32]bool{}
	}
	for _, partition := range unacked {
		t.unwell[partition] = true
	}
	t.retryAt = now.Add(unwellInterval)
}

// acknowledged notes that a transaction with progress records for these partitions was committed.
func (t *progressTargets) acknowledged(partitions []int32) {
	for _, partition := range partitions {
		delete(t.unwell, partition)
	}
}
