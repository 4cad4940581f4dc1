package processor

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"oncebus/processor/wire"
)

// windowRoutes lets every verdict but invalid be read from the output, in the
// order of the events: window 1h, grace 10m, skew 1h.
const windowRoutes = benchRoutes + "    duplicates: forward\n    on_late: forward\n"

const minute = int64(60_000) // ms

// storyEvent is one event of a story, and the verdict it gets.
type storyEvent struct {
	id      string
	at      int64 // ms
	verdict string
}

// onePartition is a config under which all events meet in one task.
func (b *bench) onePartition(instance string) Config {
	cfg := b.config(instance)
	cfg.Partitions = 1
	return cfg
}

// play sends the events one after the other and checks their verdicts.
func (b *bench) play(i *instance, story []storyEvent) {
	b.t.Helper()
	var records []*kgo.Record
	for _, s := range story {
		records = append(records, signal(s.id, 0, s.at))
	}
	b.produce(records...)
	b.drain(i, "signals.raw")
	got := map[string]string{} // by place in the raw topic
	for _, r := range append(b.read("signals.unique"), b.read("dead")...) {
		at := header(r, wire.HeaderSource)
		if at == "" { // unique and expired events carry no source; their time is unlike all others
			at = strconv.FormatInt(r.Timestamp.UnixMilli(), 10) + string(r.Key)
		}
		got[at] += header(r, wire.HeaderVerdict)
	}
	for n, s := range story {
		verdict, ok := got[sourceOf(records[n])]
		if !ok {
			verdict = got[strconv.FormatInt(s.at, 10)+"k-"+s.id]
		}
		if verdict != s.verdict {
			b.t.Errorf("event %d, %s at %d: verdict %q, want %q", n, s.id, s.at, verdict, s.verdict)
		}
	}
}

// TestWindowEdges plays stories of one key: the window is anchored at the
// first duplicate, reaches as far back as forward, and includes both ends.
func TestWindowEdges(t *testing.T) {
	t.Parallel()
	const window = 60 * minute
	stories := []struct {
		name   string
		events []storyEvent
	}{
		{"inside", []storyEvent{{"a", 0, "unique"}, {"a", window - 1, "duplicate"}}},
		{"at the edge", []storyEvent{{"a", 0, "unique"}, {"a", window, "duplicate"}}},
		{"1 ms after", []storyEvent{{"a", 0, "unique"}, {"a", window + 1, "after_window"}}},
		{"before", []storyEvent{{"a", 0, "unique"}, {"a", -window, "duplicate"}}},
		{"1 ms too far before", []storyEvent{{"a", 0, "unique"}, {"a", -window - 1, "late"}}},
		{"duplicates of one let through after its window", []storyEvent{
			{"a", 0, "unique"}, {"a", window + 1, "after_window"}, {"a", 2 * window, "duplicate"}, {"a", 2*window + 1, "duplicate"}, {"a", 2*window + 2, "after_window"},
		}},
		{"duplicates do not move the window", []storyEvent{
			{"a", 0, "unique"}, {"a", window / 2, "duplicate"}, {"a", window, "duplicate"}, {"a", window + 1, "after_window"},
		}},
		{"late behind another key", []storyEvent{
			{"a", 0, "unique"}, {"b", window + 10*minute, "unique"}, {"c", 0, "unique"}, {"d", -1, "late"}, {"d", -1 + minute, "unique"},
		}},
	}
	var all []storyEvent
	for n, story := range stories {
		for _, s := range story.events { // ten hours apart, no story knows of another
			all = append(all, storyEvent{story.name + "/" + s.id, testTime + int64(n)*600*minute + s.at, s.verdict})
		}
	}
	bothWays(t, windowRoutes, func(t *testing.T, routes string) {
		b := newBench(t, routes)
		b.play(b.ready(b.start(b.onePartition("one"))), all)
	})
}

// TestAfterWindowIsCountedApart: what is let through after its window is neither a
// unique event nor a duplicate in the figures.
func TestAfterWindowIsCountedApart(t *testing.T) {
	t.Parallel()
	b := newBench(t, windowRoutes)
	i := b.ready(b.start(b.onePartition("one")))
	b.play(i, []storyEvent{{"a", testTime, "unique"}, {"a", testTime + 61*minute, "after_window"}})
	assertCounts(t, i, "signals", map[string]float64{"unique": 1, "after_window": 1, "duplicate": 0, "late": 0})
}

// TestLateGoesByItsPolicy: an event that cannot be judged passes marked, is
// dropped, or becomes a dead letter with the reason; the next is judged.
func TestLateGoesByItsPolicy(t *testing.T) {
	t.Parallel()
	for _, policy := range []string{"forward", "drop", "dead_letter"} {
		t.Run(policy, func(t *testing.T) {
			bothWays(t, benchRoutes+"    on_late: "+policy+"\n", func(t *testing.T, routes string) {
				b := newBench(t, routes)
				i := b.ready(b.start(b.onePartition("one")))
				late := signal("late", 0, testTime)
				b.produce(signal("now", 0, testTime+70*minute+1), late, signal("next", 0, testTime+70*minute))
				b.drain(i, "signals.raw")
				out := map[string]string{}
				for _, r := range b.read("signals.unique") {
					out[string(r.Key)] = header(r, wire.HeaderVerdict)
				}
				if out["k-now"] != "unique" || out["k-next"] != "unique" || (out["k-late"] == "late") != (policy == "forward") {
					t.Errorf("output %v", out)
				}
				dead := b.read("dead")
				if (len(dead) == 1) != (policy == "dead_letter") {
					t.Fatalf("%d dead letters", len(dead))
				}
				for _, r := range dead {
					assertUntouched(t, r, late)
					want := fmt.Sprintf("event time %d cannot be judged: stream time is %d, window 1h0m0s, grace 10m0s", int64(testTime), testTime+70*minute+1)
					if header(r, wire.HeaderReason) != want || header(r, wire.HeaderVerdict) != "late" || header(r, wire.HeaderSource) != sourceOf(late) {
						t.Errorf("dead letter has headers %q", r.Headers)
					}
				}
				assertCounts(t, i, "signals", map[string]float64{"unique": 2, "late": 1})
			})
		})
	}
}

const aYear = 365 * 24 * time.Hour

// TestFarFutureExpiresNothing: one event a year ahead of the broker, by its
// record timestamp or by its payload, neither moves stream time nor passes as
// it is. Unless clamped it is a dead letter.
func TestFarFutureExpiresNothing(t *testing.T) {
	t.Parallel()
	byField := strings.Replace(windowRoutes, "    window:", "    time: {field: at}\n    window:", 1)
	for _, kind := range []struct{ name, routes string }{{"record timestamp", windowRoutes}, {"payload field", byField}} {
		for _, policy := range []string{"dead_letter", "clamp"} {
			t.Run(kind.name+" "+policy, func(t *testing.T) {
				bothWays(t, kind.routes+"    on_future: "+policy+"\n", func(t *testing.T, routes string) {
					b := newBench(t, routes)
					i := b.ready(b.start(b.onePartition("one")))
					now := time.Now().UnixMilli()
					event := func(id string, at int64) *kgo.Record {
						r := signal(id, 0, at)
						if kind.name == "payload field" {
							r.Value = []byte(fmt.Sprintf(`{"id":%q,"at":%d}`, id, at))
							r.Timestamp = time.UnixMilli(testTime)
						}
						return r
					}
					future := event("future", now+aYear.Milliseconds())
					b.produce(event("a", now), future, event("a", now+1), event("future", now+30*minute), event("b", now-5*minute))
					b.drain(i, "signals.raw")
					out := map[string][]string{}
					for _, r := range b.read("signals.unique") {
						key := string(r.Key)
						if out[key] = append(out[key], header(r, wire.HeaderVerdict)); key == "k-future" && len(out[key]) == 1 && policy == "clamp" {
							assertUntouched(t, r, future)
						}
					}
					// Clamped, it is judged as an event one skew ahead of the present.
					wantFuture := map[string][]string{"dead_letter": {"unique"}, "clamp": {"unique", "duplicate"}}[policy]
					if !slices.Equal(out["k-a"], []string{"unique", "duplicate"}) || !slices.Equal(out["k-b"], []string{"unique"}) || !slices.Equal(out["k-future"], wantFuture) {
						t.Errorf("output %v", out)
					}
					dead := b.read("dead")
					if (len(dead) == 1) != (policy == "dead_letter") {
						t.Fatalf("%d dead letters", len(dead))
					}
					for _, r := range dead {
						assertUntouched(t, r, future)
						if !strings.Contains(header(r, wire.HeaderReason), "more than 1h0m0s ahead of the broker's") || header(r, wire.HeaderVerdict) != "invalid" {
							t.Errorf("dead letter has headers %q", r.Headers)
						}
					}
				})
			})
		}
	}
}

// TestEventTimeComesFromThePayload: with a time field the record's timestamp
// decides nothing, and an event without the field is a dead letter.
func TestEventTimeComesFromThePayload(t *testing.T) {
	t.Parallel()
	bothWays(t, strings.Replace(windowRoutes, "    window:", "    time: {field: meta.at, format: rfc3339}\n    window:", 1), func(t *testing.T, routes string) {
		b := newBench(t, routes)
		i := b.ready(b.start(b.onePartition("one")))
		event := func(id, at string, timestamp int64) *kgo.Record {
			r := signal(id, 0, timestamp)
			r.Value = []byte(fmt.Sprintf(`{"id":%q,"meta":{"at":%s}}`, id, at))
			return r
		}
		b.produce(
			event("a", `"2023-11-14T22:13:20Z"`, testTime),
			event("a", `"2023-11-15T00:13:20+01:00"`, testTime+500*minute), // 1 h later: the edge
			event("a", `"2023-11-14T23:13:20.001Z"`, testTime-500*minute),  // 1 ms after it
			event("b", `"yesterday"`, testTime),
			event("c", `null`, testTime),
		)
		b.drain(i, "signals.raw")
		var verdicts []string
		for _, r := range b.read("signals.unique") {
			verdicts = append(verdicts, header(r, wire.HeaderVerdict))
		}
		if want := []string{"unique", "duplicate", "after_window"}; !slices.Equal(verdicts, want) {
			t.Errorf("verdicts %v, want %v", verdicts, want)
		}
		dead := b.read("dead")
		for n, want := range []string{"time field meta.at: ", "time field meta.at: null"} {
			if n >= len(dead) || !strings.Contains(header(dead[n], wire.HeaderReason), want) {
				t.Fatalf("dead letter %d of %d: want reason %q, have %q", n, len(dead), want, header(dead[min(n, len(dead)-1)], wire.HeaderReason))
			}
		}
	})
}

// outcomes returns what came out of a topic, each record with its verdict and
// explanation, by record key and in order.
func (b *bench) outcomes(topic string) map[string][]string {
	out := map[string][]string{}
	for _, r := range b.read(topic) {
		out[string(r.Key)] = append(out[string(r.Key)],
			fmt.Sprintf("%s %d %s %s %s", r.Value, r.Timestamp.UnixMilli(), header(r, wire.HeaderVerdict), header(r, wire.HeaderFirst), header(r, wire.HeaderReason)))
	}
	return out
}

// backlog is a seeded stream of events that meets every verdict: duplicates near
// and beyond their windows, jumps ahead, stragglers too late to be judged.
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

// TestBacklogAfterALongPauseGetsTheSameVerdicts lets one app judge events as
// they come and another one, stopped meanwhile, judge them as a backlog: the
// outputs are the same, because no wall clock has a say in a verdict.
func TestBacklogAfterALongPauseGetsTheSameVerdicts(t *testing.T) {
	t.Parallel()
	bothWays(t, windowRoutes, func(t *testing.T, routes string) {
		b := newBench(t, routes)
		b.createTopic("signals.raw", 3)
		app := func(name string) Config {
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

// TestBacklogOfOneRouteMakesNoEventOfAnotherLate: stream time is a namespace's
// own, although both routes' events go through the same tasks.
func TestBacklogOfOneRouteMakesNoEventOfAnotherLate(t *testing.T) {
	t.Parallel()
	b := newBench(t, windowRoutes+`  - name: orders
    topics: [orders.raw]
    key:
      - field: id
    window: 1h
    output: orders.unique
    dead_letter: dead
`)
	i := b.ready(b.start(b.onePartition("one")))
	var live, behind []*kgo.Record
	for n := range 20 {
		live = append(live, signal(fmt.Sprint("id-", n), 0, testTime+int64(n)*minute))
		behind = append(behind, signal(fmt.Sprint("id-", n), 0, testTime-24*60*minute+int64(n)*minute))
	}
	for n := range live { // by turns, so that each is behind or ahead of the other
		b.produce(live[n], renamed("orders.raw", behind[n:n+1])[0])
	}
	b.drain(i, "signals.raw", "orders.raw")
	assertCounts(t, i, "signals", map[string]float64{"unique": 20, "late": 0, "duplicate": 0})
	assertCounts(t, i, "orders", map[string]float64{"unique": 20, "late": 0, "duplicate": 0})
	if n := len(b.read("orders.unique")); n != 20 {
		t.Errorf("%d records in the output of the route that is behind, want 20", n)
	}
}
