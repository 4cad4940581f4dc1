package processor_test

import (
	"encoding/json"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"oncebus/dedup"
	"oncebus/dedup/routesets"
	"oncebus/processor"
	"oncebus/processor/app"
	"oncebus/processor/deadletter"
	"oncebus/processor/wire"
)

// conn returns the connection of a command.
func (b *bench) conn() app.Conn {
	return app.Conn{Client: b.client, Admin: b.admin, Log: slog.New(slog.NewTextHandler(b.logs, nil)), Options: append([]kgo.Opt{kgo.SeedBrokers(b.cluster.ListenAddrs()...)}, b.clientOpts...), MaxDecompressedBatchBytes: app.DecompressedBatchBytesDefault}
}

// apply puts routes in force, as 'oncebus apply --yes --forget-keys' does.
func (b *bench) apply(routes string, forget ...string) *app.Applied {
	b.t.Helper()
	b.useRoutes(routes)
	cfg := b.config("operator").Config
	if topics, err := app.DescribeTopics(b.t.Context(), b.admin, "app-repartition"); err == nil && topics["app-repartition"].Partitions > 0 {
		cfg.Partitions = topics["app-repartition"].Partitions
	}
	applied, err := app.Apply(b.t.Context(), b.conn(), cfg, b.routes, app.ApplyOptions{Yes: true, Forget: forget, By: "ada"})
	if err != nil {
		b.t.Fatal(err)
	}
	if !applied.Written {
		b.t.Fatalf("not applied: %s", applied.Text())
	}
	return applied
}

// taken waits until all workers of these instances run a route set.
func (b *bench) taken(set int64, instances ...*instance) {
	b.t.Helper()
	for _, i := range instances {
		b.wait("the set to be taken", func() bool {
			s := i.State().Routes
			return s != nil && s.Taken == set && i.Ready() == nil
		})
	}
}

// beginAtLevel1 makes the app look as if a build without route sets had begun it.
func (b *bench) beginAtLevel1() {
	b.t.Helper()
	b.createTopic("app-manifest", 1, "cleanup.policy", "compact", "message.timestamp.type", "LogAppendTime")
	meta, err := b.admin.BrokerMetadata(b.t.Context())
	if err != nil {
		b.t.Fatal(err)
	}
	value, err := json.Marshal(map[string]any{
		"version": 2, "cluster": meta.Cluster, "hash": app.HashName, "hash_secret": make([]byte, 16),
		"row_version": dedup.ChangelogVersion, "envelope_version": wire.EnvelopeVersion,
	})
	if err != nil {
		b.t.Fatal(err)
	}
	b.produce(&kgo.Record{Topic: "app-manifest", Key: []byte(app.ManifestKey), Value: value})
}

// TestNewAppBeginsWithSetOne protects that the routes file of the first start is route set 1, and that the tasks'
// checkpoints name it.
func TestNewAppBeginsWithSetOne(t *testing.T) {
	t.Parallel()
	b := newBench(t, benchRoutes)
	i := b.living(b.config("one"), batch("s", 4)...)
	b.taken(1, i)
	var checkpoint *wire.Checkpoint
	for _, r := range b.read("app-repartition-changelog") {
		if string(r.Key) == wire.CheckpointKey {
			c, err := wire.DecodeCheckpoint(r.Value)
			must(t, err)
			checkpoint = &c
		}
	}
	if checkpoint == nil || checkpoint.Set != 1 {
		t.Errorf("the checkpoint is %+v, want one of set 1", checkpoint)
	}
}

// TestAppOfAnEarlierBuildStaysAtLevel1 protects that the manifest and the checkpoints of an app from an earlier build
// stay as they are, so that the earlier build can go on.
func TestAppOfAnEarlierBuildStaysAtLevel1(t *testing.T) {
	t.Parallel()
	b := newBench(t, benchRoutes)
	b.beginAtLevel1()
	i := b.living(b.config("one"), batch("s", 4)...)
	if s := i.State().Routes; s != nil {
		t.Errorf("/state has route sets: %+v", s)
	}
	for _, r := range b.read("app-manifest") {
		if key := string(r.Key); key == "set" || strings.HasPrefix(key, "set/") {
			t.Errorf("the manifest topic has row %s", key)
		}
	}
	for _, r := range b.read("app-repartition-changelog") {
		if string(r.Key) == wire.CheckpointKey && r.Value[0] > 6 {
			t.Errorf("a checkpoint has version %d", r.Value[0])
		}
	}
	if _, err := app.Apply(t.Context(), b.conn(), b.config("two").Config, b.routes, app.ApplyOptions{}); err == nil || !strings.Contains(err.Error(), "oncebus finalize") {
		t.Errorf("apply at level 1: %v", err)
	}
}

// TestProcessesFollowARouteThatIsAdded protects that both processes take an added route without a restart. Copies of
// events from before are duplicates.
func TestProcessesFollowARouteThatIsAdded(t *testing.T) {
	t.Parallel()
	b := newBench(t, benchRoutes)
	one, two := b.ready(b.start(b.config("one"))), b.ready(b.start(b.config("two")))
	b.produce(batch("s", 20)...)
	b.drain(one, "signals.raw")
	applied := b.apply(bothRoutes)
	if applied.Set != 2 || len(applied.Changes) != 1 {
		t.Errorf("applied %+v", applied)
	}
	b.taken(2, one, two)
	b.produce(append(batch("s", 20), renamed("alerts.raw", batch("a", 20))...)...)
	b.drain(two, "signals.raw", "alerts.raw")
	if s, a := len(b.read("signals.unique")), len(b.read("alerts.unique")); s != 20 || a != 20 {
		t.Errorf("%d signals and %d alerts came out, want 20 each", s, a)
	}
	seen, err := app.ReadSeen(t.Context(), b.conn(), "app")
	must(t, err)
	if seen["one"].Set != 2 || seen["two"].Set != 2 {
		t.Errorf("the processes wrote %+v", seen)
	}
	live, err := app.LiveInstances(t.Context(), b.conn(), "app")
	must(t, err)
	if !slices.Equal(live, []string{"one", "two"}) {
		t.Errorf("live are %v", live)
	}
}

// TestRemovedRouteIsWorkedOff protects that records which are already routed are judged by the text of the removed
// route, also records that come after the change. When the route comes back, it has its keys.
func TestRemovedRouteIsWorkedOff(t *testing.T) {
	t.Parallel()
	b := newBench(t, bothRoutes)
	i := b.living(b.config("one"), append(batch("s", 8), renamed("alerts.raw", batch("a", 8))...)...)
	routed := b.routedRecords()
	b.apply(benchRoutes)
	b.taken(2, i)
	b.produce(batch("t", 8)...)
	for _, r := range routed { // a front that was away sends them again
		b.produce(&kgo.Record{Topic: r.Topic, Partition: r.Partition, Key: r.Key, Value: r.Value})
	}
	b.drain(i, "signals.raw")
	if s, a := len(b.read("signals.unique")), len(b.read("alerts.unique")); s != 16 || a != 8 {
		t.Errorf("%d signals and %d alerts came out, want 16 and 8", s, a)
	}
	if n := len(b.read("dead")); n != 0 {
		t.Errorf("%d dead letters", n)
	}
	b.apply(bothRoutes)
	b.taken(3, i)
	b.produce(renamed("alerts.raw", batch("a", 9))...)
	b.drain(i, "alerts.raw")
	if a := len(b.read("alerts.unique")); a != 9 {
		t.Errorf("%d alerts came out, want 9", a)
	}
}

// TestSetIsOneTransactionWithTheManifest protects that a command which is killed leaves either all of a route set,
// with its new namespaces and topics, or nothing of it.
func TestSetIsOneTransactionWithTheManifest(t *testing.T) {
	t.Parallel()
	b := newBench(t, benchRoutes)
	b.living(b.config("one"), batch("s", 4)...)
	b.apply(bothRoutes)
	records := b.read("app-manifest") // of one partition
	at := slices.IndexFunc(records, func(r *kgo.Record) bool { return string(r.Key) == "set/2" })
	if at < 1 || at+2 > len(records) {
		t.Fatalf("%d records of the manifest topic", len(records))
	}
	written := records[at-1 : at+2]
	for n, key := range []string{app.ManifestKey, "set/2", "set"} {
		if string(written[n].Key) != key {
			t.Errorf("record %s, want %s", written[n].Key, key)
		}
	}
	for _, r := range written {
		if !r.Attrs.IsTransactional() || r.ProducerID != written[0].ProducerID || r.ProducerEpoch != written[0].ProducerEpoch {
			t.Errorf("record %s at offset %d is not of the transaction of set 2", r.Key, r.Offset)
		}
	}
}

// TestStartWithAFileOfAnOlderSetIsBehind protects that a process which starts with an older routes file runs with the
// set in force.
func TestStartWithAFileOfAnOlderSetIsBehind(t *testing.T) {
	t.Parallel()
	b := newBench(t, benchRoutes)
	cfg := b.config("one")
	i := b.living(cfg, batch("s", 4)...)
	b.apply(bothRoutes)
	b.taken(2, i)
	must(t, i.stop())
	b.useRoutes(benchRoutes)
	findings := b.diagnose(cfg, 0)
	assertFinding(t, findings, app.Note, "routes", "the routes file is route set 1, and the app runs with set 2 -> give the processes the newer file")
	assertFinding(t, findings, app.Note, "replicas", "one broker")
	i = b.ready(b.start(cfg))
	b.taken(2, i)
	if s := i.State().Routes; s.FileBehind != 1 {
		t.Errorf("/state says %+v, want a file of set 1", s)
	}
	b.produce(renamed("alerts.raw", batch("a", 4))...)
	b.drain(i, "alerts.raw")
	if n := len(b.read("alerts.unique")); n != 4 {
		t.Errorf("%d alerts came out", n)
	}
}

// TestStartAppliesWhatIsHarmless protects that a new file which adds a route becomes the next set at a start, and
// that a running process with the old file takes this set.
func TestStartAppliesWhatIsHarmless(t *testing.T) {
	t.Parallel()
	b := newBench(t, benchRoutes)
	old := b.living(b.config("one"), batch("s", 4)...)
	b.useRoutes(bothRoutes)
	findings := b.diagnose(b.config("two"), 0)
	assertFinding(t, findings, app.Note, "replicas", "one broker")
	if !slices.ContainsFunc(findings, func(f app.Finding) bool {
		return f.Check == "routes" && strings.Contains(f.Text, "the next start applies the routes file") && strings.Contains(f.Text, "alerts")
	}) {
		t.Errorf("no finding says that a start applies the file: %+v", findings)
	}
	fresh := b.ready(b.start(b.config("two")))
	b.taken(2, old, fresh)
	b.produce(renamed("alerts.raw", batch("a", 8))...)
	b.drain(old, "alerts.raw")
	if n := len(b.read("alerts.unique")); n != 8 {
		t.Errorf("%d alerts came out", n)
	}
}

// TestStartRefusesWhatAnOperatorHasToSay protects that a start refuses a change that needs an operator, with an error
// that has the plan and the command.
func TestStartRefusesWhatAnOperatorHasToSay(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ routes, command, change string }{
		"confirm": {strings.ReplaceAll(benchRoutes, "window: 1h", "window: 2h"), "oncebus apply --yes", "window 1h -> 2h"},
		"refused": {strings.ReplaceAll(benchRoutes, "field: id", "field: number"), "oncebus plan", "--forget-keys"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newBench(t, benchRoutes)
			b.living(b.config("one"), batch("s", 4)...)
			b.useRoutes(c.routes)
			i := b.start(b.config("two"))
			<-i.done
			for _, part := range []string{"differs from route set 1", c.command, c.change} {
				if i.err == nil || !strings.Contains(i.err.Error(), part) {
					t.Errorf("the start ended with %v, want %q in it", i.err, part)
				}
			}
		})
	}
}

// TestAppendedKeySourceKeepsTheKeys lets an operator put an appended key source in force, in all processes. Events
// with keys of the older rule are duplicates, and the new source judges events that had no key, also those of a
// redrive. The way back is refused, because the keys of the new source would be lost. A start also refuses it,
// because it cannot ask an operator.
func TestAppendedKeySourceKeepsTheKeys(t *testing.T) {
	t.Parallel()
	longer := strings.Replace(benchRoutes, "- field: id", "- field: id\n      - field: number", 1)
	byNumber := func(key string) *kgo.Record {
		r := signal(key, 0, time.Now().UnixMilli())
		r.Value = []byte(strings.Replace(string(r.Value), `"id"`, `"number"`, 1))
		return r
	}
	b := newBench(t, benchRoutes)
	one := b.living(b.config("one"), signal("a", 0, time.Now().UnixMilli()), byNumber("b"))
	b.useRoutes(longer)
	two := b.start(b.config("two"))
	if <-two.done; two.err == nil || !strings.Contains(two.err.Error(), "oncebus apply --yes") {
		t.Errorf("a start with the new rule: %v", two.err)
	}
	b.useRoutes(longer)
	if _, err := b.redrive(b.config("one"), func(*deadletter.RedriveOptions) {}); err == nil || !strings.Contains(err.Error(), "key rule changed") {
		t.Errorf("a redrive before the rule is in force: %v", err)
	}
	if a := b.apply(longer); a.Worst() != routesets.Confirm {
		t.Errorf("the plan is %s", a.Text())
	}
	two = b.ready(b.start(b.config("two")))
	b.taken(2, one, two)
	if report, err := b.redrive(b.config("one"), func(*deadletter.RedriveOptions) {}); err != nil || report.Redriven != 1 {
		t.Errorf("the redrive: %+v, %v", report, err)
	}
	b.produce(signal("a", 0, time.Now().UnixMilli()), byNumber("b"), byNumber("b"), byNumber("a"))
	b.drain(one, "signals.raw")
	if n := len(b.read("signals.unique")); n != 2 {
		t.Errorf("%d events came out, want a by its id and b by its number", n)
	}
	b.useRoutes(benchRoutes)
	back, err := app.Apply(t.Context(), b.conn(), b.config("operator").Config, b.routes, app.ApplyOptions{Yes: true})
	if err != nil || back.Written || back.Worst() != routesets.Refused {
		t.Errorf("the way back: %+v, %v", back, err)
	}
	// A process with the earlier file runs with the set in force, so the diagnosis does not call its file broken.
	assertFinding(t, b.diagnose(b.config("one"), 0), app.Note, "routes", "the routes file is route set 1")
}

// TestTwoFilesAtOnce starts two processes with two files that each add a route. One transaction wins. The other
// process sees the winner's set, and decides again.
func TestTwoFilesAtOnce(t *testing.T) {
	t.Parallel()
	b := newBench(t, benchRoutes)
	b.living(b.config("one"), batch("s", 4)...)
	third := strings.ReplaceAll(bothRoutes, "alerts", "orders")
	var started []*instance
	for name, routes := range map[string]string{"two": bothRoutes, "three": third} {
		b.useRoutes(routes)
		started = append(started, b.start(b.config(name)))
	}
	refused := 0
	for _, i := range started {
		b.wait("the start to end, or the process to be ready", func() bool {
			select {
			case <-i.done:
				return true
			default:
				return i.Ready() == nil
			}
		})
		select {
		case <-i.done:
			refused++
			if i.err == nil || !strings.Contains(i.err.Error(), "differs from route set 2") {
				t.Errorf("the other start ended with %v", i.err)
			}
		default:
		}
	}
	if refused != 1 {
		t.Errorf("%d starts were refused, want one", refused)
	}
	if sets := b.rowKeys("set/"); len(sets) != 2 {
		t.Errorf("the manifest topic has %v", sets)
	}
}

// rowKeys returns the keys in the manifest topic with a prefix, each once.
func (b *bench) rowKeys(prefix string) (keys []string) {
	b.t.Helper()
	for _, r := range b.read("app-manifest") {
		if key := string(r.Key); strings.HasPrefix(key, prefix) && !slices.Contains(keys, key) {
			keys = append(keys, key)
		}
	}
	return keys
}

// TestTaskOfANewerSetWaits covers a process that has not read the newest set and gets a task whose checkpoint names
// it. The task waits, writes nothing, and goes on when its process has read the set.
func TestTaskOfANewerSetWaits(t *testing.T) {
	t.Parallel()
	b := newBench(t, benchRoutes)
	slow := b.startWith(b.config("slow"), func(p *processor.Processor) { p.SetManifestInterval(time.Hour) })
	b.ready(slow)
	b.produce(batch("s", 20)...)
	b.drain(slow, "signals.raw")
	fast := b.ready(b.start(b.config("fast")))
	b.wait("both to own tasks", func() bool {
		return len(slow.Assigned(processor.StageDedup)) == 2 && len(fast.Assigned(processor.StageDedup)) == 2 && slow.Ready() == nil && fast.Ready() == nil
	})
	b.apply(strings.ReplaceAll(benchRoutes, "window: 1h", "window: 2h"))
	b.taken(2, fast)
	b.produce(batch("t", 20)...)
	b.drain(fast, "signals.raw")
	must(t, fast.stop()) // its tasks, of set 2, go to slow
	b.taken(2, slow)
	b.produce(append(batch("s", 20), batch("t", 20)...)...)
	b.drain(slow, "signals.raw")
	if n := len(b.read("signals.unique")); n != 40 {
		t.Errorf("%d events came out, want 40", n)
	}
	newest := map[int32]int64{}
	for _, r := range b.read("app-repartition-changelog") {
		if string(r.Key) != wire.CheckpointKey {
			continue
		}
		c, err := wire.DecodeCheckpoint(r.Value)
		must(t, err)
		if c.Set < newest[r.Partition] {
			t.Errorf("task %d went back from set %d to %d", r.Partition, newest[r.Partition], c.Set)
		}
		newest[r.Partition] = c.Set
	}
}

// TestLastRoutedRouteIsRemoved protects that the routing stage ends with the last routed route while the repartition
// topic stays assigned, and that the stage begins again when a routed route comes.
func TestLastRoutedRouteIsRemoved(t *testing.T) {
	t.Parallel()
	keyed := strings.NewReplacer("signals", "alerts", "topics: [signals.raw]\n", "topics: [alerts.raw]\n    prepartitioned: true\n").Replace(benchRoutes)
	both := benchRoutes + strings.TrimPrefix(keyed, "routes:\n")
	b := newBench(t, both)
	i := b.living(b.config("one"), append(batch("s", 8), renamed("alerts.raw", batch("a", 8))...)...)
	b.apply(keyed)
	b.taken(2, i)
	b.produce(append(batch("t", 8), renamed("alerts.raw", batch("a", 9))...)...)
	b.drain(i, "alerts.raw")
	if s, a := len(b.read("signals.unique")), len(b.read("alerts.unique")); s != 8 || a != 9 {
		t.Errorf("%d signals and %d alerts came out, want 8 and 9", s, a)
	}
	b.apply(both)
	b.taken(3, i)
	b.produce(batch("s", 8)...)
	b.drain(i, "signals.raw")
	if s := len(b.read("signals.unique")); s != 16 {
		t.Errorf("%d signals came out, want 16: the backlog too, and no copy", s)
	}
}

// TestCountsOfARemovedRouteAreCarriedOn protects that the keys of a removed route are still counted, and that the
// route comes back with them.
func TestCountsOfARemovedRouteAreCarriedOn(t *testing.T) {
	t.Parallel()
	b := newBench(t, bothRoutes)
	i := b.living(b.config("one"), append(batch("s", 8), renamed("alerts.raw", batch("a", 8))...)...)
	count := func() uint64 {
		for _, k := range i.State().Keys {
			if k.Namespace == "alerts" {
				return k.Total
			}
		}
		return 0
	}
	b.apply(benchRoutes)
	b.taken(2, i)
	b.produce(batch("t", 8)...)
	b.drain(i, "signals.raw")
	b.wait("the keys of the removed route", func() bool { return count() == 8 })
	b.apply(bothRoutes)
	b.taken(3, i)
	b.wait("the keys of the route", func() bool { return count() == 8 })
}

// living starts a process and lets it process records.
func (b *bench) living(cfg processor.Config, records ...*kgo.Record) *instance {
	b.t.Helper()
	i := b.ready(b.start(cfg))
	b.produce(records...)
	topics := []string{}
	for _, r := range records {
		if !slices.Contains(topics, r.Topic) {
			topics = append(topics, r.Topic)
		}
	}
	b.drain(i, topics...)
	return i
}
