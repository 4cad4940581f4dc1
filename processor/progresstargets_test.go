package processor

import (
	"slices"
	"testing"
	"time"
)

// TestPartitionThatTakesNothingKeepsNoProgressBack protects the other partitions from a partition that acknowledges
// no progress record: after a while, it gets its next progress records in a transaction without the other partitions,
// until it acknowledges one. If no partition acknowledges a record, the brokers are away, and no partition counts as
// unwell.
func TestPartitionThatTakesNothingKeepsNoProgressBack(t *testing.T) {
	t.Parallel()
	now := time.Now()
	var targets progressTargets
	want := func(when string, after time.Duration, want ...int32) {
		t.Helper()
		var got []int32
		chosen := targets.choose(now.Add(after))
		for partition := range int32(3) {
			if chosen(partition) {
				got = append(got, partition)
			}
		}
		if !slices.Equal(got, want) {
			t.Errorf("%s: partitions %v, want %v", when, got, want)
		}
	}
	want("at first", 0, 0, 1, 2)
	targets.failed([]int32{0, 1, 2}, []int32{0, 1, 2}, now)
	want("after the brokers were away", 0, 0, 1, 2)
	targets.failed([]int32{0, 1, 2}, []int32{1}, now)
	want("after partition 1 took nothing", time.Second, 0, 2)
	want("after a while", unwellInterval, 1)
	want("after its own transaction", unwellInterval+time.Second, 0, 2)
	targets.failed([]int32{1}, []int32{1}, now.Add(unwellInterval+time.Second))
	want("after that has failed", unwellInterval+2*time.Second, 0, 2)
	want("later", 2*unwellInterval+time.Second, 1)
	targets.acknowledged([]int32{1})
	want("after it took one", 2*unwellInterval+2*time.Second, 0, 1, 2)
	targets.failed([]int32{0, 1, 2}, []int32{0, 1}, now)
	targets.failed([]int32{2}, []int32{2}, now)
	want("after the brokers were away with two that take nothing", time.Second, 2)
	want("after a while again", unwellInterval, 0, 1)
	targets.failed([]int32{0, 1}, []int32{0}, now)
	want("after one of the two took one, in a transaction that the other one kept open", time.Second, 1, 2)
}
