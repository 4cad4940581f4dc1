package processor_test

import (
	"context"
	"maps"
	"reflect"
	"sync"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"oncebus/processor"
	"oncebus/processor/app"
	"oncebus/processor/assign"
)

// warmConfig has so many partitions that no process gets its former partitions by chance.
func (b *bench) warmConfig(instance string) processor.Config {
	cfg := b.config(instance)
	cfg.Partitions = 8
	return cfg
}

// tasksOf returns the partitions of the tasks that an instance runs.
func (b *bench) tasksOf(i *instance) map[app.TaskID]bool {
	return i.Assigned(processor.StageDedup)
}

// share waits until two instances run half of the tasks each.
func (b *bench) share(one, other *instance) {
	b.t.Helper()
	b.wait("both to run half of the tasks", func() bool {
		return one.Ready() == nil && other.Ready() == nil && len(b.tasksOf(one)) == 4 && len(b.tasksOf(other)) == 4
	})
}

// balancerOf returns the balancer that the group of the dedup stage uses.
func (b *bench) balancerOf() string {
	described, err := b.admin.DescribeGroups(b.t.Context(), app.GroupName("app", processor.StageDedup))
	must(b.t, err)
	return described[app.GroupName("app", processor.StageDedup)].Protocol
}

// TestFormerOwnerGetsItsTasksAgain lets a process stay away for longer than its session, so that others run its
// tasks. When it comes back it gets the same tasks, and reads only what their changelogs got meanwhile. A process
// that has lost its directories reads everything.
func TestFormerOwnerGetsItsTasksAgain(t *testing.T) {
	t.Parallel()
	b := newBench(t, benchRoutes)
	stays, leaves := b.warmConfig("stays"), b.warmConfig("leaves")
	one, other := b.start(stays), b.start(leaves)
	b.share(one, other)
	produced := 0
	more := func(n int) {
		produced += n
		records, _ := traffic(produced)
		b.produce(records...)
		b.drain(one, "signals.raw")
	}
	more(400)
	for round := range 2 {
		had := b.tasksOf(other)
		must(t, other.stop())
		b.wait("the other tasks", func() bool { return len(b.tasksOf(one)) == 8 && one.Ready() == nil })
		more(80)
		other = b.start(leaves)
		b.share(one, other)
		if has := b.tasksOf(other); !maps.Equal(has, had) {
			t.Errorf("round %d: the process had %v and gets %v", round, had, has)
		}
		got := gather(t, other)
		if warm, cold := got[`oncebus_restores_total{local_state="warm"}`], got[`oncebus_restores_total{local_state="cold"}`]; warm != 4 || cold != 0 {
			t.Errorf("round %d: %v restores were warm and %v cold, want 4 and 0", round, warm, cold)
		}
		if rows := got["oncebus_restored_rows_total"]; rows > 80 {
			t.Errorf("round %d: %v rows were read, and 80 events came meanwhile", round, rows)
		}
	}
	must(t, other.stop())
	leaves.StateDir = t.TempDir()
	other = b.start(leaves)
	b.share(one, other)
	if cold := gather(t, other)[`oncebus_restores_total{local_state="cold"}`]; cold != 4 {
		t.Errorf("%v restores were cold, want 4 without directories", cold)
	}
	records, sent := traffic(produced)
	b.produce(records...)
	b.drain(one, "signals.raw")
	assertOnce(t, b.read("signals.unique"), sent)
	if used := b.balancerOf(); used != assign.ProtocolName {
		t.Errorf("the group uses the balancer %q", used)
	}
	b.assertWhole(one)
}

// TestMembersOfferTheBalancerOfEarlierBuilds protects that members also offer the balancer of earlier builds, because
// a broker refuses a member that shares no balancer with the group.
func TestMembersOfferTheBalancerOfEarlierBuilds(t *testing.T) {
	t.Parallel()
	b := newBench(t, benchRoutes)
	var mu sync.Mutex
	offered := map[string][]string{} // by group, of the last join
	b.cluster.ControlKey(int16(kmsg.JoinGroup), func(req kmsg.Request) (kmsg.Response, error, bool) {
		b.cluster.KeepControl()
		join := req.(*kmsg.JoinGroupRequest)
		mu.Lock()
		defer mu.Unlock()
		offered[join.Group] = nil
		for _, p := range join.Protocols {
			offered[join.Group] = append(offered[join.Group], p.Name)
		}
		return nil, nil, false
	})
	b.ready(b.start(b.warmConfig("one")))
	mu.Lock()
	defer mu.Unlock()
	want := map[string][]string{"app-dedup": {assign.ProtocolName, "cooperative-sticky"}, "app-route": {"cooperative-sticky"}}
	if !reflect.DeepEqual(offered, want) {
		t.Errorf("the members offer %v, want %v", offered, want)
	}
}

// TestBuildsWithAndWithoutTheBalancerShareAGroup covers a member of an earlier build, which knows only
// cooperative-sticky, so that its group uses that balancer. When the member has left, the group uses the new
// balancer, and goes back when the member returns. Tasks that stay are not restored.
func TestBuildsWithAndWithoutTheBalancerShareAGroup(t *testing.T) {
	t.Parallel()
	b := newBench(t, benchRoutes)
	one := b.ready(b.start(b.warmConfig("one")))
	ended, end := context.WithCancel(t.Context())
	end()
	for range 2 {
		if used := b.balancerOf(); used != assign.ProtocolName {
			t.Fatalf("the group uses the balancer %q before an earlier build joins", used)
		}
		earlier := b.newClient(kgo.ConsumerGroup("app-dedup"), kgo.ConsumeTopics("app-repartition"), kgo.DisableAutoCommit(),
			kgo.Balancers(kgo.CooperativeStickyBalancer()), kgo.SessionTimeout(time.Second), kgo.HeartbeatInterval(100*time.Millisecond))
		b.wait("the earlier build to get half of the tasks", func() bool {
			earlier.PollFetches(ended) // returns at once
			return len(b.tasksOf(one)) == 4 && one.Ready() == nil && b.balancerOf() == "cooperative-sticky"
		})
		kept := b.tasksOf(one)
		before := gather(t, one)
		earlier.Close()
		b.wait("all tasks", func() bool { return len(b.tasksOf(one)) == 8 && one.Ready() == nil })
		b.wait("the new balancer", func() bool { return b.balancerOf() == assign.ProtocolName })
		after := gather(t, one)
		sum := func(m map[string]float64) float64 {
			return m[`oncebus_restores_total{local_state="warm"}`] + m[`oncebus_restores_total{local_state="cold"}`]
		}
		if n := sum(after) - sum(before); n != 4 {
			t.Errorf("%v tasks were restored, want the 4 that %v lacks", n, kept)
		}
	}
	records, sent := traffic(200)
	b.produce(records...)
	b.drain(one, "signals.raw")
	assertOnce(t, b.read("signals.unique"), sent)
}

// TestWorkersOfAProcessShareItsDirectories protects that any worker of a process counts as warm for all directories
// of the process, also for those that another worker wrote.
func TestWorkersOfAProcessShareItsDirectories(t *testing.T) {
	t.Parallel()
	b := newBench(t, benchRoutes)
	stays, leaves := b.warmConfig("stays"), b.warmConfig("leaves")
	stays.Workers, leaves.Workers = 2, 2
	one, other := b.start(stays), b.start(leaves)
	b.share(one, other)
	records, sent := traffic(400)
	b.produce(records...)
	b.drain(one, "signals.raw")
	had := b.tasksOf(other)
	must(t, other.stop())
	b.wait("the other tasks", func() bool { return len(b.tasksOf(one)) == 8 && one.Ready() == nil })
	other = b.start(leaves)
	b.share(one, other)
	if has := b.tasksOf(other); !maps.Equal(has, had) {
		t.Errorf("the process had %v and gets %v", had, has)
	}
	byWorker := map[string]int{}
	for _, task := range other.State().Tasks {
		byWorker[task.Worker]++
	}
	for worker, n := range byWorker {
		if n != 2 {
			t.Errorf("worker %s has %d of the 4 tasks", worker, n)
		}
	}
	b.produce(records...)
	b.drain(one, "signals.raw")
	assertOnce(t, b.read("signals.unique"), sent)
}
