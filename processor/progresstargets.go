package processor

import (
	"slices"
	"time"
)

// unwellInterval is after what time a partition that acknowledged no progress record gets one again.
const unwellInterval = 30 * time.Second

// progressTargets are the partitions of the repartition topic that progress records go to. One that
// acknowledges none keeps the transaction open until its timeout, and nothing of it is read
// meanwhile. So it gets the next ones in transactions of its own. Its task learns later how far the
// inputs were read; no verdict depends on that. Only the worker uses it.
type progressTargets struct {
	unwell  map[int32]bool
	retryAt time.Time
}

// choose returns whether a partition gets the next progress record.
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

// failed notes which partitions acknowledged a progress record of a transaction that had to end, and
// which did not. If none did, the brokers are away.
func (t *progressTargets) failed(sent, unacked []int32, now time.Time) {
	for _, partition := range sent {
		if !slices.Contains(unacked, partition) {
			delete(t.unwell, partition) // else one that never takes any would keep it from them
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
