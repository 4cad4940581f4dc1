package processor_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"oncebus/processor"
	"oncebus/processor/app"
	"oncebus/processor/kafka"
)

// TestCrashLoopGuard damages the state of a task before every start. The third time within an hour the process stops,
// and it stays stopped until the operator has removed the state.
func TestCrashLoopGuard(t *testing.T) {
	t.Parallel()
	b := newBench(t, benchRoutes)
	cfg := b.config("one")
	cfg.RebuildsPerHour = 2
	i := b.lived(cfg, batch("a", 40)...)
	harm := func() {
		must(t, os.WriteFile(filepath.Join(i.Stores().DirOf(app.TaskID{Topic: "app-repartition", Partition: 0}), "MANIFEST"), []byte("x"), 0o600))
	}
	for range 2 {
		harm()
		i = b.ready(b.start(cfg))
		if n := testutil.ToFloat64(i.RestoreMetrics().Quarantined); n != 1 {
			t.Errorf("%v stores quarantined, want 1", n)
		}
		must(t, i.stop())
	}
	harm()
	for range 2 {
		i = b.start(cfg)
		<-i.done
		if !errors.Is(i.err, kafka.ErrOperator) || !strings.Contains(i.err.Error(), "task app-repartition/0: too many rebuilds: its store failed 2 times in 1h0m0s") {
			t.Fatalf("run returned %v", i.err)
		}
		if n := testutil.ToFloat64(i.RestoreMetrics().Quarantined); n != 0 {
			t.Errorf("%v stores quarantined by a process that stops", n)
		}
	}
	must(t, os.RemoveAll(filepath.Join(cfg.StateDir, cfg.AppID)))
	i = b.ready(b.start(cfg))
	b.produce(batch("a", 60)...)
	b.drain(i, "signals.raw")
	assertOut(t, b, batch("a", 60))
}

// TestHostStopsAreNotCounted protects that a rebuild after a stop of the host, which is normal, does not count for
// the guard.
func TestHostStopsAreNotCounted(t *testing.T) {
	t.Parallel()
	b := newBench(t, benchRoutes)
	cfg := b.config("one")
	cfg.RebuildsPerHour = 1
	b.lived(cfg, batch("a", 40)...)
	for n := range 3 {
		b.stopHost(cfg, fmt.Sprint("another boot ", n))
		i := b.ready(b.start(cfg))
		if n := testutil.ToFloat64(i.RestoreMetrics().Quarantined); n != 4 {
			t.Errorf("%v stores quarantined, want 4", n)
		}
		must(t, i.stop())
	}
	if !strings.Contains(b.logs.String(), "state of a host that stopped uncleanly") {
		t.Error("the log does not say why")
	}
}

// stopHost makes the state of a stopped instance look as if its host had stopped while the instance ran.
func (b *bench) stopHost(cfg processor.Config, boot string) {
	b.t.Helper()
	files, err := filepath.Glob(filepath.Join(cfg.StateDir, cfg.AppID, "*", "STATUS"))
	must(b.t, err)
	for _, path := range files {
		if strings.Contains(path, ".quarantine-") {
			continue
		}
		must(b.t, os.WriteFile(path, []byte("oncebus store 1\nstate open\nboot "+boot+"\ntries 0\n"), 0o600))
	}
}
