package processor_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"oncebus/processor"
	"oncebus/processor/kafka"
	"oncebus/processor/transfer"
)

// transfers opens a client that exports and seeds.
func (b *bench) transfers(cfg processor.Config, extra ...kgo.Opt) *transfer.Client {
	b.t.Helper()
	c, err := transfer.New(b.t.Context(), cfg.Config, b.routes, slog.New(slog.DiscardHandler), extra...)
	must(b.t, err)
	b.t.Cleanup(c.Close)
	return c
}

// seedIDs returns seed lines with n ids that were first seen at this time, in ms.
func seedIDs(n int, at int64) string {
	var lines strings.Builder
	for i := range n {
		fmt.Fprintf(&lines, "s-%d\t%d\n", i, at)
	}
	return lines.String()
}

// seedLines returns the options for a seed from lines.
func seedLines(c *transfer.Client, lines string) *transfer.SeedOptions {
	return &transfer.SeedOptions{Name: fmt.Sprint("lines-", len(lines)), Open: func() (transfer.Source, func(), error) {
		route, err := c.RouteOf("signals")
		if err != nil {
			return nil, nil, err
		}
		source, err := c.Lines(strings.NewReader(lines), route, nil)
		return source, func() {}, err
	}}
}

// export returns the bytes of an export.
func (b *bench) export(c *transfer.Client) ([]byte, *transfer.Exported) {
	b.t.Helper()
	file, err := os.Create(filepath.Join(b.t.TempDir(), "export"))
	must(b.t, err)
	exported, err := c.Export(b.t.Context(), file, func(int64, int64) {})
	must(b.t, err)
	must(b.t, file.Close())
	data, err := os.ReadFile(file.Name())
	must(b.t, err)
	return data, exported
}

func opener(file []byte) func() (io.ReadCloser, error) {
	return func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(file)), nil }
}

// TestSeededKeysAreDuplicates protects that events of seeded keys are duplicates: while other events come meanwhile,
// after a rebuild, and in another app that was seeded from an export of the first app.
func TestSeededKeysAreDuplicates(t *testing.T) {
	t.Parallel()
	const n = 3000
	now := time.Now().UnixMilli()
	b := newBench(t, benchRoutes)
	cfg := b.config("one")
	i := b.ready(b.start(cfg))
	c := b.transfers(cfg)
	traffic := make(chan int)
	go func() { // others' events meanwhile
		sent := 0
		for ; sent < 500; sent++ {
			b.produce(signal(fmt.Sprint("t-", sent), int32(sent%4), now))
		}
		traffic <- sent
	}()
	report, err := c.Seed(t.Context(), seedLines(c, seedIDs(n, now-1000)))
	must(t, err)
	if report.Taken != n || report.Lines != n || report.Known != 0 {
		t.Errorf("seeded: %+v", report)
	}
	again, err := c.Seed(t.Context(), seedLines(c, seedIDs(n, now-1000)))
	must(t, err)
	if again.Known != n || again.Taken != 0 {
		t.Errorf("seeded again: %+v", again)
	}
	sent := <-traffic
	copies := func(on *bench) {
		for k := range n / 10 {
			on.produce(signal(fmt.Sprint("s-", k*10), int32(k%3), now))
		}
	}
	copies(b)
	b.drain(i, "signals.raw")
	if out := b.read("signals.unique"); len(out) != sent {
		t.Errorf("%d records in the output, want those of %d keys that were not seeded", len(out), sent)
	}
	must(t, i.stop())

	must(t, os.RemoveAll(cfg.StateDir))
	i = b.ready(b.start(cfg))
	copies(b)
	b.drain(i, "signals.raw")
	if out := b.read("signals.unique"); len(out) != sent {
		t.Errorf("%d records in the output after a rebuild, want %d", len(out), sent)
	}

	b.promiseHeld(cfg)

	file, exported := b.export(c)
	if exported.Rows != int64(n+sent) || exported.Behind != 0 || exported.Open != 0 {
		t.Errorf("exported: %+v", exported)
	}
	checked, err := transfer.Check(t.Context(), bytes.NewReader(file), func(int64) {})
	must(t, err)
	compared, err := c.Compare(t.Context(), opener(file), checked.Trailer.Rows, func(int64, int64) {})
	must(t, err)
	if compared.There != exported.Rows || compared.Rows != exported.Rows {
		t.Errorf("compared: %+v", compared)
	}
	seedsAnother(t, file, exported.Rows, copies)
}

// seedsAnother seeds an app with other partitions and another hash secret from a file.
func seedsAnother(t *testing.T, file []byte, rows int64, copies func(*bench)) {
	t.Helper()
	b := newBench(t, benchRoutes)
	cfg := b.config("other")
	cfg.Partitions = 3
	i := b.ready(b.start(cfg))
	c := b.transfers(cfg)
	c.SliceKeys = 700 // several slices
	before, err := c.Compare(t.Context(), opener(file), rows, func(int64, int64) {})
	must(t, err)
	if before.Missing != rows {
		t.Errorf("before the seed: %+v", before)
	}
	report, err := c.Seed(t.Context(), &transfer.SeedOptions{Name: "file", Open: func() (transfer.Source, func(), error) {
		return c.Rows(bytes.NewReader(file), nil, false)
	}})
	must(t, err)
	if report.Taken != rows {
		t.Errorf("seeded from the file: %+v", report)
	}
	compared, err := c.Compare(t.Context(), opener(file), rows, func(int64, int64) {})
	must(t, err)
	if compared.There != rows {
		t.Errorf("after the seed: %+v", compared)
	}
	copies(b)
	b.drain(i, "signals.raw")
	if out := b.read("signals.unique"); len(out) != 0 {
		t.Errorf("%d records in the output of the other app, all of seeded keys", len(out))
	}
	again, exported := b.export(c)
	if exported.Rows != rows || len(again) == 0 {
		t.Errorf("exported from the other app: %+v", exported)
	}
}

// TestVerifyFindsKeysInEachTask protects that verify looks for a prepartitioned key in each task: producers choose
// the partition, so the digest of the key does not say which task has it.
func TestVerifyFindsKeysInEachTask(t *testing.T) {
	t.Parallel()
	const n = 60
	b := newBench(t, benchRoutes+strings.TrimPrefix(strings.NewReplacer("signals", "keyed", "[keyed.raw]\n", "[keyed.raw]\n    prepartitioned: true\n").Replace(
		strings.ReplaceAll(benchRoutes, "signals.raw", "keyed.raw")), "routes:\n"))
	cfg := b.config("one")
	i := b.ready(b.start(cfg))
	now := time.Now().UnixMilli()
	for k := range n {
		b.produce(signal(fmt.Sprint("r-", k), int32(k%3), now))
		keyed := signal(fmt.Sprint("k-", k), int32(k%3), now)
		keyed.Topic = "keyed.raw"
		b.produce(keyed)
	}
	b.drain(i, "signals.raw", "keyed.raw")
	c := b.transfers(cfg)
	c.SliceKeys = 25
	file, exported := b.export(c)
	compared, err := c.Compare(t.Context(), opener(file), exported.Rows, func(int64, int64) {})
	must(t, err)
	if exported.Rows != 2*n || compared.There != 2*n || compared.Rows != 2*n {
		t.Errorf("exported %+v, compared %+v", exported, compared)
	}
}

// compare compares a file with the app of a client.
func compare(t *testing.T, c *transfer.Client, file []byte) *transfer.Compared {
	t.Helper()
	checked, err := transfer.Check(t.Context(), bytes.NewReader(file), func(int64) {})
	must(t, err)
	compared, err := c.Compare(t.Context(), opener(file), checked.Trailer.Rows, func(int64, int64) {})
	must(t, err)
	return compared
}

// TestVerifyKnowsKeysThatNoRouteHas protects that verify expects no keys that a seed leaves out: those of a namespace
// that the app does not have, and those of a route that was removed.
func TestVerifyKnowsKeysThatNoRouteHas(t *testing.T) {
	t.Parallel()
	hooks := strings.TrimPrefix(strings.ReplaceAll(benchRoutes, "signals", "hooks"), "routes:\n")
	b := newBench(t, benchRoutes+hooks)
	cfg := b.config("one")
	i := b.ready(b.start(cfg))
	for k := range 20 {
		b.produce(signal(fmt.Sprint("s-", k), int32(k%3), testTime), event("hooks.raw", fmt.Sprintf(`{"id":"h-%d"}`, k), 0, testTime))
	}
	b.drain(i, "signals.raw", "hooks.raw")
	file, _ := b.export(b.transfers(cfg))

	other := newBench(t, benchRoutes)
	otherCfg := other.config("other")
	other.ready(other.start(otherCfg))
	c := other.transfers(otherCfg)
	c.SliceKeys = 7
	_, err := c.Seed(t.Context(), &transfer.SeedOptions{Name: "file", Open: func() (transfer.Source, func(), error) { return c.Rows(bytes.NewReader(file), nil, false) }})
	must(t, err)
	got := compare(t, c, file)
	if got.There != 20 || got.NoRoute != 20 || got.Missing+got.Different+got.Expired != 0 || !slices.Equal(got.NoRouteIn, []string{"hooks"}) {
		t.Errorf("compared: %+v", got)
	}
	seeded, _ := other.export(c)
	if got := compare(t, c, seeded); got.There != 20 || got.NoRoute != 0 || got.NoRouteIn != nil {
		t.Errorf("its own file: %+v", got)
	}
}

// TestVerifyTakesWhatAnAppDidSince protects that verify accepts a key that came again after its window and a claim
// that went on. A key that came again within its window is a mistake.
func TestVerifyTakesWhatAnAppDidSince(t *testing.T) {
	t.Parallel()
	b := newBench(t, benchRoutes+strings.TrimPrefix(fmt.Sprintf(claimRoutes, "reject"), "routes:\n"))
	cfg := b.config("one")
	i := b.ready(b.start(cfg))
	for _, id := range []string{"again", "stays"} {
		b.produce(signal(id, 0, testTime))
	}
	b.produce(operation("done", "r1", 0), operation("failed", "r2", 0), operation("open", "r3", 0))
	b.drain(i, "signals.raw", "ops.raw")
	c := b.transfers(cfg)
	file, _ := b.export(c)
	if got := compare(t, c, file); got.There != 5 {
		t.Fatalf("before: %+v", got)
	}
	for _, dispatched := range b.read("ops.run") {
		if kind := map[string]string{"k-r1": "completed", "k-r2": "failed"}[string(dispatched.Key)]; kind != "" {
			b.produce(outcomeOf(dispatched, kind, []byte("done")))
		}
	}
	b.produce(signal("again", 0, testTime+time.Hour.Milliseconds()+1))
	b.drain(i, "signals.raw", "ops.outcomes")
	got := compare(t, c, file)
	if got.There != 2 || got.Newer != 3 || got.Missing+got.Different+got.Expired != 0 {
		t.Errorf("after: %+v", got)
	}

	other := newBench(t, benchRoutes)
	otherCfg := other.config("other")
	otherRun := other.ready(other.start(otherCfg))
	other.produce(signal("again", 0, testTime+5000), signal("stays", 0, testTime))
	other.drain(otherRun, "signals.raw")
	if got := compare(t, other.transfers(otherCfg), file); got.There != 1 || got.Different != 1 || got.Newer != 0 || got.NoRoute != 3 {
		t.Errorf("the first event was another one: %+v", got)
	}
}

// TestExportWhileInputIsDeleted exports an app whose waiting events are deleted between the look for the first event
// and its reading, as a retention does.
func TestExportWhileInputIsDeleted(t *testing.T) {
	t.Parallel()
	b := newBench(t, benchRoutes)
	cfg := b.config("one")
	i := b.ready(b.start(cfg))
	c := b.transfers(cfg)
	_, err := c.Seed(t.Context(), seedLines(c, seedIDs(10, time.Now().UnixMilli())))
	must(t, err)
	must(t, i.stop())
	b.produce(signal("waits", 0, time.Now().UnixMilli()))
	// The first fetch request only asks for the id of the topic.
	deleted := b.cluster.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.Fetch}, Topic: "signals.raw", Err: kerr.OffsetOutOfRange, Count: 2})
	_, exported := b.export(c)
	if exported.Rows != 10 || exported.Behind != 1 {
		t.Errorf("exported: %+v", exported)
	}
	if n := deleted.Hits(); n != 2 {
		t.Errorf("%d fetches found their offset deleted, want 2", n)
	}
}

// TestSeedGoesOnWhereItStopped ends seeds at random places. The next seed goes on there, and each line is counted
// once.
func TestSeedGoesOnWhereItStopped(t *testing.T) {
	t.Parallel()
	const n = 20_000
	now := time.Now().UnixMilli()
	b := newBench(t, benchRoutes)
	cfg := b.config("one")
	b.ready(b.start(cfg))
	lines := seedIDs(n, now)
	runs, resumed := 0, int64(0)
	for ; runs < 200; runs++ {
		c := b.transfers(cfg)
		ctx, cancel := context.WithCancel(t.Context())
		o := seedLines(c, lines)
		o.Rate = 5000 // small chunks
		if runs%2 == 1 {
			o.SaveEvery = 1
		}
		calls := 0
		o.Decided = func(int64, int64) {
			if calls++; calls == 3+runs%5 {
				cancel()
			}
		}
		if runs > 6 {
			o.Rate, o.Decided = 0, nil
		}
		report, err := c.Seed(ctx, o)
		cancel()
		if err == nil {
			if report.Taken != n || report.Keys != n || report.Known != 0 {
				t.Errorf("run %d: %+v", runs, report)
			}
			resumed = report.Resumed
			break
		}
		if !strings.Contains(err.Error(), "goes on where it stopped") {
			t.Fatalf("run %d: %v", runs, err)
		}
	}
	if runs < 5 || resumed == 0 {
		t.Errorf("%d runs, the last one after line %d: nothing was interrupted", runs, resumed)
	}
}

// TestSeedWithoutProcesses protects that a seed says at once that no process runs, and ends after its time limit. The
// next command goes on, with a process.
func TestSeedWithoutProcesses(t *testing.T) {
	t.Parallel()
	b := newBench(t, benchRoutes)
	cfg := b.config("one")
	cfg.LeaveOnStop = true
	i := b.ready(b.start(cfg))
	must(t, i.stop())
	var logs bytes.Buffer
	c, err := transfer.New(t.Context(), cfg.Config, b.routes, slog.New(slog.NewTextHandler(&logs, nil)))
	must(t, err)
	defer c.Close()
	o := seedLines(c, seedIDs(20, time.Now().UnixMilli()))
	o.Wait = 200 * time.Millisecond
	if _, err := c.Seed(t.Context(), o); !errors.Is(err, kafka.ErrOperator) || !strings.Contains(err.Error(), "no task decided on a seed for 200ms: start a process of the app, oncebus run, or see its /readyz; then run this again, it goes on where it stopped") {
		t.Errorf("ended with %v", err)
	}
	if !strings.Contains(logs.String(), "no process of the app runs: start one, oncebus run; the seeds wait for it") {
		t.Errorf("it did not say so:\n%s", &logs)
	}
	logs.Reset()
	b.ready(b.start(cfg))
	o = seedLines(c, seedIDs(20, time.Now().UnixMilli()))
	o.Wait = time.Minute
	report, err := c.Seed(t.Context(), o)
	if err != nil || report.Taken+report.Known != 20 || logs.Len() > 0 {
		t.Errorf("with a process: %+v, %v\n%s", report, err, &logs)
	}
}

// TestSeedOfWrongLinesWritesNothing protects that the command checks the whole file before it writes anything, and
// that the error names the wrong line.
func TestSeedOfWrongLinesWritesNothing(t *testing.T) {
	t.Parallel()
	b := newBench(t, benchRoutes)
	cfg := b.config("one")
	b.ready(b.start(cfg))
	c := b.transfers(cfg)
	before := b.uncommitted("app-repartition")
	for line, want := range map[string]string{
		"a":                                    "line 2: no time after a tab",
		"a\tyesterday":                         `line 2: first_seen "yesterday": want Unix milliseconds`,
		`{"price":1}`:                          "line 2: ",
		`{"id":"x","first_seen":true}`:         `line 2: first_seen "true"`,
		`{"id":["a","b"],"first_seen":1}`:      "line 2: route signals has no key of these 2 ids",
		`{"id":{"a":1},"first_seen":1}`:        "line 2: field id: want text or a number",
		`{"id":"x"}`:                           "line 2: route signals takes the time of an event from its record",
		`{"event":{"no":1},"first_seen":1}`:    "line 2: ",
		`{"id":"x","first_seen":"2026-11-99"}`: `line 2: first_seen "2026-11-99"`,
	} {
		_, err := c.Seed(t.Context(), seedLines(c, "ok\t1\n"+line+"\n"))
		if err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), "nothing was written") {
			t.Errorf("%s: %v, want %s", line, err, want)
		}
	}
	if after := b.uncommitted("app-repartition"); after != before {
		t.Errorf("%d records were written", after-before)
	}
}

// TestFilesOfOtherKeysAreRefused protects that the app refuses a file whose header names another rule, mode or
// namespace for its keys.
func TestFilesOfOtherKeysAreRefused(t *testing.T) {
	t.Parallel()
	b := newBench(t, benchRoutes)
	cfg := b.config("one")
	i := b.ready(b.start(cfg))
	b.produce(signal("a", 0, time.Now().UnixMilli()))
	b.drain(i, "signals.raw")
	file, _ := b.export(b.transfers(cfg))
	for change, want := range map[[2]string]string{
		{"- field: id", "- field: code"}:                    "the file has keys of another rule",
		{"- field: id", "- field: id\n      - field: code"}: "", // finds them all
		{"name: signals\n", "name: other\n"}:                "the file of app app has no namespace of these routes",
		{"    window: 1h", "    mode: claim\n    window: 1h\n    outcomes: outcomes\n    replies: replies\n    lease: 1m\n    while_in_progress: reject"}: "the file has rows of mode plain",
	} {
		other := newBench(t, strings.Replace(benchRoutes, change[0], change[1], 1))
		cfg := other.config("other")
		other.ready(other.start(cfg))
		c := other.transfers(cfg)
		_, err := c.Seed(t.Context(), &transfer.SeedOptions{Name: "file", Open: func() (transfer.Source, func(), error) {
			return c.Rows(bytes.NewReader(file), nil, false)
		}})
		if (err != nil) != (want != "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %s", change[1], err, want)
		}
	}
}

// TestExportOfACutChangelogIsRefused deletes records while an export reads. Its file must not lack them without a
// word: the export begins again, and finds that rows are lost.
func TestExportOfACutChangelogIsRefused(t *testing.T) {
	t.Parallel()
	b := newBench(t, benchRoutes)
	cfg := b.config("one")
	i := b.ready(b.start(cfg))
	now := time.Now().UnixMilli()
	for n := range 200 {
		b.produce(signal(fmt.Sprint("k-", n), int32(n%4), now))
	}
	b.drain(i, "signals.raw")
	must(t, i.stop())
	c := b.transfers(cfg)
	file, err := os.Create(filepath.Join(t.TempDir(), "export"))
	must(t, err)
	defer func() { must(t, file.Close()) }()
	cut := false
	_, err = c.Export(t.Context(), file, func(int64, int64) {
		if !cut { // after the first reading of the first changelog
			cut = true
			b.cutFirstRows()
		}
	})
	if err == nil || !strings.Contains(err.Error(), "its changelog has lost rows") {
		t.Errorf("the export of a cut changelog: %v", err)
	}
}

// cutFirstRows deletes the first record of each changelog partition.
func (b *bench) cutFirstRows() {
	offsets := kadm.Offsets{}
	for p := range int32(4) {
		offsets.AddOffset("app-repartition-changelog", p, 1, -1)
	}
	b.deleteRecords(offsets)
}
