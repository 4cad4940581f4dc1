package processor_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"oncebus/processor"
	"oncebus/processor/app"
)

// TestPausedPartitionThatComesBackIsFetched lets a worker pause the fetching of its inputs, lose some of them to
// another process, and get them back. The client remembers the pause and the pacer does not, so the worker has to
// resume them.
func TestPausedPartitionThatComesBackIsFetched(t *testing.T) {
	t.Parallel()
	b := newBench(t, benchRoutes)
	b.createTopic("signals.raw", 4)
	config := func(instance string) processor.Config {
		cfg := b.config(instance)
		cfg.LeaveOnStop = true
		return cfg
	}
	// The tasks of this process are always behind, and the process resumes nothing by itself.
	one := b.ready(b.startWith(config("one"), func(p *processor.Processor) { p.SetPacing(0, 1, -time.Second, time.Millisecond) }))
	paused := func(inputs float64) bool { return testutil.ToFloat64(one.PausedBacklogs()) == inputs }
	sent := 0
	events := func() {
		for partition := range int32(4) {
			b.produce(signal(fmt.Sprint("id-", sent), partition, testTime))
			sent++
		}
	}
	b.wait("four paused inputs", func() bool {
		if paused(4) {
			return true
		}
		events()
		return false
	})
	two := b.start(config("two"))
	b.wait("two members", func() bool {
		return len(b.instances(app.StageRoute)) == 2 && two.Ready() == nil && len(two.State().Tasks) == 2 && paused(2)
	})
	before := len(b.read("signals.unique"))
	must(t, two.stop())
	b.wait("the end of the other process", func() bool {
		return len(b.instances(app.StageRoute)) == 1 && one.Ready() == nil && len(one.State().Tasks) == 4
	})
	events()
	// The partitions are paused again with their first records, which may be some of those sent before.
	b.wait("events of the partitions that came back", func() bool { return paused(4) && len(b.read("signals.unique")) >= before+2 })
}
