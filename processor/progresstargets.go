package processor

import (
	"slices"
	"time"
)

// unwellInterval is the time after which a partition that acknowledged no progress record gets one again.
const unwellInterval = 30 * time.Second

// progressTargets chooses the partitions of the repartition topic to which progress records go. A partition
// that acknowledges no record keeps the transaction open until its timeout, and no task can read anything
// of that transaction meanwhile. So such a partition is unwell, and gets its next progress records in
// transactions without those for well partitions. Its task learns later how far the inputs were read; no
// verdict depends on that. Only the worker uses progressTargets.
type progressTargets struct {
	unwell  map[int32]bool
	retryAt time.Time
}

// choose returns a function that reports whether a partition gets the next progress record.
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

// failed notes which partitions have acknowledged a progress record of a transaction that had to end, and
// which have not. If none has, the brokers are away, and no partition counts as unwell.
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

// acknowledged notes that a transaction with progress records for these partitions is committed.
func (t *progressTargets) acknowledged(partitions []int32) {
	for _, partition := range partitions {
		delete(t.unwell, partition)
	}
}
