package processor_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"oncebus/processor"
	"oncebus/processor/app"
	"oncebus/processor/wire"
)

func (b *bench) finalize() (*app.Finalized, error) {
	return app.Finalize(b.t.Context(), b.conn(), b.config("operator").Config, b.routes, "ada")
}

// levelsWritten waits until a process has written the levels that it reads.
func (b *bench) levelsWritten(instance string) {
	b.t.Helper()
	b.wait(instance+" to write its levels", func() bool {
		seen, err := app.ReadSeen(context.Background(), b.conn(), "app")
		_, written := seen[instance]
		return err == nil && written
	})
}

// TestFinalizeRaisesTheLevel raises an app that an earlier build began to level 2 while its processes run. No event
// is lost or emitted twice.
func TestFinalizeRaisesTheLevel(t *testing.T) {
	t.Parallel()
	b := newBench(t, benchRoutes)
	b.beginAtLevel1()
	one := b.living(b.config("one"), batch("s", 8)...)
	two := b.ready(b.start(b.config("two")))
	b.levelsWritten("one")
	b.levelsWritten("two")
	f, err := b.finalize()
	if err != nil || !f.Raised || f.Level != wire.LevelNewest || f.Set != 1 || strings.Join(f.Live, " ") != "one two" {
		t.Fatalf("%+v, %v", f, err)
	}
	b.taken(1, one, two)
	b.produce(batch("s", 8)...)
	b.produce(batch("t", 8)...)
	b.drain(one, "signals.raw")
	if n := len(b.read("signals.unique")); n != 16 {
		t.Errorf("%d events in the output, want 16", n)
	}
	set := int64(0)
	for _, r := range b.read("app-repartition-changelog") {
		if string(r.Key) == wire.CheckpointKey {
			c, err := wire.DecodeCheckpoint(r.Value)
			must(t, err)
			set = max(set, c.Set)
		}
	}
	if set != 1 {
		t.Errorf("the newest checkpoint names set %d", set)
	}
	if f, err := b.finalize(); err != nil || f.Raised || f.Level != wire.LevelNewest {
		t.Errorf("a second time: %+v, %v", f, err)
	}
}

// TestFinalizeNamesWhoIsBehind protects that finalize leaves the level as it is while a live process runs other
// routes, and names this process.
func TestFinalizeNamesWhoIsBehind(t *testing.T) {
	t.Parallel()
	b := newBench(t, benchRoutes)
	b.beginAtLevel1()
	b.living(b.config("one"), batch("s", 4)...)
	b.levelsWritten("one")
	own := b.routes
	b.useRoutes(bothRoutes)
	if _, err := b.finalize(); err == nil || !strings.Contains(err.Error(), "process one runs other routes") {
		t.Errorf("other routes: %v", err)
	}
	b.routes = own
	for _, r := range b.read("app-manifest") {
		if string(r.Key) == "set" {
			t.Error("a route set is in force")
		}
	}
}

// TestFinalizeTrustsNoRowOfAnInstanceThatWentBack lets an instance go back to an earlier build, which does not
// answer. Its row still says that it reads the level, and the level stays all the same.
func TestFinalizeTrustsNoRowOfAnInstanceThatWentBack(t *testing.T) {
	t.Parallel()
	b := newBench(t, benchRoutes)
	b.beginAtLevel1()
	b.living(b.config("one"), batch("s", 4)...)
	back := b.startWith(b.config("back"), func(p *processor.Processor) { p.SetManifestInterval(time.Hour) }) // reads no question
	b.ready(back)
	b.levelsWritten("back")
	if _, err := b.finalize(); err == nil || !strings.Contains(err.Error(), "process back does not say which levels it reads") || strings.Contains(err.Error(), "process one") {
		t.Errorf("with a row of before: %v", err)
	}
	if sets := b.rowKeys("set"); len(sets) > 0 {
		t.Errorf("the manifest topic has %v", sets)
	}
	must(t, back.stop())
	if f, err := b.finalize(); err != nil || !f.Raised {
		t.Errorf("without it: %+v, %v", f, err)
	}
}
