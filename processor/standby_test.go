package processor_test

import (
	"maps"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"oncebus/processor"
	"oncebus/processor/app"
)

// standby returns warmConfig with standbys that look at the group often.
func (b *bench) standby(instance string) (processor.Config, func(*processor.Processor)) {
	cfg := b.warmConfig(instance)
	cfg.Standby = true
	return cfg, func(p *processor.Processor) { p.SetOwnersInterval(100 * time.Millisecond) }
}

// follows waits until an instance follows these tasks up to the ends of their changelogs.
func (b *bench) follows(i *instance, tasks map[app.TaskID]bool) {
	b.t.Helper()
	b.wait("the standbys to be at the ends", func() bool {
		ends := b.ends("app-repartition-changelog")
		followed := map[string]int64{}
		for _, s := range i.State().Standbys {
			followed[s.Task] = s.Position
		}
		for id := range tasks {
			position, ok := followed[id.String()]
			end, _ := ends.Lookup("app-repartition-changelog", id.Partition)
			if !ok || position < end.At {
				return false
			}
		}
		return len(followed) == len(tasks)
	})
}

// TestStandbyTakesOverWithTheTail runs two processes that each follow the tasks of the other. When one has ended, the
// other reads only the rows that the standby lacks, into the store that the standby had.
func TestStandbyTakesOverWithTheTail(t *testing.T) {
	t.Parallel()
	b := newBench(t, benchRoutes)
	cfg, prepare := b.standby("one")
	one := b.startWith(cfg, prepare)
	cfg, prepare = b.standby("other")
	other := b.startWith(cfg, prepare)
	b.share(one, other)
	records, sent := traffic(400)
	b.produce(records...)
	b.drain(one, "signals.raw")
	b.follows(one, b.tasksOf(other))
	b.follows(other, b.tasksOf(one))
	before := gather(t, one)
	if rows := before["oncebus_standby_rows_total"]; rows == 0 {
		t.Error("no row of a standby was counted")
	}
	must(t, other.stop())
	b.wait("the other tasks", func() bool { return len(b.tasksOf(one)) == 8 && one.Ready() == nil })
	after := gather(t, one)
	if rows := after["oncebus_restored_rows_total"] - before["oncebus_restored_rows_total"]; rows != 0 {
		t.Errorf("the takeover read %v rows, want none: the standby had them", rows)
	}
	if warm := after[`oncebus_restores_total{local_state="warm"}`] - before[`oncebus_restores_total{local_state="warm"}`]; warm != 4 {
		t.Errorf("%v takeovers were warm, want 4", warm)
	}
	b.wait("no standby", func() bool { return len(one.State().Standbys) == 0 })
	b.produce(records...)
	b.drain(one, "signals.raw")
	assertOnce(t, b.read("signals.unique"), sent)
	b.assertWhole(one)
}

// TestStandbyStopsBeforeAnOpenTransaction lets the owner hang in a transaction. The standby reads up to the
// transaction and no further. When the group has removed the owner, the standby's process takes over, and its restore
// waits for the end of the transaction.
func TestStandbyStopsBeforeAnOpenTransaction(t *testing.T) {
	b := newBench(t, benchRoutes)
	cfg := b.warmConfig("zombie")
	cfg.TransactionTimeout = 3 * time.Second
	cfg.SessionTimeout = 5 * time.Second
	dialer := newStoppingDialer(kmsg.TxnOffsetCommit, "app-zombie-dedup-0")
	zombie := b.ready(b.start(cfg, kgo.Dialer(dialer.dial)))
	cfg, prepare := b.standby("standby")
	cfg.SessionTimeout = 5 * time.Second
	standby := b.startWith(cfg, prepare)
	b.share(zombie, standby)
	before, _ := traffic(200)
	b.produce(before...)
	b.drain(standby, "signals.raw")
	owned := b.tasksOf(zombie)
	b.follows(standby, owned)

	dialer.arm()
	records, sent := traffic(400)
	b.produce(records...)
	b.wait("the owner to hang", dialer.hasStopped)
	stable := map[string]int64{}
	for _, p := range b.cluster.PartitionInfos("app-repartition-changelog") {
		stable[app.TaskID{Topic: "app-repartition", Partition: p.Partition}.String()] = p.LastStableOffset
	}
	for _, s := range standby.State().Standbys {
		if s.Position > stable[s.Task] {
			t.Errorf("the standby of %s is at %d, behind the open transaction at %d", s.Task, s.Position, stable[s.Task])
		}
	}
	if open, standbys := b.openTransactions("app-repartition-changelog"), standby.State().Standbys; len(open) == 0 || len(standbys) == 0 {
		t.Fatalf("%d transactions are open, %d standbys run; want some of both", len(open), len(standbys))
	}
	b.wait("the rest", func() bool { return len(b.read("signals.unique")) >= len(sent) })
	dialer.resume()
	b.drain(standby, "signals.raw")
	assertOnce(t, b.read("signals.unique"), sent)
	b.ready(zombie)
}

// TestStandbyLeavesTheStoreToTheTask moves tasks back and forth while each process follows the tasks of the other.
// The directory of a task has one owner at a time.
func TestStandbyLeavesTheStoreToTheTask(t *testing.T) {
	t.Parallel()
	b := newBench(t, benchRoutes)
	cfg, prepare := b.standby("one")
	one := b.startWith(cfg, prepare)
	otherCfg, prepareOther := b.standby("other")
	sentAll, n := map[string]*kgo.Record{}, 0
	for range 4 {
		other := b.startWith(otherCfg, prepareOther)
		b.share(one, other)
		n += 60
		records, sent := traffic(n)
		maps.Copy(sentAll, sent)
		b.produce(records...)
		b.drain(one, "signals.raw")
		b.follows(one, b.tasksOf(other))
		must(t, other.stop())
		b.wait("all tasks", func() bool { return len(b.tasksOf(one)) == 8 && one.Ready() == nil })
	}
	assertOnce(t, b.read("signals.unique"), sentAll)
	b.assertWhole(one)
	if n := gather(t, one)["oncebus_quarantined_stores_total"]; n != 0 {
		t.Errorf("%v stores were quarantined", n)
	}
}

// TestStandbyDoesNotFollowACutChangelog protects that a standby does not follow a changelog that lacks rows and needs
// a decision. A restore would take the store that the standby made of it for a whole one.
func TestStandbyDoesNotFollowACutChangelog(t *testing.T) {
	t.Parallel()
	b := newBench(t, benchRoutes)
	one := b.start(b.warmConfig("one"))
	records, _ := traffic(400)
	b.produce(records...)
	b.drain(one, "signals.raw")
	b.cutChangelog()
	cfg, prepare := b.standby("two")
	two := b.startWith(cfg, prepare)
	b.awaitRefusals(two, 4, app.ChangelogCut) // the tasks that moved
	b.wait("the standby to give up", func() bool {
		for _, s := range two.State().Standbys {
			if s.Position > 0 {
				t.Fatalf("the changelog is followed: %+v", s)
			}
		}
		return strings.Contains(b.logs.String(), "local state and changelog do not fit together")
	})
	must(t, one.stop())
	b.awaitRefusals(two, 8, app.ChangelogCut)
}

// TestStandbyPausesWhileTheDiskFills protects that a standby's reading, which is not urgent, waits until the disk has
// space.
func TestStandbyPausesWhileTheDiskFills(t *testing.T) {
	t.Parallel()
	b := newBench(t, benchRoutes)
	owner := b.start(b.warmConfig("owner"))
	cfg, prepare := b.standby("standby")
	levels, disk, place := b.onDisk(500)
	cfg.Disk = levels.Disk
	standby := b.startWith(cfg, func(p *processor.Processor) {
		prepare(p)
		place(p)
	})
	b.share(owner, standby)
	records, sent := traffic(400)
	b.produce(records[:300]...)
	b.drain(owner, "signals.raw")
	b.follows(standby, b.tasksOf(owner))

	disk.free.Store(99)
	b.wait("the pause", func() bool { return diskPaused(standby) })
	rows := gather(t, standby)["oncebus_standby_rows_total"]
	b.produce(records[300:]...)
	b.wait("standbys that lack rows", func() bool {
		lag := 0.0
		for series, n := range gather(t, standby) {
			if strings.HasPrefix(series, "oncebus_standby_lag_records{") {
				lag += n
			}
		}
		return lag > 0
	})
	if now := gather(t, standby)["oncebus_standby_rows_total"]; now != rows {
		t.Errorf("the standbys read %v rows on a disk that is filling", now-rows)
	}
	disk.free.Store(500)
	b.drain(owner, "signals.raw")
	b.follows(standby, b.tasksOf(owner))
	assertOnce(t, b.read("signals.unique"), sent)
}
