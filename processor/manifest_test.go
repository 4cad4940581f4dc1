package processor_test

import (
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"oncebus/dedup"
	"oncebus/processor"
	"oncebus/processor/app"
	"oncebus/processor/kafka"
	"oncebus/processor/security"
	"oncebus/processor/wire"
)

// snapshot returns everything that a start could change: topics with their ids and settings, the end of every
// partition, and the groups with their offsets.
func (b *bench) snapshot() []string {
	b.t.Helper()
	ctx := b.t.Context()
	admin := kadm.NewClient(b.newClient()) // a fresh one: clients remember topics for a while
	topics, err := admin.ListTopics(ctx)
	if err != nil {
		b.t.Fatal(err)
	}
	ends, err := admin.ListEndOffsets(ctx, topics.Names()...)
	if err != nil {
		b.t.Fatal(err)
	}
	var lines []string
	for _, topic := range topics.Sorted() {
		lines = append(lines, fmt.Sprintf("topic %s %s", topic.Topic, hex.EncodeToString(topic.ID[:])))
	}
	ends.Each(func(o kadm.ListedOffset) {
		lines = append(lines, fmt.Sprintf("end %s/%d %d", o.Topic, o.Partition, o.Offset))
	})
	configs, err := admin.DescribeTopicConfigs(ctx, topics.Names()...)
	if err != nil {
		b.t.Fatal(err)
	}
	for _, topic := range configs {
		for _, c := range topic.Configs {
			lines = append(lines, fmt.Sprintf("setting %s %s=%s", topic.Name, c.Key, c.MaybeValue()))
		}
	}
	for _, group := range []string{app.GroupName("app", processor.StageRoute), app.GroupName("app", processor.StageDedup)} {
		offsets, err := admin.FetchOffsets(ctx, group)
		if err != nil && !errors.Is(err, kerr.GroupIDNotFound) {
			b.t.Fatal(err)
		}
		for _, o := range offsets.Sorted() {
			lines = append(lines, fmt.Sprintf("group %s %s/%d %d", group, o.Topic, o.Partition, o.At))
		}
	}
	slices.Sort(lines)
	return lines
}

// refused starts a processor that must refuse for a reason that contains every text in want, and must leave the
// cluster as it found it. A diagnosis must call the same reason broken. The function returns the refusal.
func (b *bench) refused(cfg processor.Config, want ...string) string {
	b.t.Helper()
	findings := b.diagnose(cfg, 0)
	for _, part := range want {
		if !slices.ContainsFunc(findings, func(f app.Finding) bool { return f.Level == app.Fails && strings.Contains(f.Text+"; "+f.Action, part) }) {
			b.t.Errorf("the diagnosis does not find %q: %+v", part, findings)
		}
	}
	before := b.snapshot()
	i := b.start(cfg)
	timer := time.NewTimer(30 * time.Second)
	defer timer.Stop()
	select {
	case <-i.done:
	case <-timer.C:
		b.t.Fatalf("the processor did not end by itself; ready: %v", i.Ready())
	}
	if !errors.Is(i.err, kafka.ErrOperator) {
		b.t.Fatalf("the processor ended with %v, want a refusal", i.err)
	}
	for _, part := range want {
		if !strings.Contains(i.err.Error(), part) {
			b.t.Errorf("the refusal does not say %q:\n%v", part, i.err)
		}
	}
	after := b.snapshot()
	for _, line := range after {
		if !slices.Contains(before, line) {
			b.t.Errorf("the refused start left behind: %s", line)
		}
	}
	for _, line := range before {
		if !slices.Contains(after, line) {
			b.t.Errorf("the refused start took away: %s", line)
		}
	}
	return i.err.Error()
}

// runOnce runs an app once, with some events, and stops it.
func (b *bench) runOnce(cfg processor.Config, inputs ...string) {
	b.t.Helper()
	i := b.ready(b.start(cfg))
	for _, topic := range append(slices.Clone(inputs), i.App().Topology.Prepartitioned...) {
		b.produce(renamed(topic, []*kgo.Record{signal("a", 0, testTime), signal("b", 1, testTime)})...)
	}
	b.drain(i, inputs...)
	if err := i.stop(); err != nil {
		b.t.Fatal(err)
	}
}

// manifestOf returns the manifest of an app as its topic has it now.
func (b *bench) manifestOf(appID string) *app.Manifest {
	b.t.Helper()
	var m *app.Manifest
	for _, r := range b.read(appID + "-manifest") {
		if string(r.Key) == app.ManifestKey {
			m = new(app.Manifest)
			if err := json.Unmarshal(r.Value, m); err != nil {
				b.t.Fatal(err)
			}
		}
	}
	if m == nil {
		b.t.Fatalf("appID %s has no manifest", appID)
	}
	return m
}

// doctor overwrites the manifest of an app with a changed one.
func (b *bench) doctor(appID string, change func(*app.Manifest)) {
	b.t.Helper()
	m := b.manifestOf(appID)
	change(m)
	value, err := json.Marshal(m)
	if err != nil {
		b.t.Fatal(err)
	}
	b.produce(&kgo.Record{Topic: appID + "-manifest", Key: []byte(app.ManifestKey), Value: value})
}

func (b *bench) deleteTopic(name string) {
	b.t.Helper()
	if err := b.cluster.DeleteTopic(name); err != nil {
		b.t.Fatal(err)
	}
}

// recreate replaces a topic by an empty one with the same settings.
func (b *bench) recreate(name string) {
	b.t.Helper()
	described, err := b.admin.DescribeTopicConfigs(b.t.Context(), name)
	if err != nil {
		b.t.Fatal(err)
	}
	partitions := int32(len(b.cluster.PartitionInfos(name)))
	var settings []string
	for _, c := range described[0].Configs {
		if !strings.HasPrefix(c.Source.String(), "DEFAULT") && c.Value != nil {
			settings = append(settings, c.Key, *c.Value)
		}
	}
	b.deleteTopic(name)
	b.createTopic(name, partitions, settings...)
}

// grow adds a partition to a topic.
func (b *bench) grow(name string) {
	b.t.Helper()
	resp, err := b.admin.CreatePartitions(b.t.Context(), 1, name)
	if err == nil {
		err = resp.Error()
	}
	if err != nil {
		b.t.Fatal(err)
	}
}

// startError is a situation in which a start is refused.
type startError struct {
	name   string
	routes string
	level1 bool                                  // an earlier build began the app
	inputs []string                              // what a first life reads; by default that of its routes
	first  func(*processor.Config)               // how the first start differs
	change func(b *bench, cfg *processor.Config) // what happens in between
	want   []string                              // in the refusal, and in what a diagnosis finds
	undo   func(b *bench, cfg *processor.Config) // nil where there is no way back
}

// play runs the app with the routes, makes the change, and returns the refusal. Where the change can be undone, the
// app starts again, and a diagnosis calls nothing broken.
func (s startError) play(t *testing.T) string {
	b := newBench(t, s.routes)
	if s.level1 { // where the manifest alone refuses
		b.beginAtLevel1()
	}
	cfg := b.config("one")
	if s.first != nil {
		s.first(&cfg)
	}
	inputs := s.inputs
	if inputs == nil && s.routes != keyedRoutes {
		inputs = []string{"signals.raw"}
	}
	b.runOnce(cfg, inputs...)
	s.change(b, &cfg)
	refusal := b.refused(cfg, s.want...)
	if s.undo == nil {
		return refusal
	}
	s.undo(b, &cfg)
	assertFinding(t, b.diagnose(cfg, 0), app.Note, "replicas", "one broker")
	b.ready(b.start(cfg))
	return refusal
}

// TestChangedPromiseRefusesToStart changes, one at a time, the things that a start relies on. Every start is refused,
// says what to do, and changes nothing; a diagnosis says the same. Where the change can be undone, the app then
// starts again. The cases cover every error in the code that ends a start.
func TestChangedPromiseRefusesToStart(t *testing.T) {
	t.Parallel()
	all := startErrors()
	for _, row := range changedPromises() {
		row.level1 = true // for level 2 see sets_test.go
		all = append(all, row)
	}
	var mu sync.Mutex
	var refusals []string
	t.Run("each", func(t *testing.T) {
		for _, row := range all {
			t.Run(row.name, func(t *testing.T) {
				t.Parallel()
				refusal := row.play(t)
				mu.Lock()
				defer mu.Unlock()
				refusals = append(refusals, refusal)
			})
		}
	})
	if len(refusals) == len(all) { // else -run has chosen some, or one failed
		assertEachStartErrorIsPlayed(t, refusals)
	}
}

// changedPromises are changes of things that the stored state relies on.
func changedPromises() []startError {
	secret := func(cfg *processor.Config, s string) { cfg.KeySecret = security.Secret(s) }
	const useOtherApp = "use another ONCEBUS_APP_ID"
	withSecret := benchRoutes + "    secret: true\n"
	return []startError{
		{
			name: "partition count, by the setting", routes: benchRoutes,
			change: func(_ *bench, cfg *processor.Config) { cfg.Partitions = 5 },
			want:   []string{"topic app-repartition has 4 partitions, ONCEBUS_PARTITIONS is 5", "set ONCEBUS_PARTITIONS=4", useOtherApp},
			undo:   func(_ *bench, cfg *processor.Config) { cfg.Partitions = 4 },
		},
		{
			name: "partition count, by altering the topic", routes: benchRoutes,
			change: func(b *bench, _ *processor.Config) { b.grow("app-repartition") },
			want:   []string{"topic app-repartition has got partition 4, the app began with 4 partitions", useOtherApp},
		},
		{
			name: "partition count, of topic, changelog and setting", routes: benchRoutes,
			change: func(b *bench, cfg *processor.Config) {
				b.grow("app-repartition")
				b.grow("app-repartition-changelog")
				cfg.Partitions = 5
			},
			want: []string{"topic app-repartition has got partition 4, the app began with 4 partitions", useOtherApp},
		},
		{
			name: "partition count of a prepartitioned topic and its changelog", routes: keyedRoutes,
			change: func(b *bench, _ *processor.Config) {
				b.grow("signals.raw")
				b.grow("app-signals.raw-changelog")
			},
			want: []string{"topic signals.raw has 4 partitions, its changelog app-signals.raw-changelog has 5"},
		},
		{
			name: "changelog with another partition", routes: benchRoutes,
			change: func(b *bench, _ *processor.Config) { b.grow("app-repartition-changelog") },
			want:   []string{"topic app-repartition has 4 partitions, its changelog app-repartition-changelog has 5", useOtherApp},
		},
		{
			name: "prepartitioned topic recreated with fewer partitions", routes: keyedRoutes,
			change: func(b *bench, _ *processor.Config) {
				b.deleteTopic("signals.raw")
				b.createTopic("signals.raw", 3)
			},
			want: []string{"topic signals.raw was deleted and recreated with 3 partitions, the app began with 4", "recreate it with 4 partitions"},
		},
		{
			name: "key rule", routes: benchRoutes,
			change: func(b *bench, _ *processor.Config) {
				b.useRoutes(strings.Replace(benchRoutes, "field: id", "field: other", 1))
			},
			want: []string{"route signals: its key rule changed", `field("id")`, `field("other")`, "restore the old rule, or give the route a new namespace"},
			undo: func(b *bench, _ *processor.Config) { b.useRoutes(benchRoutes) },
		},
		{
			name: "mode", routes: benchRoutes,
			change: func(b *bench, _ *processor.Config) {
				b.useRoutes(benchRoutes + "    mode: claim\n    outcomes: signals.outcomes\n    replies: signals.replies\n")
			},
			want: []string{"route signals: its mode changed from plain to claim", "the rows of namespace signals have the old mode", "or give the route a new namespace"},
			undo: func(b *bench, _ *processor.Config) { b.useRoutes(benchRoutes) },
		},
		{
			name: "secret on and off", routes: benchRoutes,
			change: func(b *bench, cfg *processor.Config) {
				b.useRoutes(withSecret)
				secret(cfg, "sixteen bytes...")
			},
			want: []string{"secret=false", "secret=true"},
			undo: func(b *bench, _ *processor.Config) { b.useRoutes(benchRoutes) },
		},
		{
			name: "secret", routes: withSecret,
			first:  func(cfg *processor.Config) { secret(cfg, "sixteen bytes...") },
			change: func(_ *bench, cfg *processor.Config) { secret(cfg, "sixteen bytes of another") },
			want:   []string{"ONCEBUS_KEY_SECRET is not the secret of the stored keys", "set the old secret, with the white space", useOtherApp},
			undo:   func(_ *bench, cfg *processor.Config) { secret(cfg, "sixteen bytes...") },
		},
		{
			name: "prepartitioned flag on", routes: benchRoutes,
			change: func(b *bench, _ *processor.Config) { b.useRoutes(keyedRoutes) },
			want:   []string{"topic signals.raw was routed and is prepartitioned now", "restore `prepartitioned`"},
			undo:   func(b *bench, _ *processor.Config) { b.useRoutes(benchRoutes) },
		},
		{
			name: "prepartitioned flag off", routes: keyedRoutes,
			change: func(b *bench, _ *processor.Config) { b.useRoutes(benchRoutes) },
			want:   []string{"topic signals.raw was prepartitioned and is routed now", "restore `prepartitioned`"},
			undo:   func(b *bench, _ *processor.Config) { b.useRoutes(keyedRoutes) },
		},
		{
			name: "hash", routes: benchRoutes,
			change: func(b *bench, _ *processor.Config) { b.doctor("app", func(m *app.Manifest) { m.Hash = "murmur2" }) },
			want:   []string{`hash "murmur2"`, app.HashName, "run the build that wrote it", useOtherApp},
			undo:   func(b *bench, _ *processor.Config) { b.doctor("app", func(m *app.Manifest) { m.Hash = app.HashName }) },
		},
		{
			name: "row encoding", routes: benchRoutes,
			change: func(b *bench, _ *processor.Config) { b.doctor("app", func(m *app.Manifest) { m.RowVersion++ }) },
			want:   []string{fmt.Sprint("row encoding ", dedup.ChangelogVersion+1), "run the build that wrote it"},
			undo:   func(b *bench, _ *processor.Config) { b.doctor("app", func(m *app.Manifest) { m.RowVersion-- }) },
		},
		{
			name: "envelope", routes: benchRoutes,
			change: func(b *bench, _ *processor.Config) { b.doctor("app", func(m *app.Manifest) { m.EnvelopeVersion = 1 }) },
			want:   []string{"envelope 1; this build has", "run the build that wrote it", useOtherApp},
			undo: func(b *bench, _ *processor.Config) {
				b.doctor("app", func(m *app.Manifest) { m.EnvelopeVersion = wire.EnvelopeVersion })
			},
		},
		{
			name: "cluster", routes: benchRoutes,
			change: func(b *bench, _ *processor.Config) {
				b.doctor("app", func(m *app.Manifest) { m.Cluster = "elsewhere" })
			},
			want: []string{"written for cluster elsewhere, this is cluster kfake", useOtherApp},
			undo: func(b *bench, _ *processor.Config) { b.doctor("app", func(m *app.Manifest) { m.Cluster = "kfake" }) },
		},
		{
			name: "unreadable manifest", routes: benchRoutes,
			change: func(b *bench, _ *processor.Config) {
				b.produce(&kgo.Record{Topic: "app-manifest", Key: []byte(app.ManifestKey), Value: []byte("?")})
			},
			want: []string{`row "manifest" cannot be read`},
		},
		{
			name: "repartition topic recreated", routes: benchRoutes,
			change: func(b *bench, _ *processor.Config) { b.recreate("app-repartition") },
			want:   []string{"topic app-repartition was deleted and recreated", "oncebus accept --recreated app-repartition"},
		},
		{
			name: "changelog recreated", routes: benchRoutes,
			change: func(b *bench, _ *processor.Config) { b.recreate("app-repartition-changelog") },
			want:   []string{"the changelog of app-repartition was deleted and recreated", "oncebus accept --recreated app-repartition-changelog"},
		},
		{
			name: "prepartitioned topic recreated", routes: keyedRoutes,
			change: func(b *bench, _ *processor.Config) { b.recreate("signals.raw") },
			want:   []string{"topic signals.raw was deleted and recreated", "oncebus accept --recreated signals.raw"},
		},
		{
			name: "repartition topic deleted", routes: benchRoutes,
			change: func(b *bench, _ *processor.Config) { b.deleteTopic("app-repartition") },
			want:   []string{"app-repartition", "deleted", useOtherApp},
		},
		{
			name: "changelog deleted", routes: benchRoutes,
			change: func(b *bench, _ *processor.Config) { b.deleteTopic("app-repartition-changelog") },
			want:   []string{"app-repartition", "deleted", useOtherApp},
		},
		{
			name: "manifest topic deleted", routes: benchRoutes,
			change: func(b *bench, _ *processor.Config) { b.deleteTopic("app-manifest") },
			want:   []string{"has rows but app-manifest has no manifest", useOtherApp},
		},
		{
			name: "key rule, with a new output", routes: benchRoutes,
			change: func(b *bench, _ *processor.Config) {
				b.useRoutes(strings.NewReplacer("field: id", "field: other", "signals.unique", "signals.new").Replace(benchRoutes))
			},
			want: []string{"route signals: its key rule changed"},
			undo: func(b *bench, _ *processor.Config) { b.useRoutes(benchRoutes) },
		},
	}
}

// TestTwoFirstStartsAgreeOnOneManifest protects that two first starts at a time write one manifest. Otherwise each
// would draw its own secret for the hash, and the two processes would send a key to two partitions.
func TestTwoFirstStartsAgreeOnOneManifest(t *testing.T) {
	t.Parallel()
	rounds := 10
	if testing.Short() {
		rounds = 3
	}
	for n := range rounds {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			b := newBench(t, benchRoutes)
			one, two := b.start(b.config("one")), b.start(b.config("two"))
			b.ready(one)
			b.ready(two)
			m := b.manifestOf("app")
			for _, i := range []*instance{one, two} {
				if pinned(t, i.App().Manifest) != pinned(t, m) {
					t.Fatalf("an instance runs with %+v, the manifest is %+v", i.App().Manifest, m)
				}
			}
			if len(m.Topics) != 2 || len(m.Namespaces) != 1 {
				t.Errorf("manifest %+v", m)
			}
			// A rebalance is in progress, which waits for the process that stops first.
			if err := errors.Join(two.stop(), one.stop()); err != nil {
				t.Error(err)
			}
		})
	}
}

// TestRoutesMayComeAndGo protects that a new route or topic is numbered behind the others, a removed route keeps its
// number, and a route that comes back finds its rows.
func TestRoutesMayComeAndGo(t *testing.T) {
	t.Parallel()
	other := strings.NewReplacer("signals", "alerts", "routes:\n", "").Replace(benchRoutes)
	b := newBench(t, benchRoutes)
	cfg := b.config("one")
	b.runOnce(cfg, "signals.raw")
	names := func() (topics, namespaces []string) {
		m := b.manifestOf("app")
		for _, topic := range m.Topics {
			topics = append(topics, topic.Name)
		}
		for _, ns := range m.Namespaces {
			namespaces = append(namespaces, ns.Name)
		}
		return topics, namespaces
	}
	assert := func(wantTopics, wantNamespaces []string) {
		t.Helper()
		if topics, namespaces := names(); !slices.Equal(topics, wantTopics) || !slices.Equal(namespaces, wantNamespaces) {
			t.Errorf("topics %v and namespaces %v, want %v and %v", topics, namespaces, wantTopics, wantNamespaces)
		}
	}
	assert([]string{"signals.raw", "app-repartition"}, []string{"signals"})

	b.useRoutes("routes:\n" + other + strings.TrimPrefix(benchRoutes, "routes:\n")) // the new one first
	b.runOnce(cfg, "alerts.raw", "signals.raw")
	assert([]string{"signals.raw", "app-repartition", "alerts.raw"}, []string{"signals", "alerts"})

	b.apply("routes:\n" + other)
	b.runOnce(cfg, "alerts.raw")
	assert([]string{"signals.raw", "app-repartition", "alerts.raw"}, []string{"signals", "alerts"})

	b.apply(benchRoutes + "    duplicates: {to: signals.duplicates}\n")
	written := b.manifests()
	b.runOnce(cfg, "signals.raw")
	assert([]string{"signals.raw", "app-repartition", "alerts.raw"}, []string{"signals", "alerts"})
	if n := b.manifests(); n != written {
		t.Errorf("a start that changes nothing wrote the manifest %d times", n-written)
	}
	out := b.read("signals.duplicates")
	for _, r := range out {
		if !strings.HasPrefix(header(r, wire.HeaderFirst), "signals.raw/") || header(r, wire.HeaderSource) == header(r, wire.HeaderFirst) {
			t.Errorf("duplicate %s names its first as %s", header(r, wire.HeaderSource), header(r, wire.HeaderFirst))
		}
	}
	if unique := b.read("signals.unique"); len(unique) != 2 || len(out) != 2 {
		t.Errorf("%d unique and %d duplicates, want two of each", len(unique), len(out))
	}
}

// manifests returns how often the manifest was written.
func (b *bench) manifests() (n int) {
	b.t.Helper()
	for _, r := range b.read("app-manifest") {
		if string(r.Key) == app.ManifestKey {
			n++
		}
	}
	return n
}

// pinned returns a manifest in the form that its topic has.
func pinned(t *testing.T, m *app.Manifest) string {
	t.Helper()
	value, err := json.Marshal(m)
	must(t, err)
	return string(value)
}
