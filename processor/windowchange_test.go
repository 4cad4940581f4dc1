package processor_test

import (
	"maps"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

// TestWindowChangesWhileItRuns makes the window longer, shorter and longer again under a running process. After each
// change, right after the first events of the new set, the process restarts without its local state and must judge as
// it did before the restart.
func TestWindowChangesWhileItRuns(t *testing.T) {
	t.Parallel()
	const h = int64(time.Hour / time.Millisecond)
	b := newBench(t, windowRoutes)
	b.says = true
	b.createTopic("signals.raw", 1)
	cfg := b.onePartition("one")
	i := b.ready(b.start(cfg))
	at := func(id string, hour float64) *kgo.Record {
		return signal(id, 0, int64(testTime)-1000*h+int64(hour*float64(h)))
	}
	set, window := int64(1), "window: 1h"
	audited := &audits{b: b, cfg: cfg}
	phase := func(next string, want map[string]string, records ...*kgo.Record) {
		t.Helper()
		if next != "" {
			set++
			b.apply(strings.Replace(windowRoutes, "window: 1h", next, 1))
			b.taken(set, i)
		}
		before := b.outcomes("signals.unique")
		b.produce(records...)
		b.drain(i, "signals.raw")
		got := map[string]string{}
		for key, lines := range b.outcomes("signals.unique") {
			var verdicts []string
			for _, line := range lines[len(before[key]):] {
				verdicts = append(verdicts, strings.Fields(line)[2])
			}
			if len(verdicts) > 0 {
				got[strings.TrimPrefix(key, "k-")] = strings.Join(verdicts, " ")
			}
		}
		if !maps.Equal(got, want) {
			t.Errorf("set %d, %s: %v, want %v", set, window, got, want)
		}
		audited.holds()
	}
	rebuilt := func() {
		t.Helper()
		must(t, i.stop())
		must(t, os.RemoveAll(cfg.StateDir))
		i = b.ready(b.start(cfg))
	}
	phase("", map[string]string{"a": "unique", "b": "unique", "c": "unique"}, at("a", 97.8), at("b", 98), at("c", 100))
	// The rows are known from 97h50m on, so a counts as absent.
	phase("window: 7h", map[string]string{"a": "unique", "b": "duplicate"}, at("b", 99), at("a", 99))
	rebuilt()
	phase("", map[string]string{"a": "duplicate", "b": "duplicate after_window", "c": "duplicate"}, at("a", 99), at("b", 105), at("c", 105), at("b", 105.1))
	phase("window: 30m", map[string]string{"c": "unique late"}, at("c", 105), at("c", 104))
	rebuilt()
	phase("window: 1h", map[string]string{"b": "duplicate", "c": "duplicate after_window"}, at("b", 105.9), at("c", 105.9), at("c", 106.1))
	b.promiseHeld(cfg)
	if logs := b.logs.String(); strings.Contains(logs, "level=ERROR") {
		t.Error("the log has errors")
	}
}
