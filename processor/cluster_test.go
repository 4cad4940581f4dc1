package processor_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"

	"oncebus/processor"
	"oncebus/processor/app"
	"oncebus/processor/kafkatest/embedded"
	"oncebus/processor/portable"
	"oncebus/processor/transfer"
	"oncebus/processor/wire"
)

// A mirror copies a topic from one cluster to another, as a consumer with a producer does. After a restart it writes
// again what it wrote since its last commit.
type mirror struct {
	topic    string
	from, to *bench
	rng      *rand.Rand
	next     map[int32]int64 // offset to copy, by partition
	copied   int
}

func newMirror(topic string, from, to *bench) *mirror {
	return &mirror{topic: topic, from: from, to: to, rng: rand.New(rand.NewPCG(1, 2)), next: map[int32]int64{}}
}

// run copies all records that the source has. Before that it copies up to repeats records of each partition once
// more.
func (m *mirror) run(repeats int64) {
	for p := range m.next {
		m.next[p] = max(0, m.next[p]-m.rng.Int64N(repeats+1))
	}
	var copies []*kgo.Record
	for _, r := range m.from.read(m.topic) {
		if r.Offset < m.next[r.Partition] {
			continue
		}
		m.next[r.Partition] = r.Offset + 1
		copies = append(copies, &kgo.Record{Topic: r.Topic, Partition: r.Partition, Key: r.Key, Value: r.Value, Headers: r.Headers, Timestamp: r.Timestamp})
	}
	m.copied += len(copies)
	m.to.produce(copies...)
}

// leave holds an app that leaves the cluster, and returns the exported file.
func (b *bench) leave(cfg app.Config) []byte {
	b.t.Helper()
	d := b.decider()
	hold := app.NewHold("move", "tester", 0)
	hold.Leaving = true
	must(b.t, d.Hold(b.t.Context(), hold))
	ctx, cancel := context.WithTimeout(b.t.Context(), embedded.WaitMax)
	defer cancel()
	_, err := d.AwaitHold(ctx, nil)
	must(b.t, err)
	file, _, err := b.exportLeaving(cfg, false)
	must(b.t, err)
	return file
}

// exportLeaving exports the file of an app that leaves the cluster.
func (b *bench) exportLeaving(cfg app.Config, withoutOpen bool) ([]byte, *transfer.Exported, error) {
	b.t.Helper()
	c, err := transfer.New(b.t.Context(), cfg, b.routes, slog.New(slog.DiscardHandler))
	must(b.t, err)
	defer c.Close()
	file, err := os.Create(filepath.Join(b.t.TempDir(), "leaving"))
	must(b.t, err)
	exported, err := c.ExportLeaving(b.t.Context(), file, withoutOpen, func(int64, int64) {})
	must(b.t, file.Close())
	data, readErr := os.ReadFile(file.Name())
	must(b.t, readErr)
	return data, exported, err
}

func fileSum(file []byte) string {
	sum := sha256.Sum256(file)
	return hex.EncodeToString(sum[:])
}

// arrive creates an app from the file that it was exported to in another cluster.
func (b *bench) arrive(cfg app.Config, file []byte, repeat bool) (*transfer.Arrived, error) {
	b.t.Helper()
	return transfer.Arrive(b.t.Context(), cfg, b.routes, slog.New(slog.DiscardHandler), &transfer.ArriveOptions{Open: opener(file), File: fileSum(file), By: "tester", RepeatUnchecked: repeat})
}

// seedArrival seeds an arriving app with its file.
func (b *bench) seedArrival(ctx context.Context, cfg app.Config, file []byte, change func(*transfer.SeedOptions)) (*transfer.Seeded, error) {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(ctx, embedded.WaitMax) // it waits for the tasks
	defer cancel()
	c, err := transfer.New(b.t.Context(), cfg, b.routes, slog.New(slog.DiscardHandler))
	must(b.t, err)
	defer c.Close()
	o := &transfer.SeedOptions{Name: fileSum(file) + "/", File: fileSum(file), Open: func() (transfer.Source, func(), error) {
		return c.Rows(bytes.NewReader(file), nil, false)
	}}
	change(o)
	return c.Seed(ctx, o)
}

func unchanged(*transfer.SeedOptions) {}

// emittedIDs counts each id in the outputs of all benches.
func emittedIDs(topic string, benches ...*bench) map[string]int {
	ids := map[string]int{}
	for _, b := range benches {
		for _, r := range b.read(topic) {
			ids[strings.TrimPrefix(string(r.Key), "k-")]++
		}
	}
	return ids
}

// TestAppMovesToAnotherCluster lets an app leave one cluster and arrive in another, whose topics a mirror fills that
// repeats records. Both clusters together emit every key once. An event that would be late in the first cluster is
// late in the second, although the row that would have decided is gone. Each command is repeated, and the seed is
// interrupted.
func TestAppMovesToAnotherCluster(t *testing.T) {
	t.Parallel()
	const n = 3000
	now := time.Now().Add(-6 * time.Hour).UnixMilli()
	step := (5 * time.Hour).Milliseconds() / n
	a, b := newBench(t, benchRoutes), newBench(t, benchRoutes, kfake.ClusterID("east"))
	a.says, b.says = true, true
	for _, one := range []*bench{a, b} {
		one.createTopic("signals.raw", 3)
	}
	cfg, there := a.config("one"), b.config("one")
	i := a.ready(a.start(cfg))
	m := newMirror("signals.raw", a, b)
	// Ten events of a partition share an event time.
	event := func(k int) *kgo.Record { return signal(fmt.Sprint("t-", k), int32(k%3), now+int64(k-k%30)*step) }
	for k := range n {
		a.produce(event(k))
		if k%100 == 99 {
			a.produce(event(k-rand.IntN(50)), event(k-rand.IntN(50)))
		}
		if k%700 == 699 {
			m.run(50)
		}
	}
	a.drain(i, "signals.raw")
	a.upToDate()
	file := a.leave(cfg.Config)

	// The first events sent in the other cluster are late in both.
	a.produce(signal("t-5", 1, now+5*step), signal("late", 2, now+n*step-(75*time.Minute).Milliseconds()))

	if _, err := b.arrive(there.Config, file, false); err == nil || !strings.Contains(err.Error(), "the mirror has not copied the record before the held offset") {
		t.Errorf("before the mirror has copied it: %v", err)
	}
	m.run(100)
	arrived, err := b.arrive(there.Config, file, false)
	must(t, err)
	again, err := b.arrive(there.Config, file, false)
	if err != nil || !again.Before || arrived.Before || len(arrived.Starts) != 3 {
		t.Errorf("arrived %+v, again %+v, %v", arrived, again, err)
	}
	for _, s := range arrived.Starts {
		if s.Start == 0 || s.Again > 0 { // the tail has what the mirror repeats
			t.Errorf("start %+v", s)
		}
	}
	t.Logf("%d records mirrored; starts %+v", m.copied, arrived.Starts)

	j := b.ready(b.start(there))
	d := b.decider()
	if _, err := d.Release(t.Context()); err == nil || !strings.Contains(err.Error(), "does not have all of its keys yet") {
		t.Errorf("released without its keys: %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	calls := 0
	_, err = b.seedArrival(ctx, there.Config, file, func(o *transfer.SeedOptions) {
		o.Rate = 2000
		o.Decided = func(int64, int64) {
			if calls++; calls == 3 {
				cancel()
			}
		}
	})
	if err == nil {
		t.Error("the seed was not interrupted")
	}
	report, err := b.seedArrival(t.Context(), there.Config, file, unchanged)
	must(t, err)
	if report.Taken != report.Keys || report.Keys == 0 {
		t.Errorf("seeded: %+v", report)
	}
	report, err = b.seedArrival(t.Context(), there.Config, file, unchanged)
	if err != nil || report.Known != report.Keys {
		t.Errorf("seeded again: %+v, %v", report, err)
	}
	if out := b.read("signals.unique"); len(out) > 0 {
		t.Errorf("%d records in the output under the hold", len(out))
	}
	if _, err := d.TakeBack(t.Context()); err == nil {
		t.Error("an app that arrives was taken back")
	}
	b.assertStreamTimes(j, file) // before an event could move them
	release(t, d)
	b.drain(j, "signals.raw")
	if out, dead := b.read("signals.unique"), emittedIDs("dead", b); len(out) != 0 || dead["late"] != 1 || dead["t-5"] != 1 {
		t.Errorf("late events: %d in the output, dead letters %v", len(out), dead)
	}
	for k := n; k < n+300; k++ {
		a.produce(event(k), event(k-rand.IntN(100)))
	}
	m.run(300)
	for k := n + 300; k < n+400; k++ {
		b.produce(event(k), event(k-rand.IntN(200)))
	}
	b.drain(j, "signals.raw")

	ids := emittedIDs("signals.unique", a, b)
	for k := range n + 400 {
		if id := fmt.Sprint("t-", k); ids[id] != 1 {
			t.Errorf("%s was emitted %d times", id, ids[id])
		}
	}
	if ids["late"] != 0 || len(ids) != n+400 {
		t.Errorf("%d ids were emitted, late %d times", len(ids), ids["late"])
	}
	b.promiseHeld(there)
}

// assertStreamTimes checks that each task has the stream time that the file has for it.
func (b *bench) assertStreamTimes(i *instance, file []byte) {
	b.t.Helper()
	r, err := portable.NewReader(bytes.NewReader(file))
	must(b.t, err)
	newest := b.checkpoints()
	for n := range r.Header.Tasks {
		task := &r.Header.Tasks[n]
		c := newest[task.Partition]
		if c == nil {
			b.t.Errorf("%s/%d has no checkpoint", task.Topic, task.Partition)
			continue
		}
		if at, want := c.StreamTimes.Of(i.App().Manifest.NamespaceID("signals")), task.StreamTimes["signals"]; at != want {
			b.t.Errorf("%s/%d has stream time %d, want %d", task.Topic, task.Partition, at, want)
		}
	}
}

// moved returns the bench and the instance of an app in another cluster after its move. The inputs are mirrored.
func (b *bench) moved(cfg processor.Config, text string, file []byte, topics ...string) (*bench, *instance) {
	b.t.Helper()
	to := newBench(b.t, text, kfake.ClusterID("east"))
	there := to.config("one")
	for _, topic := range topics {
		to.createTopic(topic, cfg.Partitions)
		newMirror(topic, b, to).run(0)
	}
	_, err := to.arrive(there.Config, file, true)
	must(b.t, err)
	i := to.ready(to.start(there))
	_, err = to.seedArrival(b.t.Context(), there.Config, file, unchanged)
	must(b.t, err)
	release(b.t, to.decider())
	return to, i
}

// TestMovedOrdersAreReplayed protects that, after a move, claims of adjacent buckets and of colliding keys are where
// their duplicates look for them. Claims without an outcome stay behind only if the operator says so.
func TestMovedOrdersAreReplayed(t *testing.T) {
	t.Parallel()
	s := newShippedOrders(t)
	s.send(order("a", "c1", 59_000, 59_000, 0), order("b", "c2", 50_000, 59_000, 1))
	complete := func(request string) {
		out := outcomeOf(s.run(request), "completed", []byte("result of "+request))
		out.Topic = "orders.outcomes"
		s.send(out)
	}
	complete("a")
	hold := app.NewHold("move", "tester", 0)
	hold.Leaving = true
	d := s.decider()
	await := func() {
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), embedded.WaitMax)
		defer cancel()
		_, err := d.AwaitHold(ctx, nil)
		must(t, err)
	}
	must(t, d.Hold(t.Context(), hold))
	await()
	if _, exported, err := s.exportLeaving(s.cfg.Config, false); err == nil || !strings.Contains(err.Error(), "1 claims have no outcome yet") {
		t.Errorf("exported %+v, %v", exported, err)
	}
	if _, exported, err := s.exportLeaving(s.cfg.Config, true); err != nil || exported.Open != 1 {
		t.Errorf("exported %+v, %v", exported, err)
	}
	_, err := d.TakeBack(t.Context())
	must(t, err)
	complete("b")
	file := s.leave(s.cfg.Config)

	text, err := os.ReadFile("../deployments/routes/orders.yaml")
	must(t, err)
	to, i := s.moved(s.cfg, string(text), file, "orders.raw", "orders.outcomes")
	to.produce(order("a2", "c1", 61_000, 61_000, 2), order("b2", "c2", 50_000, 61_000, 3))
	to.drain(i, "orders.raw", "orders.outcomes")
	if again := to.read("orders.unique"); len(again) > 0 {
		t.Errorf("%d orders ran again, the first with %v", len(again), again[0].Headers)
	}
	replies := map[string]string{}
	for _, r := range to.read("orders.replies") {
		replies[string(r.Key)] = header(r, wire.HeaderVerdict) + " " + string(r.Value)
	}
	if len(replies) != 2 || replies["a2"] != "replayed result of a" || replies["b2"] != "replayed result of b" {
		t.Errorf("replies %v", replies)
	}
}

// TestAppIsTakenBack lets the app go on in its own cluster before its release in the other one. A release without
// --back is refused, and both kinds of release are refused once the app has left the cluster for good.
func TestAppIsTakenBack(t *testing.T) {
	t.Parallel()
	b := newBench(t, benchRoutes)
	b.createTopic("signals.raw", 4)
	cfg := b.config("one")
	i := b.ready(b.start(cfg))
	b.produce(signal("a", 0, testTime))
	b.drain(i, "signals.raw")
	d := b.decider()
	if _, _, err := b.exportLeaving(cfg.Config, false); err == nil || !strings.Contains(err.Error(), "the app does not leave this cluster") {
		t.Errorf("export without a hold: %v", err)
	}
	b.leave(cfg.Config)
	b.produce(signal("b", 0, testTime), signal("a", 0, testTime))
	if _, err := d.Release(t.Context()); err == nil || !strings.Contains(err.Error(), "release --back") {
		t.Errorf("released: %v", err)
	}
	ended, err := d.TakeBack(t.Context())
	if err != nil || ended == nil {
		t.Fatalf("taken back: %v, %v", ended, err)
	}
	b.drain(i, "signals.raw")
	if ids := emittedIDs("signals.unique", b); len(ids) != 2 || ids["a"] != 1 || ids["b"] != 1 {
		t.Errorf("emitted %v", ids)
	}
	b.leave(cfg.Config)
	if _, err := d.Leave(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, _, err := b.exportLeaving(cfg.Config, false); err == nil || !strings.Contains(err.Error(), "has left this cluster for good") {
		t.Errorf("export of an app that has left: %v", err)
	}
	for what, end := range map[string]func(context.Context) (*app.Hold, error){"release": d.Release, "taken back": d.TakeBack} {
		if _, err := end(t.Context()); err == nil || !strings.Contains(err.Error(), "has left this cluster for good") {
			t.Errorf("%s of an app that has left: %v", what, err)
		}
	}
}

// TestFileOfAnIncompleteHoldIsRefused exports while no process runs, so that no partition is held.
func TestFileOfAnIncompleteHoldIsRefused(t *testing.T) {
	t.Parallel()
	b := newBench(t, benchRoutes)
	cfg := b.config("one")
	must(t, b.ready(b.start(cfg)).stop())
	hold := app.NewHold("move", "tester", 0)
	hold.Leaving = true
	must(t, b.decider().Hold(t.Context(), hold))
	if _, _, err := b.exportLeaving(cfg.Config, false); err == nil || !strings.Contains(err.Error(), "the hold is not complete") {
		t.Errorf("exported: %v", err)
	}
}

// TestFileMissesNoEventOfTheIngress covers an ingress process that has not read the hold yet and sends an event while
// the file is written: the file may lack the row of this event. An event of a transaction that aborts does not count;
// a process that was killed before the hold leaves such a transaction.
func TestFileMissesNoEventOfTheIngress(t *testing.T) {
	t.Parallel()
	for name, end := range map[string]kgo.TransactionEndTry{"commits": kgo.TryCommit, "aborts": kgo.TryAbort} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newBench(t, benchRoutes)
			cfg := b.config("one")
			i := b.ready(b.start(cfg))
			b.produce(signal("a", 0, testTime))
			b.drain(i, "signals.raw")
			b.leave(cfg.Config)
			c, err := transfer.New(t.Context(), cfg.Config, b.routes, slog.New(slog.DiscardHandler))
			must(t, err)
			defer c.Close()
			file, err := os.Create(filepath.Join(t.TempDir(), "leaving"))
			must(t, err)
			defer file.Close()
			late := b.routedRecords()[0]
			came := false
			sender := b.newClient(kgo.TransactionalID("sender"), kgo.RecordPartitioner(kgo.ManualPartitioner()))
			_, err = c.ExportLeaving(t.Context(), file, false, func(int64, int64) {
				if !came {
					came = true
					must(t, sender.BeginTransaction())
					must(t, sender.ProduceSync(t.Context(), &kgo.Record{Topic: late.Topic, Partition: late.Partition, Key: late.Key, Value: late.Value, Headers: late.Headers}).FirstErr())
					must(t, sender.EndTransaction(t.Context(), end))
					b.drain(i, "signals.raw")
				}
			})
			refused := err != nil && strings.Contains(err.Error(), "events came through the ingress while the file was written")
			if !came || refused != bool(end) || err != nil && !refused {
				t.Errorf("exported: %v", err)
			}
		})
	}
}

// TestArrivalOfAnotherAppIsRefused protects that settings, routes, secret and topics must be those of the app in its
// first cluster, and that the file must be whole. The command creates nothing before it has checked this.
func TestArrivalOfAnotherAppIsRefused(t *testing.T) {
	t.Parallel()
	a := newBench(t, benchRoutes)
	a.createTopic("signals.raw", 4)
	cfg := a.config("one")
	i := a.ready(a.start(cfg))
	a.produce(signal("a", 0, testTime))
	a.drain(i, "signals.raw")
	plain, _ := a.export(a.transfers(cfg))
	file := a.leave(cfg.Config)
	if _, err := a.arrive(cfg.Config, file, false); err == nil || !strings.Contains(err.Error(), "has run in this cluster") {
		t.Errorf("in its own cluster: %v", err)
	}
	b := newBench(t, benchRoutes, kfake.ClusterID("east"))
	there := b.config("one").Config
	refused := func(what, want string, cfg app.Config, file []byte) {
		t.Helper()
		if _, err := b.arrive(cfg, file, false); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %s", what, err, want)
		}
	}
	refused("a file of an app that stays", "export --leaving", there, plain)
	refused("a damaged file", "not a whole OBX1 file", there, file[:len(file)-1])
	refused("no topic", "topic signals.raw does not exist", there, file)
	b.createTopic("signals.raw", 3)
	refused("fewer partitions", "topic signals.raw has 3 partitions, 4 in the other cluster", there, file)
	other := there
	other.AppID, other.Partitions = "other", 5
	refused("another app", "set ONCEBUS_APP_ID=app", other, file)
	refused("other partitions", "set ONCEBUS_PARTITIONS=4", other, file)
	b.useRoutes(strings.Replace(benchRoutes, "grace: 10m", "grace: 11m", 1))
	refused("other routes", "the routes file is not the one", there, file)
	b.useRoutes(strings.Replace(benchRoutes, "    grace: 10m\n", "    grace: 10m\n    on_missing_key: forward\n", 1))
	refused("events without a key are forwarded", "accept it by --repeat-unchecked", there, file)
	topics, err := b.admin.ListTopics(t.Context())
	must(t, err)
	if len(topics) != 1 {
		t.Errorf("topics were created: %v", topics.Names())
	}
}
