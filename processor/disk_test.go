package processor_test

import (
	"context"
	"errors"
	"os"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/twmb/franz-go/pkg/kadm"

	"oncebus/processor"
	"oncebus/processor/app"
	"oncebus/processor/kafka"
	"oncebus/processor/kafkatest"
	"oncebus/processor/restore"
	"oncebus/state"
)

// fakeDisk is a disk of 1000 MB whose free space the test sets in MB.
type fakeDisk struct{ free atomic.Int64 }

func (d *fakeDisk) space(string) (state.Space, error) {
	free := d.free.Load()
	if free < 0 {
		return state.Space{}, errors.New("no such disk")
	}
	return state.Space{Free: uint64(free) * 1e6, Total: 1000e6}, nil
}

// onDisk returns a configuration with disk levels, the disk, and the function that makes a processor use the disk.
func (b *bench) onDisk(free int64) (processor.Config, *fakeDisk, func(*processor.Processor)) {
	b.t.Helper()
	d := &fakeDisk{}
	d.free.Store(free)
	cfg := b.config("one")
	cfg.Disk = restore.Disk{MinFreePercent: 10, StartMinFreePercent: 5}
	return cfg, d, func(p *processor.Processor) { p.Stores().Disk.Space = d.space }
}

func diskPaused(i *instance) bool {
	err := i.Ready()
	return testutil.ToFloat64(i.RestoreMetrics().DiskPaused) == 1 && err != nil && strings.Contains(err.Error(), "paused: the disk of the state directory")
}

// dedupOffsets returns the offsets that the tasks' group has committed, by partition.
func (b *bench) dedupOffsets() map[int32]int64 {
	b.t.Helper()
	committed, err := b.admin.FetchOffsets(context.Background(), app.GroupName("app", processor.StageDedup))
	must(b.t, err)
	at := map[int32]int64{}
	committed.Each(func(o kadm.OffsetResponse) { at[o.Partition] = o.At })
	return at
}

// routed reports whether the routing stage has committed all of signals.raw.
func (b *bench) routed() bool {
	b.t.Helper()
	lag, err := b.admin.Lag(context.Background(), app.GroupName("app", processor.StageRoute))
	if err != nil {
		return false
	}
	l := lag[app.GroupName("app", processor.StageRoute)].Lag
	return len(l) > 0 && l.Total() == 0
}

// TestDiskThatFills protects that tasks pause below the pause level while they stay members of their group, and that
// readiness has the reason. With a fifth more free space than the level, the tasks continue.
func TestDiskThatFills(t *testing.T) {
	t.Parallel()
	b := newBench(t, benchRoutes)
	cfg, disk, place := b.onDisk(500)
	i := b.ready(b.startWith(cfg, place))
	records, sent := traffic(200)
	b.produce(records[:300]...)
	b.drain(i, "signals.raw")
	committed := func() float64 { n, _, _ := i.outcomes(processor.StageDedup); return n }
	disk.free.Store(99)
	b.wait("the pause", func() bool { return diskPaused(i) })
	b.wait("the worker to hold", func() bool { return i.FetchingPaused(processor.StageDedup) })
	before, transactions := b.dedupOffsets(), committed()
	b.produce(records[300:]...)
	b.wait("the routing stage, which goes on", b.routed)
	disk.free.Store(119) // more than the level, less than a fifth more
	b.wait("two looks at the disk", func() bool { return testutil.ToFloat64(i.RestoreMetrics().DiskFree) == 119e6 })
	if !diskPaused(i) {
		t.Error("work went on at the level itself")
	}
	if below := gather(t, i)["oncebus_disk_pause_bytes"]; below != 100e6 {
		t.Errorf("the metric says that tasks pause below %v bytes, want 100 MB", below)
	}
	if now := b.dedupOffsets(); len(now) != 4 || committed() != transactions {
		t.Errorf("%v transactions while paused; offsets %v, before %v", committed()-transactions, now, before)
	}
	group, err := b.admin.DescribeGroups(context.Background(), app.GroupName("app", processor.StageDedup))
	must(t, err)
	if g := group[app.GroupName("app", processor.StageDedup)]; g.State != "Stable" || len(g.Members) != 1 {
		t.Errorf("the group is %s with %d members", g.State, len(g.Members))
	}
	disk.free.Store(-1) // unknown free space: the tasks neither pause nor go on
	b.wait("the warning", func() bool { return strings.Contains(b.logs.String(), "free disk space unknown") })

	disk.free.Store(121)
	b.drain(i, "signals.raw")
	assertOnce(t, b.read("signals.unique"), sent)
	if testutil.ToFloat64(i.RestoreMetrics().DiskPaused) != 0 || testutil.ToFloat64(i.Rebuilt().WithLabelValues(processor.StageDedup)) != 0 {
		t.Error("still paused, or a client was replaced")
	}
}

// TestStartOnAFullDisk protects that below the refuse level nothing starts and nothing is written, and that between
// the two levels tasks wait with their restore.
func TestStartOnAFullDisk(t *testing.T) {
	t.Parallel()
	b := newBench(t, benchRoutes)
	cfg, disk, place := b.onDisk(49)
	i := b.startWith(cfg, place)
	<-i.done
	if !errors.Is(i.err, kafka.ErrOperator) || !strings.Contains(i.err.Error(), "49000000 bytes free (4.9 %), a start needs 50000000") {
		t.Fatalf("run returned %v", i.err)
	}
	disk.free.Store(60)
	i = b.startWith(cfg, place)
	b.wait("the group", func() bool { return len(i.State().Tasks) == 4 })
	for _, task := range i.State().Tasks {
		if _, err := os.Stat(i.Stores().DirOf(task.ID())); task.State != processor.TaskRestoring.String() || !errors.Is(err, os.ErrNotExist) {
			t.Errorf("task %s is %s on a disk that is filling; its directory: %v", task.Task, task.State, err)
		}
	}
	disk.free.Store(500)
	b.ready(i)
	must(t, i.stop())

	cfg.Disk.MinFreeBytes = 1200e6 // of a disk of 1000
	i = b.startWith(cfg, place)
	if <-i.done; !errors.Is(i.err, kafka.ErrOperator) {
		t.Errorf("run returned %v", i.err)
	}
}

// TestNetworkFileSystemIsRefused protects against state on a network file system, where Badger's lock and ours do not
// work because they are local (E7).
func TestNetworkFileSystemIsRefused(t *testing.T) {
	t.Parallel()
	b := newBench(t, benchRoutes)
	i := b.startWith(b.config("one"), func(p *processor.Processor) {
		p.Stores().Disk.Network = func(string) (string, error) { return "NFS", nil }
	})
	if <-i.done; !errors.Is(i.err, kafka.ErrOperator) || !strings.Contains(i.err.Error(), "network file system (NFS)") {
		t.Errorf("run returned %v", i.err)
	}
}

// TestRealDiskThatFills fills a small real file system under a running processor.
func TestRealDiskThatFills(t *testing.T) {
	t.Parallel()
	b := newBench(t, benchRoutes)
	cfg := b.config("one")
	disk := kafkatest.MountDisk(t, cfg.StateDir, "48m")
	cfg.Disk = restore.Disk{MinFreePercent: 10, StartMinFreePercent: 5}
	cfg.State.FlushRows = 500
	i := b.ready(b.start(cfg))
	before, after := batch("before", 1500), batch("after", 1500)
	b.produce(before...)
	b.drain(i, "signals.raw")

	disk.Fill(9)
	b.wait("the pause", func() bool { return diskPaused(i) })
	b.wait("the worker to hold", func() bool { return i.FetchingPaused(processor.StageDedup) })
	b.produce(after...)
	b.wait("the routing stage, which goes on", b.routed)
	if s, err := state.DiskSpace(cfg.StateDir); err != nil || s.Free == 0 {
		t.Errorf("paused with %d bytes free: %v", s.Free, err)
	}
	assertOut(t, b, before)
	disk.Clear()
	b.drain(i, "signals.raw")
	assertOut(t, b, before, after)
	must(t, i.stop())
}
