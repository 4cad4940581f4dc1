package processor_test

import (
	"context"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"oncebus/processor"
	"oncebus/processor/app"
)

// TestRebalanceEndsRecounts lets another process join the group while a process counts the keys of all tasks again,
// which takes long. The rebalance ends the recounts of the tasks that move, the other recounts go on, and the process
// remains a member.
func TestRebalanceEndsRecounts(t *testing.T) {
	t.Parallel()
	b := newBench(t, benchRoutes)
	b.beginAtLevel1()
	b.createTopic("signals.raw", 4)
	config := func(instance string) processor.Config {
		cfg := b.config(instance)
		cfg.Partitions = 2
		cfg.SessionTimeout = time.Minute // only a rebalance that is held removes a member
		return cfg
	}
	const keys = 5000 // of which each of two tasks counts more than one step
	before := batch("before", keys)
	b.lived(config("one"), before...)
	b.useRoutes(strings.Replace(benchRoutes, "window: 1h", "window: 30m", 1)) // which makes a process count again

	var counting, ended, further atomic.Int64
	finish := make(chan struct{})
	one := b.startWith(config("one"), func(p *processor.Processor) {
		p.SetCounting(func(ctx context.Context) {
			if ctx.Err() != nil {
				further.Add(1)
				return
			}
			counting.Add(1)
			select {
			case <-ctx.Done():
				ended.Add(1)
			case <-finish:
			}
		})
	})
	b.wait("both tasks to count", func() bool { return counting.Load() == 2 })
	two := b.start(config("two"))
	b.wait("the other process to own a task", func() bool { return two.Ready() == nil && len(two.State().Tasks) > 0 })
	if ended.Load() != 1 || further.Load() != 0 {
		t.Errorf("%d recounts were ended by the rebalance, and counted %d further steps; want one that ends at once", ended.Load(), further.Load())
	}
	if got, want := b.instances(app.StageDedup), []string{"app-one-dedup-0", "app-two-dedup-0"}; !slices.Equal(got, want) {
		t.Errorf("members: %v, want %v", got, want)
	}
	close(finish)
	b.ready(one)
	after := batch("after", 40)
	b.produce(append(slices.Clone(before[:40]), after...)...)
	b.drain(one, "signals.raw")
	assertOut(t, b, before, after)
	if logs := b.logs.String(); strings.Contains(logs, "level=ERROR") {
		t.Error("the log has errors")
	}
}
