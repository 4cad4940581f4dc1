package processor_test

import (
	"fmt"
	"math/rand/v2"
	"os"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"oncebus/processor"
	"oncebus/processor/app"
	"oncebus/processor/kafka"
	"oncebus/processor/wire"
)

const changelog = "app-repartition-changelog"

// trimming starts a processor that trims its changelog every few milliseconds.
func (b *bench) trimming(cfg processor.Config) *instance {
	b.t.Helper()
	return b.ready(b.startWith(cfg, func(p *processor.Processor) { p.SetPurgeInterval(10 * time.Millisecond) }))
}

// changelogStarts returns the start offset of each partition of the changelog.
func (b *bench) changelogStarts() map[int32]int64 {
	b.t.Helper()
	listed, err := b.admin.ListStartOffsets(b.t.Context(), changelog)
	must(b.t, err)
	starts := map[int32]int64{}
	listed.Each(func(o kadm.ListedOffset) { starts[o.Partition] = o.Offset })
	return starts
}

// checkpoints returns the newest checkpoint of each partition of the changelog.
func (b *bench) checkpoints() map[int32]*wire.Checkpoint {
	b.t.Helper()
	meta, err := b.admin.Metadata(b.t.Context(), changelog)
	must(b.t, err)
	newest := map[int32]*wire.Checkpoint{}
	for partition := range meta.Topics[changelog].Partitions {
		reader := kafka.NewReader(b.client, changelog, meta.Topics[changelog].ID, partition)
		last, _, err := app.LastCheckpoint(b.t.Context(), reader)
		must(b.t, err)
		if last.IsWhole() {
			c := last.Newest()
			newest[partition] = &c
		}
	}
	return newest
}

// trimmedTo reports whether a changelog begins at its floor, and fails the test if the changelog begins above.
func (b *bench) trimmedTo(start, floor int64) bool {
	b.t.Helper()
	if start > floor {
		b.t.Fatalf("the changelog begins at %d, its floor is %d", start, floor)
	}
	return start == floor
}

// steps sends batches of two events, 20 minutes of event time apart, and lets the app process each batch, so that the
// changelog gets a transaction for each.
func (b *bench) steps(i *instance, from, to int) (all []*kgo.Record) {
	b.t.Helper()
	for step := from; step < to; step++ {
		for k := range 2 {
			all = append(all, signal(fmt.Sprint("e-", step, "-", k), 0, testTime+int64(step)*20*minute+rand.Int64N(10*minute)))
		}
		b.produce(all[len(all)-2:]...)
		b.drain(i, "signals.raw")
	}
	return all
}

// assertNoneTwice checks that the output has each of the sent events once.
func (b *bench) assertNoneTwice(sent []*kgo.Record) {
	b.t.Helper()
	out := map[string]int{}
	for _, r := range b.read("signals.unique") {
		out[string(r.Key)]++
	}
	for _, r := range sent {
		if n := out[string(r.Key)]; n != 1 {
			b.t.Errorf("%s is in the output %d times", r.Key, n)
		}
	}
	if len(out) != len(sent) {
		b.t.Errorf("%d keys in the output, want %d", len(out), len(sent))
	}
}

// replay sends all records again, in any order, and waits until they are judged.
func (b *bench) replay(i *instance, all []*kgo.Record) {
	b.t.Helper()
	again := make([]*kgo.Record, len(all))
	for n, at := range rand.Perm(len(all)) {
		r := all[at]
		again[n] = &kgo.Record{Topic: r.Topic, Partition: r.Partition, Key: r.Key, Value: r.Value, Headers: r.Headers, Timestamp: r.Timestamp}
	}
	b.produce(again...)
	b.drain(i, "signals.raw")
}

// TestChangelogIsTrimmed advances stream time by ten hours. The changelog loses the records that no event needs, and
// never more than its newest checkpoint allows. A process without local state rebuilds from the rest, and emits
// nothing twice when all events come again.
func TestChangelogIsTrimmed(t *testing.T) {
	t.Parallel()
	b := newBench(t, benchRoutes)
	b.says = true
	cfg := b.onePartition("one")
	i := b.trimming(cfg)
	all := b.steps(i, 0, 30)
	b.wait("the changelog to be trimmed to its floor, and all of that to be counted", func() bool {
		counted := testutil.ToFloat64(i.TrimmedRecords())
		start := b.changelogStarts()[0]
		if counted > float64(start) { // what is deleted is counted afterwards
			t.Fatalf("%v offsets counted, the changelog begins at %d", counted, start)
		}
		return start > 0 && b.trimmedTo(start, b.checkpoints()[0].Floor) && counted == float64(start)
	})
	ends := b.ends(changelog)
	if end, _ := ends.Lookup(changelog, 0); b.changelogStarts()[0] < end.At/2 {
		t.Errorf("it begins at %v and ends at %d, with rows of %v of 10h", b.changelogStarts(), end.At, 2*time.Hour+10*time.Minute)
	}
	for range 2 { // the second life has the replay's transactions in its changelog
		must(t, i.stop())
		must(t, os.RemoveAll(cfg.StateDir))
		i = b.trimming(cfg)
		b.replay(i, all)
		b.assertNoneTwice(all)
	}
}

// TestKillBetweenFloorAndTrim kills a process when its floor is committed and nothing is deleted yet. The next
// process makes the deletion.
func TestKillBetweenFloorAndTrim(t *testing.T) {
	t.Parallel()
	b := newBench(t, benchRoutes)
	cfg := b.onePartition("one")
	i := b.ready(b.startWith(cfg, often)) // would trim after a minute
	all := b.steps(i, 0, 12)
	b.upToDate()
	all = append(all, b.steps(i, 12, 13)...) // whose checkpoint has the floor
	must(t, i.stop())
	floor := b.checkpoints()[0].Floor
	if floor == 0 || b.changelogStarts()[0] != 0 {
		t.Fatalf("the floor is %d, the changelog begins at %v", floor, b.changelogStarts())
	}
	i = b.trimming(cfg)
	b.wait("the changelog to begin at its floor", func() bool { return b.trimmedTo(b.changelogStarts()[0], floor) })
	must(t, i.stop())
	must(t, os.RemoveAll(cfg.StateDir))
	i = b.ready(b.start(cfg))
	b.replay(i, all)
	b.assertNoneTwice(all)
}

// TestSweepCompletesAChangelog empties the changelog while the local state is whole. Without input, the task writes
// all rows again. After that, a process without local state can rebuild.
func TestSweepCompletesAChangelog(t *testing.T) {
	t.Parallel()
	b := newBench(t, benchRoutes)
	cfg := b.onePartition("one")
	i := b.ready(b.start(cfg))
	all := b.steps(i, 0, 5)
	must(t, i.stop())
	b.deleteRecords(b.ends(changelog))
	i = b.ready(b.start(cfg))
	b.wait("the sweep to end", func() bool {
		c := b.checkpoints()[0]
		return c != nil && !c.Incomplete && c.Floor > 0
	})
	swept := 0
	for _, r := range b.rows(changelog) {
		if len(r.Headers) > 0 && r.Headers[0].Key == wire.HeaderSweep {
			swept++
		}
	}
	if swept != len(all) {
		t.Errorf("%d rows were written again, want %d", swept, len(all))
	}
	must(t, i.stop())
	must(t, os.RemoveAll(cfg.StateDir))
	i = b.ready(b.start(cfg))
	b.replay(i, all)
	b.assertNoneTwice(all)
}

// TestStandingNamespaceIsSwept covers a route that gets no event any more, so that its rows would hold the changelog
// for ever. The task writes them again, and they still decide after a rebuild.
func TestStandingNamespaceIsSwept(t *testing.T) {
	t.Parallel()
	const routes = benchRoutes + `  - name: orders
    topics: [orders.raw]
    key: [{field: id}]
    time: {field: at}
    window: 1h
    output: signals.unique
    dead_letter: dead
`
	b := newBench(t, routes)
	cfg := b.onePartition("one")
	cfg.State.FlushAge, cfg.State.FlushRows, cfg.State.MergeFanIn = 10*time.Millisecond, 8, 2 // evicts at once
	start := func() *instance {
		return b.ready(b.startWith(cfg, func(p *processor.Processor) {
			often(p)
			p.SetPurgeInterval(10 * time.Millisecond)
			p.SetSweepAfter(10)
		}))
	}
	i := start()
	var orders []*kgo.Record
	for n := range 5 {
		r := timedSignal(fmt.Sprint("o-", n), 0, testTime)
		r.Topic = "orders.raw"
		orders = append(orders, r)
	}
	b.produce(orders...)
	b.drain(i, "orders.raw")
	b.upToDate()
	standing := b.checkpoints()[0]
	var all []*kgo.Record
	step := 0
	// The floor moves with the input, but eviction and deletion run at their own times, so no number of steps is
	// certain to be enough.
	swept := func() {
		t.Helper()
		began := b.changelogStarts()[0]
		b.wait("the changelog to begin later", func() bool {
			all = append(all, b.steps(i, step, step+10)...)
			step += 10
			return b.changelogStarts()[0] >= began+20
		})
	}
	swept()
	id := i.App().ByName["orders"].NamespaceID
	if b.checkpoints()[0].StreamTimes.Of(id) != standing.StreamTimes.Of(id) {
		t.Error("the stream time of the orders moved")
	}
	must(t, i.stop())

	b.apply(benchRoutes) // without the route its rows are kept too
	i = start()
	swept()
	must(t, i.stop())
	must(t, os.RemoveAll(cfg.StateDir))
	b.apply(routes)
	i = start()
	all = append(all, orders...)
	b.replay(i, all)
	b.drain(i, "orders.raw")
	b.assertNoneTwice(all)
}

// TestClampedRowStaysInTheChangelog covers an event from the far future that is clamped to a time far ahead of stream
// time. Its row stays while the rows around it are trimmed.
func TestClampedRowStaysInTheChangelog(t *testing.T) {
	t.Parallel()
	b := newBench(t, benchRoutes+"    on_future: clamp\n")
	b.says = true
	cfg := b.onePartition("one")
	i := b.trimming(cfg)
	all := b.steps(i, 0, 2)
	future := signal("future", 0, time.Now().Add(1000*time.Hour).UnixMilli())
	b.produce(future)
	b.drain(i, "signals.raw")
	ends := b.ends(changelog)
	end, _ := ends.Lookup(changelog, 0)
	all = append(all, b.steps(i, 2, 20)...)
	b.wait("the rows before to be trimmed", func() bool { return b.changelogStarts()[0] > 0 })
	if c := b.checkpoints()[0]; c.Floor >= end.At || len(c.Ahead) != 1 {
		t.Errorf("the floor is %d, the row of the clamped event is below %d; ahead of stream time are %v", c.Floor, end.At, c.Ahead)
	}
	must(t, i.stop())
	must(t, os.RemoveAll(cfg.StateDir))
	i = b.trimming(cfg)
	all = append(all, future)
	b.replay(i, all)
	b.assertNoneTwice(all)
}

// TestTrimDuringARestore answers the first fetches of a restore as a broker does whose log start has moved meanwhile:
// the restore lists the start again.
func TestTrimDuringARestore(t *testing.T) {
	t.Parallel()
	for name, stored := range map[string]bool{"without local state": false, "with older local state": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newBench(t, benchRoutes)
			cfg := b.onePartition("one")
			i := b.ready(b.start(cfg))
			all := b.steps(i, 0, 2)
			must(t, i.stop())
			older := t.TempDir()
			if stored {
				must(t, os.CopyFS(older, os.DirFS(cfg.StateDir)))
			}
			i = b.ready(b.start(cfg))
			all = append(all, b.steps(i, 2, 5)...)
			must(t, i.stop())
			cfg.StateDir = older
			trimmed := b.cluster.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.Fetch}, Topic: changelog, Err: kerr.OffsetOutOfRange, Count: 2})
			i = b.ready(b.start(cfg))
			if n := trimmed.Hits(); n != 2 {
				t.Errorf("%d fetches were out of range, want 2", n)
			}
			b.replay(i, all)
			b.assertNoneTwice(all)
		})
	}
}
