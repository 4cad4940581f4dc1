package wire

import (
	"reflect"
	"slices"
	"testing"

	"oncebus/dedup"
)

// progressOf returns the progress of one topic and one route.
func progressOf(counted int64, readTo []int64, passed ...Passed) Progress {
	p := Progress{Outcomes: []OutcomesProgress{{Topic: 3, CountedAt: counted, ReadTo: readTo}}}
	if len(passed) > 0 {
		p.Executors = []ExecutorProgress{{Route: "ops", Passed: passed}}
	}
	return p
}

func leaseOf100(string) (int64, uint16) { return 100, 3 }

// TestProgressEncoding: what was encoded is decoded, and nothing that is cut short is.
func TestProgressEncoding(t *testing.T) {
	const unknown = unknownTime
	for _, p := range []Progress{
		{},
		progressOf(vectorTime, []int64{vectorTime, vectorTime - 5000, unknown, vectorTime + 1}),
		progressOf(vectorTime, []int64{unknown}, Passed{vectorTime - 60_000, vectorTime}, Passed{vectorTime, vectorTime + 1}),
		{Outcomes: []OutcomesProgress{NewOutcomesProgress(0, -1, 2), NewOutcomesProgress(65535, 0, 1)}, Executors: []ExecutorProgress{{Route: "a"}, {Route: "b"}}},
	} {
		encoded := p.Append(nil)
		back, err := DecodeProgress(encoded)
		if err != nil || !reflect.DeepEqual(back, p) {
			t.Errorf("%+v: decoded to %+v, %v", p, back, err)
		}
		for n := range encoded {
			if _, err := DecodeProgress(encoded[:n]); err == nil {
				t.Errorf("%+v: %d of %d bytes decoded", p, n, len(encoded))
			}
		}
		if _, err := DecodeProgress(append(encoded, 0)); err == nil {
			t.Errorf("%+v: a further byte decoded", p)
		}
	}
	c := Checkpoint{Epoch: -1, ClaimedAt: 5, ProgressAt: 6, SteppedAt: 7, Progress: progressOf(9, []int64{9}, Passed{1, 2})}
	c.StreamTimes.At[4], c.StreamTimes.Has[4] = 6, true
	if back, err := DecodeCheckpoint(c.Append(nil)); err != nil || !reflect.DeepEqual(back, c) {
		t.Errorf("the checkpoint is %+v, %v", back, err)
	}
	if (&Checkpoint{Epoch: -1}).Append(nil)[0] != checkpointVersion {
		t.Error("an earlier build cannot read a checkpoint without claims")
	}
}

// TestProgressIsTheLeastOfItsPartitions, and unknown while one of them is.
func TestProgressIsTheLeastOfItsPartitions(t *testing.T) {
	for _, c := range []struct {
		p    Progress
		want int64
	}{
		{Progress{}, unknownTime},
		{progressOf(50, []int64{40, 45}), 40},
		{progressOf(30, []int64{40, 45}), 30}, // partitions may have been added since
		{progressOf(50, []int64{40, unknownTime}), unknownTime},
	} {
		if got := c.p.OutcomesReadTo(3); got != c.want {
			t.Errorf("%+v is read to %d, want %d", c.p, got, c.want)
		}
	}
}

// TestExecutorProgressKeepsWhatALeaseNeeds: records that come more often than a lease is
// long do not keep it from ending, and their number is bounded.
func TestExecutorProgressKeepsWhatALeaseNeeds(t *testing.T) {
	var p Progress
	for now := int64(0); now < 5000; now += 10 {
		record := progressOf(now, []int64{now - 1000}, Passed{To: now - 500}) // the outcomes are read late
		p = p.Merge(&record, now, leaseOf100)
		if n := len(p.executor("ops")); n > passedMax {
			t.Fatalf("%d entries at %d", n, now)
		}
		to := p.ExecutorPassedTo("ops", 100, 0, p.OutcomesReadTo(3))
		latest := p.OutcomesReadTo(3) - 100 - 500 // of what was committed a lease ago
		if to != dedup.NoStreamTime && to >= latest || now > 3000 && to < latest-500 {
			t.Fatalf("at %d the executor passed %d, want little less than %d", now, to, latest)
		}
	}
	// After a step of broker time, what was committed before it counts from then on.
	read := p.OutcomesReadTo(3)
	if to := p.ExecutorPassedTo("ops", 100, read, read+100); to != dedup.NoStreamTime {
		t.Errorf("a lease after a step: passed %d", to)
	}
}

// TestMergeDoesNotChangeItsReceiver, which checkpoints share.
func TestMergeDoesNotChangeItsReceiver(t *testing.T) {
	p := progressOf(10, []int64{10, 10}, Passed{1, 10})
	before := p.Append(nil)
	record := progressOf(1000, []int64{1000, unknownTime, 1000}, Passed{900, 0})
	merged := p.Merge(&record, 1000, leaseOf100)
	if !slices.Equal(p.Append(nil), before) {
		t.Errorf("merged into %+v", p)
	}
	if want := []int64{1000, 10, 1000}; !slices.Equal(merged.Outcomes[0].ReadTo, want) {
		t.Errorf("read to %v, want %v", merged.Outcomes[0].ReadTo, want)
	}
}

// TestMergeKeepsPartitionsThatABrokerDoesNotKnowYet: metadata of a broker that is behind
// must not drop the partition that was added, whose outcomes are unread.
func TestMergeKeepsPartitionsThatABrokerDoesNotKnowYet(t *testing.T) {
	p := progressOf(50, []int64{50, 50, unknownTime})
	record := progressOf(60, []int64{60, 60})
	p = p.Merge(&record, 60, leaseOf100)
	if to := p.OutcomesReadTo(3); to != unknownTime {
		t.Errorf("read to %d, and one partition is unread", to)
	}
	record = progressOf(70, []int64{unknownTime, unknownTime, 70})
	if p = p.Merge(&record, 70, leaseOf100); p.OutcomesReadTo(3) != 60 {
		t.Errorf("read to %d, want 60", p.OutcomesReadTo(3))
	}
	record = progressOf(80, []int64{80, 80})
	if p = p.Merge(&record, 80, leaseOf100); p.OutcomesReadTo(3) != 70 {
		t.Errorf("read to %d by an old count, want 70", p.OutcomesReadTo(3))
	}
}

// TestMergeIgnoresTimesBeforeAStep: what is far ahead of the broker that stored the record
// was observed before broker time was set back, and says nothing of the time until then.
func TestMergeIgnoresTimesBeforeAStep(t *testing.T) {
	const stored = 1_000_000
	p := progressOf(stored, []int64{stored - 5000, stored - 4000})
	record := progressOf(stored, []int64{stored + aheadMax, stored + aheadMax + 1}, Passed{stored + aheadMax + 1, 0})
	merged := p.Merge(&record, stored, leaseOf100)
	if want := []int64{stored, stored - 4000}; !slices.Equal(merged.Outcomes[0].ReadTo, want) {
		t.Errorf("read to %v, want %v", merged.Outcomes[0].ReadTo, want)
	}
	if n := len(merged.executor("ops")); n > 0 {
		t.Errorf("%d entries of the executor", n)
	}
	record = progressOf(stored+aheadMax+1, []int64{stored, stored})
	if merged = p.Merge(&record, stored, leaseOf100); merged.OutcomesReadTo(3) != stored-5000 {
		t.Errorf("read to %d by a count of a later time", merged.OutcomesReadTo(3))
	}
}
