package processor_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/twmb/franz-go/pkg/kgo"

	"oncebus/processor"
	"oncebus/processor/wire"
)

// windowRoutes lets every verdict but invalid be read from the output, in the order of the events. Window 1h, grace
// 10m, skew 1h.
const windowRoutes = benchRoutes + "    duplicates: forward\n    on_late: forward\n"

const minute = int64(60_000) // ms

// onePartition is a configuration under which all events meet in one task.
func (b *bench) onePartition(instance string) processor.Config {
	cfg := b.config(instance)
	cfg.Partitions = 1
	return cfg
}

// outcomes returns the emitted records of a topic by record key and in order, each with its verdict and explanation.
func (b *bench) outcomes(topic string) map[string][]string {
	out := map[string][]string{}
	for _, r := range b.read(topic) {
		out[string(r.Key)] = append(out[string(r.Key)],
			fmt.Sprintf("%s %d %s %s %s", r.Value, r.Timestamp.UnixMilli(), verdictOf(r), header(r, wire.HeaderFirst), header(r, wire.HeaderReason)))
	}
	return out
}

// backlog is a seeded stream of events that meets every verdict: duplicates near and beyond their windows, jumps
// ahead, and events that come too late to be judged.
func backlog(seed uint64, n int, partitions int32) []*kgo.Record {
	rng := rand.New(rand.NewPCG(seed, 1))
	var records []*kgo.Record
	now := int64(testTime)
	for range n {
		now += rng.Int64N(4 * minute)
		id := fmt.Sprint("id-", rng.IntN(40))
		records = append(records, signal(id, partitionOf(id, partitions), now-rng.Int64N(100*minute)))
	}
	return records
}

// TestBacklogAfterALongPauseGetsTheSameVerdicts lets one app judge events as they come, and another app, stopped
// meanwhile, judge them as a backlog. The outputs are equal, because no wall clock influences a verdict.
func TestBacklogAfterALongPauseGetsTheSameVerdicts(t *testing.T) {
	t.Parallel()
	bothWays(t, windowRoutes, func(t *testing.T, routes string) {
		b := newBench(t, routes)
		b.createTopic("signals.raw", 3)
		app := func(name string) processor.Config {
			b.useRoutes(strings.ReplaceAll(strings.ReplaceAll(routes, "signals.unique", name+".unique"), "dead_letter: dead", "dead_letter: "+name+".dead"))
			cfg := b.onePartition("one") // two apps hash keys differently: with one partition that changes nothing
			cfg.AppID = name
			return cfg
		}
		partitions := int32(1) // several would be routed in the order in which they arrive
		if strings.Contains(routes, "prepartitioned: true") {
			partitions = 3
		}
		events := backlog(9, 600, partitions)
		live := b.ready(b.start(app("live")))
		pausedConfig := app("paused")
		paused := b.ready(b.start(pausedConfig))
		b.produce(events[:100]...)
		b.drain(paused, "signals.raw")
		if err := paused.stop(); err != nil {
			t.Fatal(err)
		}
		for part := range slices.Chunk(events[100:], 100) {
			b.produce(part...)
			b.drain(live, "signals.raw")
		}
		b.drain(b.ready(b.start(pausedConfig)), "signals.raw")
		want, got := b.outcomes("live.unique"), b.outcomes("paused.unique")
		verdicts := map[string]int{}
		for key := range want {
			if !slices.Equal(got[key], want[key]) {
				t.Errorf("key %s: the backlog gave\n%s\nwant\n%s", key, strings.Join(got[key], "\n"), strings.Join(want[key], "\n"))
			}
			for _, line := range want[key] {
				verdicts[strings.Fields(line)[2]]++
			}
		}
		if len(got) != len(want) {
			t.Errorf("%d keys from the backlog, want %d", len(got), len(want))
		}
		for _, v := range []string{"unique", "duplicate", "after_window", "late"} {
			if verdicts[v] < 5 {
				t.Errorf("the events met %v: too few %s to show anything", verdicts, v)
			}
		}
	})
}
