package processor

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"oncebus/processor/wire"
)

// repartitioned waits until the repartition topic has so many records and returns
// when the broker stamped the newest, in ms.
func (b *bench) repartitioned(n int) (newest int64) {
	b.t.Helper()
	b.wait("the events to be routed", func() bool {
		records := b.read("app-repartition")
		for _, r := range records {
			newest = max(newest, r.Timestamp.UnixMilli())
		}
		return len(records) == n
	})
	return newest
}

// TestBacklogUsesUpNoLease: an event and its duplicate wait for the task for longer
// than the lease, and are judged one after the other. The first is dispatched
// only then, so the duplicate finds it at work.
func TestBacklogUsesUpNoLease(t *testing.T) {
	t.Parallel()
	b := newBench(t, strings.Replace(fmt.Sprintf(claimRoutes, "reject"), "lease: 10m", "lease: 5ms", 1))
	cfg, disk, place := b.onDisk(500)
	i := b.ready(b.startWith(cfg, place))
	disk.free.Store(80)
	b.wait("the worker to hold", func() bool { return i.FetchingPaused(stageDedup) })
	b.produce(operation("1", "first", 0))
	first := b.repartitioned(1)
	b.wait("the lease to be over, had it begun", func() bool { return time.Now().UnixMilli() > first+50 })
	b.produce(operation("1", "copy", 1))
	if copied := b.repartitioned(2); copied-first <= 5 {
		t.Fatalf("the duplicate is stamped %d ms after the first", copied-first)
	}
	disk.free.Store(500)
	b.drainClaims(i)
	if n := len(b.read("ops.run")); n != 1 {
		t.Errorf("%d attempts were dispatched, want the first alone", n)
	}
	assertHeaders(t, b.replies("ops.replies")["ops.raw/1/0"], map[string]string{wire.HeaderVerdict: "in_progress", wire.HeaderFirstRequest: "first"})
}

// TestLeasesRestartWithTheTask: what its checkpoints say of the times that
// leases run by. A task that a process took over judges since then, and its
// transactions begin after that.
func TestLeasesRestartWithTheTask(t *testing.T) {
	t.Parallel()
	b := newBench(t, fmt.Sprintf(claimRoutes, "reject"))
	seen := 0
	var ups []int64
	for life := range 2 {
		started := time.Now().UnixMilli()
		i := b.ready(b.start(b.onePartition("one")))
		for n := range 3 {
			b.produce(operation(fmt.Sprint(life, n), "a", 0))
			b.drainClaims(i)
		}
		must(t, i.stop())
		records := b.read("app-repartition-changelog")
		for _, r := range records[seen:] {
			if string(r.Key) != wire.CheckpointKey {
				continue
			}
			var began, up int64
			if n, err := fmt.Sscanf(header(r, wire.HeaderLease), "%d %d", &began, &up); n != 2 {
				t.Fatalf("header %s is %q: %v", wire.HeaderLease, header(r, wire.HeaderLease), err)
			}
			// The broker's clock is ours here; it was asked for before the task ran.
			if up < started-1 || began < up || began > time.Now().UnixMilli() {
				t.Errorf("life %d, started at %d: a transaction of %d by a task that judges since %d", life, started, began, up)
			}
			ups = append(ups, up)
		}
		seen = len(records)
	}
	if first, last := ups[0], ups[len(ups)-1]; first == last || ups[2] != first {
		t.Errorf("tasks judge since %v, want one time for each life", ups)
	}
}
