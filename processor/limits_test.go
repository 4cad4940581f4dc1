package processor

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/twmb/franz-go/pkg/kgo"

	"oncebus/processor/wire"
)

// keyedSignals makes events of one partition with times of their own.
func keyedSignals(prefix string, n int, at int64) []*kgo.Record {
	var records []*kgo.Record
	for i := range n {
		records = append(records, signal(fmt.Sprint(prefix, "-", i), 0, at))
	}
	return records
}

// limitedRoutes has one task per partition of the raw topic.
func limitedRoutes(limits string) string {
	return strings.Replace(benchRoutes, "    window:", "    prepartitioned: true\n    window:", 1) + limits
}

// TestLiveKeysAreLimited: new keys beyond the limit go by its policy, known
// ones do not, and time makes room. Restart, rebuild and a limit that is set
// later change nothing about the count.
func TestLiveKeysAreLimited(t *testing.T) {
	t.Parallel()
	const hour = 3_600_000
	for policy, c := range map[string]struct{ limits, topic string }{
		"dead_letter": {"    limits: {live_keys: 10}\n", "dead"},
		"forward":     {"    limits: {live_keys: 10, on_limit: forward}\n", "signals.unique"},
	} {
		t.Run(policy, func(t *testing.T) {
			t.Parallel()
			b := newBench(t, limitedRoutes(c.limits))
			b.createTopic("signals.raw", 1)
			cfg := b.config("one")
			i := b.ready(b.start(cfg))
			b.produce(keyedSignals("a", 8, testTime)...)
			b.drain(i, "signals.raw")
			for name, change := range map[string]func(){
				"restarted": func() {},
				"rebuilt":   func() { must(t, os.RemoveAll(cfg.StateDir)) },
			} {
				must(t, i.stop())
				change()
				i = b.ready(b.start(cfg))
				b.produce(keyedSignals("a", 8, testTime)...)
				b.drain(i, "signals.raw")
				assertCounts(t, i, "signals", map[string]float64{"unique": 0, "duplicate": 8, "limited": 0})
				if t.Failed() {
					t.Fatal(name)
				}
			}
			// Two more fit, the third does not, whatever was there before.
			b.produce(keyedSignals("b", 5, testTime+hour)...)
			b.produce(keyedSignals("a", 8, testTime)...)
			b.drain(i, "signals.raw")
			assertCounts(t, i, "signals", map[string]float64{"unique": 2, "duplicate": 16, "limited": 3})
			assertLimited(t, b.read(c.topic), 3)
			// a is evicted two windows and the grace behind stream time, and
			// a step of the count later than that, the event that gets there
			// does not fit itself.
			b.produce(keyedSignals("c", 1, testTime+hour*9/4)...)
			b.produce(keyedSignals("d", 9, testTime+hour*9/4)...)
			b.drain(i, "signals.raw")
			assertCounts(t, i, "signals", map[string]float64{"unique": 10, "limited": 5})
			if n := testutil.ToFloat64(i.RestoreMetrics().Quarantined); n != 0 {
				t.Errorf("%v stores quarantined", n)
			}
		})
	}
}

func assertLimited(t *testing.T, records []*kgo.Record, want int) {
	t.Helper()
	n := 0
	for _, r := range records {
		if header(r, wire.HeaderVerdict) != "limited" {
			continue
		}
		n++
		if reason := header(r, wire.HeaderReason); reason != "new key beyond the limit: 10 keys of namespace signals are live in signals.raw/0, live_keys is 10" {
			t.Errorf("reason %q", reason)
		}
	}
	if n != want {
		t.Errorf("%d marked records, want %d", n, want)
	}
}

// TestLimitThatIsSetLater counts the keys that are there already, and one that
// is taken away forgets its count.
func TestLimitThatIsSetLater(t *testing.T) {
	t.Parallel()
	b := newBench(t, limitedRoutes(""))
	b.createTopic("signals.raw", 1)
	cfg := b.config("one")
	i := b.ready(b.start(cfg))
	b.produce(keyedSignals("a", 8, testTime)...)
	b.drain(i, "signals.raw")
	for _, step := range []struct {
		limits          string
		key             string
		unique, limited float64
	}{
		{"    limits: {live_keys: 10}\n", "b", 2, 3},
		{"", "c", 5, 0},
		{"    limits: {live_keys: 20}\n", "d", 5, 0},
		{"    limits: {live_keys: 20}\n", "e", 0, 5},
	} {
		must(t, i.stop())
		b.useRoutes(limitedRoutes(step.limits))
		i = b.ready(b.start(cfg))
		b.produce(keyedSignals(step.key, 5, testTime)...)
		b.drain(i, "signals.raw")
		assertCounts(t, i, "signals", map[string]float64{"unique": step.unique, "limited": step.limited})
	}
}
