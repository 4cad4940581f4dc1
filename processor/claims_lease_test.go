package processor_test

import (
	"fmt"
	"testing"
	"time"

	"oncebus/processor/wire"
)

// TestLeasesRestartWithTheTask checks the times in a task's checkpoints by which leases run. The task of a process
// that took over judges since the takeover, and the task's transactions begin after that time.
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
			if !wire.IsCheckpoint(r.Key) {
				continue
			}
			var began, up int64
			if n, err := fmt.Sscanf(header(r, wire.HeaderLease), "%d %d", &began, &up); n != 2 {
				t.Fatalf("header %s is %q: %v", wire.HeaderLease, header(r, wire.HeaderLease), err)
			}
			// The broker's clock is the clock of this machine, and the process asked for it before the task ran.
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
