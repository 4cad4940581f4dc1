package processor_test

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"oncebus/processor"
	"oncebus/processor/app"
	"oncebus/processor/wire"
)

// bothRoutes are the bench's route and a second route named alerts.
var bothRoutes = benchRoutes + strings.NewReplacer("signals", "alerts", "routes:\n", "").Replace(benchRoutes)

// alert makes an event of the route alerts.
func alert(id string) *kgo.Record {
	r := signal(id, 0, testTime)
	r.Topic = "alerts.raw"
	return r
}

// idIn returns an id whose key belongs to this partition of the repartition topic. Another number gives another id.
func (b *bench) idIn(i *instance, topic string, partition int32, number int) string {
	b.t.Helper()
	deriver := b.routes.NewDeriver(nil)
	for n := range 10_000 {
		id := fmt.Sprintf("%d-%d", number, n)
		r := signal(id, 0, testTime)
		r.Topic = topic
		in := wire.InputOf(r)
		derived := deriver.Derive(&in)
		if i.App().Hasher.Partition(&derived.Routing) == partition {
			return id
		}
	}
	b.t.Fatalf("no id is in partition %d", partition)
	return ""
}

// keysOf returns the record keys of a topic, sorted.
func (b *bench) keysOf(topic string) (keys []string) {
	b.t.Helper()
	for _, r := range b.read(topic) {
		keys = append(keys, string(r.Key))
	}
	slices.Sort(keys)
	return keys
}

// taskOf returns the state of a task of the repartition topic.
func (i *instance) taskOf(partition int32) processor.TaskState {
	for _, task := range i.State().Tasks {
		if task.ID() == (app.TaskID{Topic: "app-repartition", Partition: partition}) {
			return task
		}
	}
	return processor.TaskState{}
}

// rollingUpdate is an app in the middle of a rolling update: the process old does not know the route alerts, the
// process fresh does. Both own tasks.
type rollingUpdate struct {
	*bench
	oldConfig  processor.Config
	old, fresh *instance
	waits      int32 // a task of old
}

// roll starts an app with one process without the route alerts, and a second process with it.
//
// The app is at level 1, where the routes file of each process decides.
func roll(t *testing.T) *rollingUpdate {
	b := newBench(t, benchRoutes)
	b.beginAtLevel1()
	return rollOver(b, bothRoutes, b.config("one"), func(*processor.Processor) {})
}

// rollOver starts a process with the bench's routes, and a second process with other routes.
func rollOver(b *bench, routes string, cfg processor.Config, prepare func(*processor.Processor)) *rollingUpdate {
	b.t.Helper()
	u := &rollingUpdate{bench: b, oldConfig: cfg}
	u.old = u.ready(u.startWith(u.oldConfig, prepare))
	u.useRoutes(routes)
	u.fresh = u.ready(u.start(u.config("two")))
	u.wait("both processes to own tasks", func() bool {
		return len(u.old.Assigned(processor.StageDedup)) > 0 && len(u.fresh.Assigned(processor.StageDedup)) > 0 &&
			u.old.Ready() == nil && u.fresh.Ready() == nil
	})
	for id := range u.old.Assigned(processor.StageDedup) {
		u.waits = id.Partition
	}
	return u
}

// meet sends a record of the route alerts to a task of old, between two records of its own route, and waits until the
// task waits. It returns three ids: of the event before the unknown record, of the unknown record, and of the event
// after it.
func (u *rollingUpdate) meet() (before, unknown, after string) {
	u.t.Helper()
	before, after = u.idIn(u.old, "signals.raw", u.waits, 1), u.idIn(u.old, "signals.raw", u.waits, 2)
	unknown = u.idIn(u.old, "alerts.raw", u.waits, 3)
	u.produce(signal(before, 0, testTime))
	u.wait("the event before", func() bool { return len(u.keysOf("signals.unique")) == 1 })
	u.produce(alert(unknown))
	u.wait("the task to wait", func() bool { return u.old.taskOf(u.waits).State == processor.TaskWaiting.String() })
	u.produce(signal(after, 0, testTime))
	return before, unknown, after
}

// routedWith returns the routed record of an event with an id.
func (u *rollingUpdate) routedWith(id string) *kgo.Record {
	u.t.Helper()
	for _, r := range u.routedRecords() {
		if bytes.Contains(r.Value, []byte(`"`+id+`"`)) {
			return r
		}
	}
	u.t.Fatalf("no record of %s was routed", id)
	return nil
}

// TestRecordsOfAnUnknownRouteWait covers a rolling update that adds a route while a process that does not know the
// route yet owns a task that gets its records. That task waits before the first such record. The process does not
// stop, and its other tasks continue.
func TestRecordsOfAnUnknownRouteWait(t *testing.T) {
	t.Parallel()
	u := roll(t)
	before, unknown, _ := u.meet()

	others := map[string]bool{"k-" + before: true}
	for partition := range int32(4) {
		if partition != u.waits {
			id := u.idIn(u.old, "signals.raw", partition, 4)
			others["k-"+id] = true
			u.produce(signal(id, 1, testTime))
		}
	}
	u.wait("the events of the other tasks", func() bool { return len(u.keysOf("signals.unique")) == len(others) })
	for _, key := range u.keysOf("signals.unique") {
		if !others[key] {
			t.Errorf("event %s came out, which is behind the unknown record", key)
		}
	}
	if out := u.read("alerts.unique"); len(out) != 0 {
		t.Errorf("%d events of the unknown route came out", len(out))
	}
	if out := u.read("dead"); len(out) != 0 {
		t.Errorf("%d dead letters", len(out))
	}
	task := u.old.taskOf(u.waits)
	at := u.routedWith(unknown).Offset
	for _, part := range []string{fmt.Sprintf("the record at offset %d has route alerts", at), "not in the routes file", "restart this process with the route", "put it back"} {
		if !strings.Contains(task.Reason, part) {
			t.Errorf("/state says %q, want %q in it", task.Reason, part)
		}
	}
	u.wait("the reason in /readyz", func() bool {
		err := u.old.Ready()
		return err != nil && strings.Contains(err.Error(), task.Task+" is waiting: "+task.Reason)
	})
	if err := u.fresh.Ready(); err != nil {
		t.Errorf("the process that knows the route is not ready: %v", err)
	}
	if task.Lag < 1 {
		t.Errorf("lag %d, but a record waits", task.Lag)
	}
	metrics := gather(t, u.old)
	if metrics[`oncebus_unknown_route_tasks{route="alerts"}`] != 1 || metrics[`oncebus_tasks{state="waiting"}`] != 1 {
		t.Errorf("metrics say %v and %v", metrics[`oncebus_unknown_route_tasks{route="alerts"}`], metrics[`oncebus_tasks{state="waiting"}`])
	}
}

// TestLagInSecondsIsThatOfTheOldestRecord protects that the lag is measured from the broker's time of the record that
// waits, and rises while the task publishes nothing.
func TestLagInSecondsIsThatOfTheOldestRecord(t *testing.T) {
	t.Parallel()
	u := roll(t)
	_, unknown, _ := u.meet()
	appended := u.routedWith(unknown).Timestamp
	series := fmt.Sprintf(`oncebus_task_lag_seconds{partition="%d",topic="app-repartition"}`, u.waits)
	u.wait("the lag to be known", func() bool { return u.old.taskOf(u.waits).Lag > 0 })
	before := time.Since(appended)
	inState, inMetrics := u.old.taskOf(u.waits).LagSeconds, gather(t, u.old)[series]
	after := time.Since(appended)
	const tolerance = 1 // of the estimate of broker time, on a busy machine
	for _, seconds := range []float64{inState, inMetrics} {
		if seconds < before.Seconds()-tolerance || seconds > after.Seconds()+tolerance {
			t.Errorf("lag %v s, want %v to %v", seconds, before, after)
		}
	}
	u.wait("the lag in seconds to rise", func() bool { return gather(t, u.old)[series] > inMetrics+0.2 })
	for partition := range int32(4) {
		if task := u.old.taskOf(partition); partition != u.waits && task.Lag == 0 && task.LagSeconds != 0 {
			t.Errorf("task %d has no lag, but %v s of it", partition, task.LagSeconds)
		}
	}
}

// TestWaitingTaskContinuesAfterARestartWithTheRoute lets the rolling update reach the old process. Every event is
// emitted once.
func TestWaitingTaskContinuesAfterARestartWithTheRoute(t *testing.T) {
	t.Parallel()
	u := roll(t)
	before, unknown, after := u.meet()
	must(t, u.old.stop())
	i := u.ready(u.start(u.oldConfig)) // with both routes
	u.drain(i, "signals.raw", "alerts.raw")
	u.assertKeys("signals.unique", before, after)
	u.assertKeys("alerts.unique", unknown)
	u.produce(signal(after, 2, testTime), alert(unknown), signal(before, 3, testTime))
	u.drain(i, "signals.raw", "alerts.raw")
	u.assertKeys("signals.unique", before, after)
	u.assertKeys("alerts.unique", unknown)
}

// TestWaitingTaskContinuesInAProcessWithTheRoute lets the partition of a waiting task move to a process that knows
// the route. The task continues there.
func TestWaitingTaskContinuesInAProcessWithTheRoute(t *testing.T) {
	t.Parallel()
	u := roll(t)
	before, unknown, after := u.meet()
	must(t, u.old.stop())
	u.wait("the tasks to move", func() bool { return len(u.fresh.Assigned(processor.StageDedup)) == 4 })
	u.drain(u.fresh, "signals.raw", "alerts.raw")
	u.assertKeys("signals.unique", before, after)
	u.assertKeys("alerts.unique", unknown)
	if n := gather(t, u.old)[`oncebus_unknown_route_tasks{route="alerts"}`]; n != 0 {
		t.Errorf("after the stop, %v tasks wait", n)
	}
}

// TestRecordsOfARemovedRouteWait removes a route before its records are processed. They wait until the route is put
// back; then the task continues.
func TestRecordsOfARemovedRouteWait(t *testing.T) {
	t.Parallel()
	u := roll(t)
	before, unknown, after := u.meet()
	must(t, u.fresh.stop())
	must(t, u.old.stop())
	with := u.routes
	u.useRoutes(benchRoutes)
	i := u.start(u.oldConfig)
	u.wait("the reason in /readyz", func() bool {
		err := i.Ready()
		return err != nil && strings.Contains(err.Error(), "put it back until its records are processed")
	})
	must(t, i.stop())
	u.routes = with
	i = u.ready(u.start(u.oldConfig))
	u.drain(i, "signals.raw", "alerts.raw")
	u.assertKeys("signals.unique", before, after)
	u.assertKeys("alerts.unique", unknown)
}

// TestUnknownRecordInATransactionThatAborts aborts the transaction in which the task met the unknown record. The task
// judges the records before it again, once, and waits.
func TestUnknownRecordInATransactionThatAborts(t *testing.T) {
	t.Parallel()
	u := roll(t)
	var ids, alerts []string
	var records []*kgo.Record
	for n := range 10 {
		ids = append(ids, u.idIn(u.old, "signals.raw", u.waits, n))
		alerts = append(alerts, u.idIn(u.old, "alerts.raw", u.waits, n))
		records = append(records, signal(ids[n], 0, testTime), alert(alerts[n]))
	}
	fault := u.cluster.Fault(kfake.Fault{
		Keys: []kmsg.Key{kmsg.TxnOffsetCommit}, Group: app.GroupName("app", processor.StageDedup), Err: kerr.UnknownMemberID, Count: 3,
	})
	u.produce(records...)
	u.wait("the task to wait", func() bool {
		return fault.Hits() == 3 && u.old.taskOf(u.waits).State == processor.TaskWaiting.String()
	})
	must(t, u.old.stop())
	i := u.ready(u.start(u.oldConfig))
	u.drain(i, "signals.raw", "alerts.raw")
	u.assertKeys("signals.unique", ids...)
	u.assertKeys("alerts.unique", alerts...)
}

// TestUnknownRecordDuringABypass covers an unknown route that shares the namespace of a fail_open route, and whose
// record meets a task without a store. The task neither forwards the record nor counts it as forwarded, because no
// process would then emit it.
func TestUnknownRecordDuringABypass(t *testing.T) {
	t.Parallel()
	const open = "    on_state_failure: fail_open\n"
	b := newBench(t, benchRoutes+open)
	b.beginAtLevel1()
	cfg, disk, place := b.onDisk(500)
	added := strings.NewReplacer("signals", "alerts", "routes:\n", "").Replace(benchRoutes) + open + "    namespace: signals\n"
	u := rollOver(b, benchRoutes+open+added, cfg, place)
	disk.free.Store(80)
	u.wait("the task without a store", func() bool { return u.old.taskOf(u.waits).State == processor.TaskBypassing.String() })
	before, unknown, after := u.idIn(u.old, "signals.raw", u.waits, 1), u.idIn(u.old, "alerts.raw", u.waits, 3), u.idIn(u.old, "signals.raw", u.waits, 2)
	u.produce(signal(before, 0, testTime))
	u.passesTo("signals.unique", 1)
	u.produce(alert(unknown))
	u.wait("the task to wait", func() bool { return strings.Contains(u.old.taskOf(u.waits).Reason, "has route alerts") })
	u.produce(signal(after, 0, testTime))
	disk.free.Store(500)
	u.wait("the task to wait with its store", func() bool { return u.old.taskOf(u.waits).State == processor.TaskWaiting.String() })
	u.assertKeys("signals.unique", before)
	must(t, u.old.stop())
	i := u.ready(u.startWith(cfg, place))
	u.drain(i, "signals.raw", "alerts.raw")
	u.assertKeys("signals.unique", before, after)
	u.assertKeys("alerts.unique", unknown)
}

// TestRemovedRouteWithoutRecordsLeavesTheAppReady protects that a rolling update may remove a route whose records
// were all processed before: the app stays ready.
func TestRemovedRouteWithoutRecordsLeavesTheAppReady(t *testing.T) {
	t.Parallel()
	for name, routes := range map[string]string{
		"routed":         bothRoutes,
		"prepartitioned": strings.Replace(bothRoutes, "topics: [alerts.raw]\n", "topics: [alerts.raw]\n    prepartitioned: true\n", 1),
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t, routes)
			b.beginAtLevel1()
			b.keepAssignments()
			configs := []processor.Config{b.config("one"), b.config("two")}
			processes := []*instance{b.ready(b.start(configs[0])), b.ready(b.start(configs[1]))}
			b.wait("two members", func() bool {
				return len(processes[0].Assigned(processor.StageDedup)) <= len(processes[1].Assigned(processor.StageDedup))
			})
			b.produce(append(batch("s", 8), renamed("alerts.raw", batch("a", 8))...)...)
			b.drain(processes[1], "signals.raw", "alerts.raw")
			b.useRoutes(benchRoutes)
			for n, cfg := range configs {
				must(t, processes[n].stop())
				processes[n] = b.ready(b.startWith(cfg, func(p *processor.Processor) { p.SetOwnersInterval(50 * time.Millisecond) }))
			}
			b.produce(batch("t", 8)...)
			b.drain(processes[1], "signals.raw")
			for _, i := range processes {
				b.ready(i)
				b.wait("partitions of the topics that are read", func() bool { return !i.owns("alerts.raw") })
			}
			if out := b.read("signals.unique"); len(out) != 16 {
				t.Errorf("%d events came out, want 16", len(out))
			}
		})
	}
}

// owns reports whether the group has assigned partitions of a topic to the instance.
func (i *instance) owns(topic string) bool {
	for _, stage := range []string{processor.StageRoute, processor.StageDedup} {
		for id := range i.Assigned(stage) {
			if id.Topic == topic {
				return true
			}
		}
	}
	return false
}

// keepAssignments lets static members keep their assignment over a restart with other topics, as Kafka does: Kafka
// compares only the names of their balancers, while the embedded broker also compares their subscriptions.
func (b *bench) keepAssignments() {
	joins := map[string][]kmsg.JoinGroupRequestProtocol{} // by member, its last join
	b.cluster.Intercept(func(kreq kmsg.Request) (kmsg.Response, error, bool) {
		req := kreq.(*kmsg.JoinGroupRequest)
		if req.InstanceID == nil {
			return nil, nil, false
		}
		if req.MemberID == "" && joins[*req.InstanceID] != nil {
			req.Protocols = joins[*req.InstanceID]
		}
		joins[*req.InstanceID] = req.Protocols
		return nil, nil, false
	}, kmsg.JoinGroup)
}

// assertKeys checks that a topic has one record of each id, and no other.
func (b *bench) assertKeys(topic string, ids ...string) {
	b.t.Helper()
	var want []string
	for _, id := range ids {
		want = append(want, "k-"+id)
	}
	slices.Sort(want)
	if got := b.keysOf(topic); !slices.Equal(got, want) {
		b.t.Errorf("%s holds %v, want %v", topic, got, want)
	}
}
