package processor_test

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"oncebus/dedup"
	"oncebus/processor"
	"oncebus/processor/app"
	"oncebus/processor/restore"
	"oncebus/processor/wire"
)

// openRoutes has one route that does not wait for local state (fail_open) and one that does.
const openRoutes = `routes:
  - name: signals
    topics: [signals.raw]
    key: [{field: id}]
    window: 1h
    output: signals.unique
    dead_letter: dead
    on_state_failure: fail_open
  - name: strict
    topics: [strict.raw]
    key: [{field: id}]
    window: 1h
    output: strict.unique
    dead_letter: dead
    on_state_failure: fail_closed
`

// verdictOf returns the verdict of an emitted record. Only a unique event may lack a verdict header.
func verdictOf(r *kgo.Record) string {
	return cmp.Or(header(r, wire.HeaderVerdict), dedup.Unique.String())
}

// outputs returns the verdicts of a topic's events by record key, in the order of the topic.
func (b *bench) outputs(topic string) map[string]string {
	b.t.Helper()
	all := map[string]string{}
	for _, r := range b.read(topic) {
		all[string(r.Key)] = strings.TrimSpace(all[string(r.Key)] + " " + verdictOf(r))
	}
	return all
}

func (b *bench) assertOutputs(topic string, want map[string]string) {
	b.t.Helper()
	if got := b.outputs(topic); fmt.Sprint(got) != fmt.Sprint(want) {
		b.t.Errorf("%s holds\n%v, want\n%v", topic, got, want)
	}
}

// strict makes an event of the route that waits.
func strict(id string, partition int32) *kgo.Record {
	r := signal(id, partition, testTime)
	r.Topic = "strict.raw"
	return r
}

// bypassed reports whether all four tasks of a topic bypass their stores.
func bypassed(i *instance, topic string) bool {
	n := 0
	for _, t := range i.State().Tasks {
		if t.ID().Topic == topic && t.State == processor.TaskBypassing.String() {
			n++
		}
	}
	return n == 4
}

// live counts the keys with a status that the tasks show.
func live(i *instance, status dedup.Status) (n uint64) {
	for _, task := range i.State().Tasks {
		for _, k := range task.Keys {
			if k.Status == status.String() {
				n += k.Total
			}
		}
	}
	return n
}

// passesTo waits until n records of a topic are marked bypassed.
func (b *bench) passesTo(topic string, n int) {
	b.t.Helper()
	b.wait(fmt.Sprintf("%d events marked bypassed in %s", n, topic), func() bool {
		marked := 0
		for _, r := range b.read(topic) {
			if header(r, wire.HeaderVerdict) == dedup.Bypassed.String() {
				marked++
			}
		}
		return marked >= n
	})
}

// TestEventsBypassAFullDisk leaves no room for local state: the events of a fail_open route are forwarded and marked,
// and those of a fail_closed route wait. Once space is free, checking resumes, and the forwarded events are stored.
func TestEventsBypassAFullDisk(t *testing.T) {
	t.Parallel()
	for _, restart := range []bool{false, true} {
		t.Run(fmt.Sprintf("restart %v", restart), func(t *testing.T) {
			b := newBench(t, openRoutes)
			cfg, disk, place := b.onDisk(500)
			i := b.ready(b.startWith(cfg, place))
			b.produce(signal("a", 0, testTime), strict("a", 0))
			b.drain(i, "signals.raw", "strict.raw")

			disk.free.Store(80)
			b.wait("tasks without a store", func() bool { return bypassed(i, "app-repartition") })
			if err := i.Ready(); err == nil || !strings.Contains(err.Error(), "paused") {
				t.Errorf("ready says %v", err)
			}
			if !strings.Contains(b.logs.String(), `level=ERROR msg="local state cannot be used: forwarding events unchecked"`) {
				t.Error("no error is logged")
			}
			b.produce(signal("a", 1, testTime+1), signal("b", 1, testTime), signal("c", 2, testTime), signal("c", 3, testTime+5), strict("a", 1), strict("b", 1), strict("b", 2))
			b.passesTo("signals.unique", 4)
			b.wait("the routing stage, which goes on", b.routed)
			b.assertOutputs("signals.unique", map[string]string{"k-a": "unique bypassed", "k-b": "bypassed", "k-c": "bypassed bypassed"})
			b.assertOutputs("strict.unique", map[string]string{"k-a": "unique"})
			if restart {
				must(t, i.stop())
				i = b.startWith(cfg, place)
				b.wait("tasks without a store again", func() bool { return bypassed(i, "app-repartition") })
				b.produce(signal("d", 0, testTime))
				b.passesTo("signals.unique", 5)
			}

			disk.free.Store(500)
			b.drain(i, "signals.raw", "strict.raw")
			b.produce(signal("b", 0, testTime+9), signal("c", 0, testTime+9), signal("d", 1, testTime+9), signal("e", 0, testTime), strict("b", 3))
			b.drain(i, "signals.raw", "strict.raw")
			want := map[string]string{"k-a": "unique bypassed", "k-b": "bypassed", "k-c": "bypassed bypassed", "k-d": "unique", "k-e": "unique"}
			if restart {
				want["k-d"] = "bypassed"
			}
			b.assertOutputs("signals.unique", want)
			b.assertOutputs("strict.unique", map[string]string{"k-a": "unique", "k-b": "unique"})
			if dead := b.read("dead"); len(dead) != 0 {
				t.Errorf("%d dead letters", len(dead))
			}
			b.wait("7 keys to count", func() bool { return live(i, dedup.Seen) == 5+2 })
			for _, r := range b.read("signals.unique") {
				if header(r, wire.HeaderVerdict) == "bypassed" && header(r, wire.HeaderReason) != "local state cannot be used: not checked for duplicates" {
					t.Errorf("a bypassed event has headers %v", r.Headers)
				}
			}
			if !restart {
				if n := testutil.ToFloat64(i.JudgeMetrics().Events.WithLabelValues("signals", "bypassed")); n != 4 {
					t.Errorf("%v events count as bypassed", n)
				}
			}
			b.promiseHeld(cfg)
		})
	}
}

// TestBypassWithAnUnknownCommitOutcome lets the broker commit while the client gets an unknown outcome. Events that
// were bypassed in that transaction are not emitted again.
func TestBypassWithAnUnknownCommitOutcome(t *testing.T) {
	t.Parallel()
	b := newBench(t, openRoutes)
	cfg, disk, place := b.onDisk(500)
	dialer := &spoilingDialer{api: kmsg.EndTxn, match: "app-one-" + processor.StageDedup + "-0", spoil: answerEndTxn(kerr.UnknownServerError)}
	i := b.ready(b.startWith(cfg, place, kgo.Dialer(dialer.dial)))
	disk.free.Store(80)
	b.wait("tasks without a store", func() bool { return bypassed(i, "app-repartition") })
	dialer.arm(1)
	records := batch("x", 40)
	b.produce(records...)
	b.passesTo("signals.unique", len(records))
	if dialer.left() != 0 {
		t.Fatal("no answer was spoiled")
	}
	disk.free.Store(500)
	b.drain(i, "signals.raw")
	b.produce(batch("x", 40)...)
	b.drain(i, "signals.raw")
	for key, verdicts := range b.outputs("signals.unique") {
		if verdicts != "bypassed" {
			t.Errorf("%s went out as %s", key, verdicts)
		}
	}
}

// TestBrokenStateDoesNotStopOpenRoutes breaks local state so that rebuilds do not help. A process with a fail_open
// route goes on without local state until an operator has looked.
func TestBrokenStateDoesNotStopOpenRoutes(t *testing.T) {
	t.Parallel()
	b := newBench(t, openRoutes)
	cfg := b.config("one")
	cfg.RebuildsPerHour = 1
	i := b.lived(cfg, batch("before", 40)...)
	for round := range 2 {
		for n := range 4 {
			dir := filepath.Join(cfg.StateDir, "app", fmt.Sprint("app-repartition-", n))
			must(t, os.WriteFile(filepath.Join(dir, "MANIFEST"), []byte("no manifest"), 0o600))
		}
		i = b.start(cfg)
		if round == 0 { // the hour has room for one rebuild; a slow disk is bypassed until it is done
			b.ready(i)
			must(t, i.stop())
		}
	}
	b.wait("tasks without a store", func() bool { return bypassed(i, "app-repartition") })
	b.produce(batch("before", 4)...)
	b.passesTo("signals.unique", 4)
	if why := i.State().Tasks[0].Reason; !strings.Contains(why, "failed 1 times") {
		t.Errorf("the reason is %q", why)
	}
	must(t, os.Remove(filepath.Join(cfg.StateDir, "app", restore.RebuildsName)))
	b.ready(i)
	b.produce(batch("before", 40)...)
	b.drain(i, "signals.raw")
	for key, verdicts := range b.outputs("signals.unique") {
		if verdicts != "unique" && verdicts != "unique bypassed" {
			t.Errorf("%s went out as %s", key, verdicts)
		}
	}
}

// TestStateThatCannotBeOpened protects that the events of the fail_open route go on whatever is wrong with the state
// directory, and that the state comes back once the directory is repaired.
func TestStateThatCannotBeOpened(t *testing.T) {
	t.Parallel()
	b := newBench(t, openRoutes)
	cfg := b.config("one")
	b.lived(cfg, batch("x", 40)...)
	dir := filepath.Join(cfg.StateDir, "app")
	must(t, os.Rename(dir, dir+".away"))
	must(t, os.Mkdir(dir, 0o700))
	for n := range 4 {
		must(t, os.WriteFile(filepath.Join(dir, fmt.Sprint("app-repartition-", n)), []byte("a file"), 0o600))
	}
	i := b.start(cfg)
	b.wait("tasks without a store", func() bool { return bypassed(i, "app-repartition") })
	b.produce(append(batch("x", 4), batch("y", 4)...)...)
	b.passesTo("signals.unique", 8)
	must(t, os.RemoveAll(dir))
	must(t, os.Rename(dir+".away", dir))
	b.ready(i)
	b.produce(append(batch("x", 40), batch("y", 4)...)...)
	b.drain(i, "signals.raw")
	for key, verdicts := range b.outputs("signals.unique") {
		if verdicts != "unique" && verdicts != "unique bypassed" && verdicts != "bypassed" {
			t.Errorf("%s went out as %s", key, verdicts)
		}
	}
}

// TestRandomOutagesOfLocalState protects that, whatever the disk does and whenever processes die, each event is
// emitted at most once, no key is missed, at most one duplicate of each key is called unique, and the fail_closed
// route is not affected.
func TestRandomOutagesOfLocalState(t *testing.T) {
	t.Parallel()
	b := newBench(t, openRoutes)
	cfg, disk, place := b.onDisk(500)
	i := b.ready(b.startWith(cfg, place))
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 6))
	var sent []*kgo.Record
	rounds := 24
	if testing.Short() {
		rounds = 12
	}
	for range rounds {
		var records []*kgo.Record
		for range 20 {
			id, partition := fmt.Sprint(rng.IntN(120)), rng.Int32N(4)
			if rng.IntN(2) == 0 {
				records = append(records, strict(id, partition))
			} else {
				records = append(records, signal(id, partition, testTime+rng.Int64N(1000)))
			}
		}
		b.produce(records...)
		sent = append(sent, records...)
		switch rng.IntN(6) {
		case 0, 1:
			disk.free.Store(80)
			b.wait("tasks without a store", func() bool { return bypassed(i, "app-repartition") })
		case 2:
			disk.free.Store(500)
			b.ready(i)
		case 3:
			must(t, i.stop())
			i = b.startWith(cfg, place)
		}
	}
	// Where a stop followed each bypass, no task has forwarded an event yet.
	disk.free.Store(80)
	b.wait("tasks without a store", func() bool { return bypassed(i, "app-repartition") })
	last := signal("last", 0, testTime)
	b.produce(last)
	sent = append(sent, last)
	b.passesTo("signals.unique", 1)
	disk.free.Store(500)
	b.ready(i)
	b.drain(i, "signals.raw", "strict.raw")
	wantStrict, keys := map[string]string{}, map[string]bool{}
	for _, r := range sent {
		if r.Topic == "strict.raw" {
			wantStrict[string(r.Key)] = "unique"
		} else {
			keys[string(r.Key)] = true
		}
	}
	b.assertOutputs("strict.unique", wantStrict)
	outputs := b.outputs("signals.unique")
	for key := range keys {
		if outputs[key] == "" || strings.Count(outputs[key], "unique") > 1 {
			t.Errorf("%s went out as %q", key, outputs[key])
		}
	}
	sources := map[string]bool{}
	for _, r := range b.read("signals.unique") {
		if source := header(r, wire.HeaderSource); source != "" && sources[source] {
			t.Errorf("the event at %s went out twice", source)
		} else {
			sources[source] = true
		}
	}
	for _, r := range sent {
		r.Partition = 3 - r.Partition
	}
	b.produce(sent...)
	b.drain(i, "signals.raw", "strict.raw")
	b.assertOutputs("signals.unique", outputs)
	b.assertOutputs("strict.unique", wantStrict)
}

// TestFailOpenPrepartitionedTopicsStayInTheTopology protects that workers of an app with only prepartitioned topics,
// one of which is fail_open, still know all of them when they look at the topics again.
func TestFailOpenPrepartitionedTopicsStayInTheTopology(t *testing.T) {
	t.Parallel()
	keyed := strings.NewReplacer("[signals.raw]\n", "[signals.raw]\n    prepartitioned: true\n", "[strict.raw]\n", "[strict.raw]\n    prepartitioned: true\n")
	b := newBench(t, keyed.Replace(openRoutes))
	cfg, disk, place := b.onDisk(500)
	cfg.Workers = 2
	i := b.ready(b.startWith(cfg, place))
	disk.free.Store(80)
	b.wait("tasks without a store", func() bool { return bypassed(i, "signals.raw") })
	b.produce(signal("a", 0, testTime), strict("a", 0))
	b.passesTo("signals.unique", 1)
	disk.free.Store(500)
	b.ready(i)
	if got := i.App().Topology.TaskTopics(); !slices.Equal(got, []string{"signals.raw", "strict.raw"}) {
		t.Errorf("the topics of tasks are %q", got)
	}
	b.drain(i, "signals.raw", "strict.raw")
	b.assertOutputs("signals.unique", map[string]string{"k-a": "bypassed"})
	b.assertOutputs("strict.unique", map[string]string{"k-a": "unique"})
}

// TestBombDuringABypass protects that a batch that decompresses to too many bytes holds nothing up during a bypass,
// and becomes exactly one dead letter however often a worker meets it.
func TestBombDuringABypass(t *testing.T) {
	t.Parallel()
	for _, restart := range []bool{false, true} {
		t.Run(fmt.Sprintf("restart %v", restart), func(t *testing.T) {
			t.Parallel()
			b := newBench(t, strings.Replace(openRoutes, "    topics: [signals.raw]\n", "    topics: [signals.raw]\n    prepartitioned: true\n", 1))
			cfg, disk, place := b.onDisk(500)
			cfg.MaxDecompressedBatchBytes = app.DecompressedBatchBytesMin
			i := b.ready(b.startWith(cfg, place))
			b.produce(signal("a", 0, testTime))
			b.drain(i, "signals.raw")
			disk.free.Store(80)
			b.wait("tasks without a store", func() bool { return bypassed(i, "signals.raw") })
			first := b.produceBatch("signals.raw", 0, rawBatch(t, kgo.GzipCompression(), 3, 700_000))
			b.produce(signal("b", 0, testTime), signal("c", 1, testTime))
			b.passesTo("signals.unique", 2)
			if restart {
				must(t, i.stop())
				i = b.startWith(cfg, place)
				b.wait("tasks without a store again", func() bool { return bypassed(i, "signals.raw") })
				b.produce(signal("d", 0, testTime))
				b.passesTo("signals.unique", 3)
			}
			disk.free.Store(500)
			b.ready(i)
			b.produce(signal("b", 0, testTime), signal("c", 1, testTime), signal("e", 0, testTime))
			b.drain(i, "signals.raw")
			want := map[string]string{"k-a": "unique", "k-b": "bypassed", "k-c": "bypassed", "k-e": "unique"}
			if restart {
				want["k-d"] = "bypassed"
			}
			b.assertOutputs("signals.unique", want)
			assertBatches(t, b, map[string]string{fmt.Sprint("signals.raw/0/", first): fmt.Sprint("signals.raw/0/", first+2)})
		})
	}
}
