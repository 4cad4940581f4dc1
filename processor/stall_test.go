package processor_test

import (
	"context"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"oncebus/processor"
	"oncebus/processor/app"
	"oncebus/processor/wire"
)

// TestStalledRestoreNamesTheTransaction holds a transaction open on the changelog: the restore waits, names the
// producer, and continues when the transaction ends.
func TestStalledRestoreNamesTheTransaction(t *testing.T) {
	t.Parallel()
	b := newBench(t, benchRoutes)
	cfg := b.config("one")
	i := b.ready(b.start(cfg))
	b.produce(batch("a", 100)...)
	b.drain(i, "signals.raw")
	ctx := context.Background()
	stranger := b.newClient(kgo.TransactionalID("stranger"), kgo.TransactionTimeout(10*time.Minute))
	must(t, stranger.BeginTransaction())
	hanging := &kgo.Record{Topic: "app-repartition-changelog", Partition: 2, Key: []byte(wire.CheckpointKey), Value: []byte("never")}
	must(t, stranger.ProduceSync(ctx, hanging).FirstErr())
	b.produce(batch("b", 100)...)
	b.drain(i, "signals.raw")
	must(t, i.stop())
	must(t, os.RemoveAll(cfg.StateDir))

	stalled := func() bool {
		return gather(t, i)[`oncebus_restore_stalled{partition="2",topic="app-repartition"}`] == 1
	}
	i = b.startWith(cfg, func(p *processor.Processor) { p.SetStallAfter(300 * time.Millisecond) })
	b.wait("the restore to report its stall", stalled)
	b.wait("readiness to say why", func() bool {
		err := i.Ready()
		return err != nil && strings.Contains(err.Error(), "task app-repartition/2 is restoring: an open transaction of producer") &&
			strings.Contains(err.Error(), "transactional id stranger")
	})
	if !strings.Contains(b.logs.String(), "restore stalled") || !strings.Contains(b.logs.String(), "state Ongoing") {
		t.Error("the log does not say it")
	}
	must(t, stranger.EndTransaction(ctx, kgo.TryAbort))
	b.ready(i)
	if stalled() {
		t.Error("the metric still reports the stall")
	}
	b.produce(batch("a", 100)...)
	b.produce(batch("b", 100)...)
	b.drain(i, "signals.raw")
	assertOut(t, b, batch("a", 100), batch("b", 100))
}

// TestStateThatMayNotBeRead protects that a lack of rights does not count as damage. The task tries again and says
// why, and runs as soon as the process has the rights.
func TestStateThatMayNotBeRead(t *testing.T) {
	t.Parallel()
	b := newBench(t, benchRoutes)
	cfg := b.config("one")
	i := b.lived(cfg, batch("a", 100)...)
	// A file is in the place of the directory: not even root can open it as a directory.
	dir := i.Stores().DirOf(app.TaskID{Topic: "app-repartition", Partition: 1})
	must(t, os.Rename(dir, dir+".away"))
	must(t, os.WriteFile(dir, nil, 0o600))
	i = b.start(cfg)
	b.wait("readiness to say why", func() bool {
		err := i.Ready()
		return err != nil && strings.Contains(err.Error(), "task app-repartition/1 is restoring: restore failed, retrying: open the store") &&
			strings.Contains(err.Error(), "not a directory")
	})
	must(t, os.Remove(dir))
	must(t, os.Rename(dir+".away", dir))
	b.ready(i)
	if n := gather(t, i)["oncebus_quarantined_stores_total"]; n != 0 {
		t.Errorf("%v stores quarantined", n)
	}
	if n := gather(t, i)["oncebus_restored_rows_total"]; n != 0 {
		t.Errorf("%v rows were read again", n)
	}
}
