package processor_test

import (
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kmsg"

	"oncebus/processor"
	"oncebus/processor/app"
)

// instances returns the group instance ids of a stage's members.
func (b *bench) instances(stage string) (all []string) {
	b.t.Helper()
	for _, m := range b.cluster.GroupInfo(app.GroupName("app", stage)).Members {
		all = append(all, *m.InstanceID)
	}
	slices.Sort(all)
	return all
}

// memberConfig returns the configuration of a process whose session lasts longer than a test waits.
func (b *bench) memberConfig(instance string, leaveOnStop bool) processor.Config {
	cfg := b.config(instance)
	cfg.SessionTimeout, cfg.LeaveOnStop = 4*time.Minute, leaveOnStop
	return cfg
}

// TestStopLeavesTheGroup protects that another process takes over the partitions of a stopping process without
// waiting for the session timeout. A process that comes back under its name keeps its membership.
func TestStopLeavesTheGroup(t *testing.T) {
	t.Parallel()
	for name, leave := range map[string]bool{"leaves": true, "comes back": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newBench(t, benchRoutes)
			b.createTopic("signals.raw", 4)
			config := func(instance string) processor.Config { return b.memberConfig(instance, leave) }
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

// TestStopInARebalanceLeavesTheGroup stops a process that would keep its membership while its workers wait to join a
// generation of their groups. The workers must leave: a worker that is the group leader and never assigns the
// partitions would keep all other processes waiting until the rebalance timeout, in the middle of their transactions.
// A rolling restart on a real broker showed this.
func TestStopInARebalanceLeavesTheGroup(t *testing.T) {
	t.Parallel()
	b := newBench(t, benchRoutes)
	b.createTopic("signals.raw", 4)
	config := func(instance string) processor.Config { return b.memberConfig(instance, false) }
	members := func(names ...string) bool {
		for _, stage := range []string{app.StageRoute, app.StageDedup} {
			var want []string
			for _, name := range names {
				want = append(want, "app-"+name+"-"+stage+"-0")
			}
			if !slices.Equal(b.instances(stage), want) {
				return false
			}
		}
		return true
	}
	one := b.ready(b.start(config("one")))
	two := b.start(config("two"))
	// Each member has its half in this generation, so that no member joins again by itself.
	b.wait("two members that have joined", func() bool {
		for _, stage := range []string{app.StageRoute, app.StageDedup} {
			group := b.cluster.GroupInfo(app.GroupName("app", stage))
			if group.State != "Stable" || slices.ContainsFunc(group.Members, func(m kfake.GroupMember) bool { return m.NumAssigned() != 2 }) {
				return false
			}
		}
		return members("one", "two") && two.Ready() == nil
	})

	var mu sync.Mutex
	joining := map[string]bool{} // instances of process one that wait for the next generation
	release := make(chan struct{})
	b.cluster.ControlKey(int16(kmsg.JoinGroup), func(req kmsg.Request) (kmsg.Response, error, bool) {
		b.cluster.KeepControl()
		switch instance := *req.(*kmsg.JoinGroupRequest).InstanceID; instance {
		case "app-one-route-0", "app-one-dedup-0":
			mu.Lock()
			joining[instance] = true
			mu.Unlock()
		case "app-two-route-0", "app-two-dedup-0":
			b.cluster.SleepControl(func() { <-release })
		}
		return nil, nil, false
	})
	three := b.start(config("three"))
	b.wait("process one to join both groups again", func() bool {
		mu.Lock()
		defer mu.Unlock()
		return len(joining) == 2
	})
	must(t, one.stop())
	for _, stage := range []string{app.StageRoute, app.StageDedup} {
		if got := b.instances(stage); slices.Contains(got, "app-one-"+stage+"-0") {
			t.Errorf("members after the stop: %v", got)
		}
	}
	close(release)
	b.wait("a generation without process one", func() bool {
		return members("three", "two") && two.Ready() == nil && three.Ready() == nil && len(two.State().Tasks) == 2 && len(three.State().Tasks) == 2
	})
	events := batch("after", 8)
	b.produce(events...)
	b.wait("the events after the stop", func() bool { return len(b.read("signals.unique")) == len(events) })
	assertOut(t, b, events)
}
