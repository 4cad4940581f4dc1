package processor_test

import (
	"fmt"
	"testing"

	"oncebus/processor"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/twmb/franz-go/pkg/kgo"
)

// TestSecondRevocationWithoutTrafficIsNoticed lets instances join one by one
// while nothing is to do. franz-go's session passes only the first revocation
// on until a transaction ends (hazard A8); a task must be owned once all the
// same.
func TestSecondRevocationWithoutTrafficIsNoticed(t *testing.T) {
	t.Parallel()
	b := newBench(t, benchRoutes)
	var all []*instance
	for n := range 3 {
		cfg := b.config(fmt.Sprint("slot", n))
		cfg.Partitions = 6 // 6, then 3 and 3, then 2 each: the first gives up some twice
		all = append(all, b.ready(b.start(cfg)))
	}
	b.wait("every task to have one owner", func() bool {
		owners := map[string]int{}
		for _, i := range all {
			if i.Ready() != nil {
				return false
			}
			tasks := i.State().Tasks
			if len(tasks) != 2 {
				return false
			}
			for _, task := range tasks {
				owners[task.Task]++
			}
		}
		for _, n := range owners {
			if n != 1 {
				return false
			}
		}
		return len(owners) == 6
	})
	records, sent := traffic(100)
	b.produce(records...)
	b.drain(all[0], "signals.raw")
	assertOnce(t, b.read("signals.unique"), sent)
}

// TestInputBelowTheCheckpointIsSkipped sets the consumer back to the start,
// behind the back of a running instance (invariant 6).
func TestInputBelowTheCheckpointIsSkipped(t *testing.T) {
	t.Parallel()
	b := newBench(t, benchRoutes)
	i := b.ready(b.start(b.config("one")))
	records, sent := traffic(50)
	b.produce(records...)
	b.drain(i, "signals.raw")
	duplicates := func() float64 {
		return testutil.ToFloat64(i.JudgeMetrics().Events.WithLabelValues("signals", "duplicate"))
	}
	before := duplicates()
	i.SetOffsets(processor.StageDedup, map[string]map[int32]kgo.EpochOffset{"app-repartition": {0: {Epoch: -1}, 1: {Epoch: -1}, 2: {Epoch: -1}, 3: {Epoch: -1}}})
	// A judge without the skip takes the first record of each partition for one that was forwarded unchecked.
	b.wait("most of the old records to be read again", func() bool { return testutil.ToFloat64(i.JudgeMetrics().Reread)+duplicates()-before >= 100 })
	b.drain(i, "signals.raw")
	if now := duplicates(); now != before {
		t.Errorf("skipped records were counted as %v duplicates", now-before)
	}
	assertOnce(t, b.read("signals.unique"), sent)
}
