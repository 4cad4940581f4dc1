package processor_test

import (
	"slices"
	"testing"
	"time"

	"oncebus/processor"
	"oncebus/processor/app"
)

// instances returns the group instances of a stage's members.
func (b *bench) instances(stage string) (all []string) {
	b.t.Helper()
	for _, m := range b.cluster.GroupInfo(app.GroupName("app", stage)).Members {
		all = append(all, *m.InstanceID)
	}
	slices.Sort(all)
	return all
}

// TestStopLeavesTheGroup: another process takes over the partitions of a process that
// stops, without a wait for the session timeout. A process that comes back under its name
// keeps its membership.
func TestStopLeavesTheGroup(t *testing.T) {
	t.Parallel()
	for name, leave := range map[string]bool{"leaves": true, "comes back": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newBench(t, benchRoutes)
			b.createTopic("signals.raw", 4)
			config := func(instance string) processor.Config {
				cfg := b.config(instance)
				cfg.SessionTimeout = 4 * time.Minute // far beyond the patience of this test
				cfg.LeaveOnStop = leave
				return cfg
			}
			one := b.ready(b.start(config("one")))
			two := b.start(config("two"))
			b.wait("two members", func() bool {
				return len(b.instances(app.StageRoute)) == 2 && len(b.instances(app.StageDedup)) == 2 && two.Ready() == nil && len(two.State().Tasks) == 2
			})
			before, after := batch("before", 8), batch("after", 8)
			b.produce(before...)
			b.wait("the first events", func() bool { return len(b.read("signals.unique")) == len(before) })
			must(t, one.stop())
			if leave {
				b.wait("the takeover", func() bool { return two.Ready() == nil && len(two.State().Tasks) == 4 })
			}
			for _, stage := range []string{app.StageRoute, app.StageDedup} {
				want := []string{"app-two-" + stage + "-0"}
				if !leave {
					want = []string{"app-one-" + stage + "-0", "app-two-" + stage + "-0"}
				}
				if got := b.instances(stage); !slices.Equal(got, want) {
					t.Errorf("members after the stop: %v, want %v", got, want)
				}
			}
			if !leave {
				b.ready(b.start(config("one")))
			}
			b.produce(after...)
			b.wait("the events after the stop", func() bool { return len(b.read("signals.unique")) == len(before)+len(after) })
			assertOut(t, b, before, after)
		})
	}
}
