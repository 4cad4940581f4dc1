package processor_test

import (
	"context"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"

	"oncebus/processor"
	"oncebus/processor/app"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// TestSecondRevocationWithoutTrafficIsNoticed lets instances join one by one while there is no traffic. franz-go's
// session passes only the first revocation on until a transaction ends (hazard A8); each task must have one owner all
// the same.
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

// TestInputLostInSilenceIsLeftAlone lets the group give an input to another process while franz-go's session says
// nothing of it (hazard A8). This process must forget the input: otherwise a hold or a clean stop would set the
// input's offset back to where this process left it.
func TestInputLostInSilenceIsLeftAlone(t *testing.T) {
	t.Parallel()
	b := newBench(t, benchRoutes)
	i := b.ready(b.start(b.config("one")))
	records, _ := traffic(100)
	b.produce(records...)
	b.drain(i, "signals.raw")
	has := len(i.NextRouted("signals.raw"))
	lost := app.TaskID{Topic: "signals.raw", Partition: 1}
	i.LoseInSilence(lost)
	b.wait("the process to forget the input", func() bool {
		_, knows := i.NextRouted("signals.raw")[lost.Partition]
		return !knows
	})
	if left := len(i.NextRouted("signals.raw")); left != has-1 {
		t.Errorf("the process has %d inputs left of %d", left, has)
	}
}

// pollGate keeps the clients of a process from polling while its channel, which has room for one element, is full.
type pollGate struct {
	full    chan struct{}
	waiting atomic.Int32
}

// OnPollStart implements kgo.HookPollStart. The client does not hold its rebalance lock there.
func (g *pollGate) OnPollStart(context.Context) {
	g.waiting.Add(1)
	defer g.waiting.Add(-1)
	g.full <- struct{}{}
	<-g.full
}

// TestGroupLostTwiceBeforeAPollIsForgotten lets a slow broker remove a worker from its group, take it back and remove
// it again before the worker polls. franz-go's session says nothing of the second loss (hazard A8). Other workers own
// the partitions now: a progress record would set an input's offset back, and a task would be open in two workers.
func TestGroupLostTwiceBeforeAPollIsForgotten(t *testing.T) {
	t.Parallel()
	for stage, has := range map[string]func(*instance) int{
		processor.StageRoute: func(i *instance) int { return len(i.NextRouted("signals.raw")) },
		processor.StageDedup: func(i *instance) int { return len(i.ToOpen()) },
	} {
		t.Run(stage, func(t *testing.T) {
			t.Parallel()
			b := newBench(t, benchRoutes)
			gate, cfg := &pollGate{full: make(chan struct{}, 1)}, b.config("one")
			cfg.Workers = 1
			i := b.ready(b.start(cfg, kgo.WithHooks(gate)))
			gate.full <- struct{}{}
			defer func() { <-gate.full }()
			b.wait("both workers to be kept from a poll", func() bool { return gate.waiting.Load() == 2 })
			group := app.GroupName("app", stage)
			keepOut := func() *kfake.FaultHandle {
				return b.cluster.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.JoinGroup}, Group: group, Err: kerr.CoordinatorLoadInProgress, Count: -1})
			}
			remove := func() {
				b.cluster.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.Heartbeat}, Group: group, Err: kerr.UnknownMemberID})
			}
			out := keepOut()
			remove()
			b.wait("the first loss", func() bool { return has(i) == 0 && len(i.Assigned(stage)) == 0 })
			out.Remove()
			b.wait("the partitions to come back", func() bool { return has(i) > 0 })
			keepOut()
			remove()
			b.wait("the second loss to be noticed", func() bool { return has(i) == 0 && len(i.Assigned(stage)) == 0 })
		})
	}
}

// TestMemberThatIsTakenBackOwnsNothing lets a slow broker remove a worker while it joins its group again, and take it
// back as another member. franz-go goes on with the former partitions, which other workers may have owned meanwhile,
// and says nothing (hazard A8). The worker must give them up first.
func TestMemberThatIsTakenBackOwnsNothing(t *testing.T) {
	t.Parallel()
	for _, stage := range []string{processor.StageRoute, processor.StageDedup} {
		t.Run(stage, func(t *testing.T) {
			t.Parallel()
			b := newBench(t, benchRoutes)
			cfg := b.config("one")
			cfg.Workers = 1
			i := b.ready(b.start(cfg))
			records, sent := traffic(100)
			b.produce(records...)
			b.drain(i, "signals.raw")
			assigned := func() int {
				return strings.Count(b.logs.String(), fmt.Sprintf("msg=\"partitions assigned\" instance=one worker=%s-0", stage))
			}
			before, group := assigned(), app.GroupName("app", stage)
			b.cluster.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.JoinGroup}, Group: group, Err: kerr.UnknownMemberID})
			b.cluster.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.Heartbeat}, Group: group, Err: kerr.RebalanceInProgress})
			b.wait("the worker to give its partitions up and get them", func() bool { return assigned() > before })
			b.drain(b.ready(i), "signals.raw")
			assertOnce(t, b.read("signals.unique"), sent)
		})
	}
}

// TestInputBelowTheCheckpointIsSkipped sets the consumer of a running instance back to the start without the
// instance's knowledge (invariant 6).
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
	// Without the skip, a judge would take the first record of each partition for a record that was forwarded
	// unchecked.
	b.wait("most of the old records to be read again", func() bool { return testutil.ToFloat64(i.JudgeMetrics().Reread)+duplicates()-before >= 100 })
	b.drain(i, "signals.raw")
	if now := duplicates(); now != before {
		t.Errorf("skipped records were counted as %v duplicates", now-before)
	}
	assertOnce(t, b.read("signals.unique"), sent)
}
