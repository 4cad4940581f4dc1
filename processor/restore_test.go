package processor_test

import (
	"context"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/twmb/franz-go/pkg/kgo"

	"oncebus/processor"
	"oncebus/processor/app"
	"oncebus/processor/wire"
)

// TestDamagedStateIsQuarantinedAndRebuilt damages, swaps and deletes local state between two lives, and expects the
// same verdicts as with intact state.
func TestDamagedStateIsQuarantinedAndRebuilt(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		harm        func(t *testing.T, dir string)
		quarantined float64
	}{
		"deleted": {func(t *testing.T, dir string) { must(t, os.RemoveAll(dir)) }, 0},
		"manifest of badger cut": {func(t *testing.T, dir string) {
			must(t, os.WriteFile(filepath.Join(dir, "MANIFEST"), []byte("x"), 0o600))
		}, 1},
		"of another partition": {func(t *testing.T, dir string) {
			other := strings.TrimSuffix(dir, "0") + "1"
			must(t, os.RemoveAll(dir))
			must(t, os.Rename(other, dir))
		}, 1},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t, benchRoutes)
			cfg := b.config("one")
			records, sent := traffic(100)
			i := b.lived(cfg, records...)
			c.harm(t, i.Stores().DirOf(app.TaskID{Topic: "app-repartition", Partition: 0}))
			i = b.ready(b.start(cfg))
			if n := testutil.ToFloat64(i.RestoreMetrics().Quarantined); n != c.quarantined {
				t.Errorf("%v stores quarantined, want %v", n, c.quarantined)
			}
			if n := testutil.ToFloat64(i.RestoreMetrics().Restored); n == 0 {
				t.Error("nothing was read from the changelog")
			}
			again, _ := traffic(100)
			b.produce(again...)
			b.drain(i, "signals.raw")
			assertOnce(t, b.read("signals.unique"), sent)
		})
	}
}

// TestCleanRestartReadsNothing restarts a process on its state, and expects that the restore reads no row.
func TestCleanRestartReadsNothing(t *testing.T) {
	t.Parallel()
	b := newBench(t, benchRoutes)
	cfg := b.config("one")
	records, _ := traffic(100)
	b.lived(cfg, records...)
	i := b.ready(b.start(cfg))
	if n := testutil.ToFloat64(i.RestoreMetrics().Restored); n != 0 {
		t.Errorf("%v rows were read from the changelog", n)
	}
}

// TestIdleStateReachesTheDisk ends the traffic before the rows are old enough to be written. A kill during the long
// silence that follows must lose none of them.
func TestIdleStateReachesTheDisk(t *testing.T) {
	t.Parallel()
	b := newBench(t, benchRoutes)
	cfg := b.onePartition("one")
	cfg.State.FlushAge = 500 * time.Millisecond
	i := b.ready(b.start(cfg))
	b.produce(signal("a", 0, testTime), signal("b", 0, testTime))
	b.drain(i, "signals.raw")
	b.wait("all rows on disk", func() bool {
		recent, known := gather(t, i)["oncebus_state_recent_rows"]
		return known && recent == 0
	})
	if rows := gather(t, i)["oncebus_state_rows"]; rows != 2 {
		t.Errorf("%v rows, want 2", rows)
	}
}

// TestRestoreWaitsForAnOpenTransaction holds a transaction open on a changelog partition. A restore that stopped at
// the last stable offset would miss the committed rows behind it (invariant 4, hazard B1).
func TestRestoreWaitsForAnOpenTransaction(t *testing.T) {
	t.Parallel()
	b := newBench(t, benchRoutes)
	cfg := b.config("one")
	i := b.ready(b.start(cfg))
	first, _ := traffic(100)
	b.produce(first...)
	b.drain(i, "signals.raw")

	// A foreign transaction is open below the rows that follow.
	ctx := context.Background()
	stranger := b.newClient(kgo.TransactionalID("stranger"), kgo.TransactionTimeout(10*time.Minute))
	must(t, stranger.BeginTransaction())
	for p := range int32(4) {
		must(t, stranger.ProduceSync(ctx, &kgo.Record{Topic: "app-repartition-changelog", Partition: p, Key: []byte(wire.CheckpointKey), Value: []byte("never")}).FirstErr())
	}
	more, sent := traffic(200)
	b.produce(more...)
	b.drain(i, "signals.raw")
	must(t, i.stop())
	must(t, os.RemoveAll(cfg.StateDir))

	i = b.startWith(cfg, func(p *processor.Processor) { p.SetStallAfter(300 * time.Millisecond) })
	stalled, refused := 0.0, 0.0
	b.wait("the restores to reach the open transaction", func() bool {
		stalled, refused = 0, 0
		for name, value := range gather(t, i) {
			switch {
			case strings.HasPrefix(name, "oncebus_restore_stalled{"):
				stalled += value
			case strings.HasPrefix(name, "oncebus_refused_partitions{"):
				refused += value
			}
		}
		return stalled == 4 || refused > 0 || i.Ready() == nil
	})
	if stalled != 4 {
		t.Fatalf("%v restores wait for the open transaction, and %v for a decision: they ended before the committed rows behind it", stalled, refused)
	}
	must(t, stranger.EndTransaction(ctx, kgo.TryAbort))
	b.ready(i)
	again, _ := traffic(200)
	b.produce(again...)
	b.drain(i, "signals.raw")
	assertOnce(t, b.read("signals.unique"), sent)
}

// TestRestoreOfManyFetchesSkipsAbortedRows restores a changelog of 8 MiB in which every other transaction is aborted.
// Each aborted transaction has the rows of events that no committed transaction has: if a restore took these rows,
// their events would be lost as duplicates.
func TestRestoreOfManyFetchesSkipsAbortedRows(t *testing.T) {
	t.Parallel()
	const transactions, transactionBytes = 40, 210_000
	other := newBench(t, benchRoutes)
	other.createTopic("signals.raw", 4)
	cfg := other.config("one")
	cfg.Partitions = 1
	other.lived(cfg, batch("aborted", 20)...)
	aborted := other.rows("app-repartition-changelog")

	b := newBench(t, benchRoutes)
	b.createTopic("signals.raw", 4)
	cfg = b.config("one")
	cfg.Partitions = 1
	b.lived(cfg, batch("committed", 20)...)
	must(t, os.RemoveAll(cfg.StateDir))
	ctx := context.Background()
	writer := b.newClient(kgo.TransactionalID("writer"), kgo.ProducerBatchCompression(kgo.NoCompression()))
	draw := rand.New(rand.NewPCG(3, 3))
	for n := range transactions {
		must(t, writer.BeginTransaction())
		rows, end := aborted, kgo.TryAbort
		if n%2 == 0 {
			rows, end = nil, kgo.TryCommit
		}
		var records []*kgo.Record
		for _, row := range rows {
			records = append(records, &kgo.Record{Topic: row.Topic, Key: row.Key, Value: row.Value})
		}
		// Rows of other keys fill the transaction.
		for size := 0; size < transactionBytes; size += len(aborted[0].Key) + len(aborted[0].Value) {
			key := make([]byte, len(aborted[0].Key))
			for i := range key {
				key[i] = byte(draw.Uint32())
			}
			records = append(records, &kgo.Record{Topic: aborted[0].Topic, Key: key, Value: aborted[0].Value})
		}
		must(t, writer.ProduceSync(ctx, records...).FirstErr())
		must(t, writer.EndTransaction(ctx, end))
	}
	i := b.ready(b.start(cfg))
	b.produce(append(batch("aborted", 20), batch("committed", 20)...)...)
	b.drain(i, "signals.raw")
	assertOut(t, b, append(batch("committed", 20), batch("aborted", 20)...))
}

// rows returns the rows of a changelog, each as a record of its own, without checkpoints.
func (b *bench) rows(changelog string) (rows []*kgo.Record) {
	b.t.Helper()
	for _, r := range b.read(changelog) {
		if wire.IsCheckpoint(r.Key) {
			continue
		}
		for row, err := range wire.RowsOf(r) {
			must(b.t, err)
			single := *r
			single.Key, single.Value = slices.Clone(row.Digest[:]), row.AppendValue(nil)
			rows = append(rows, &single)
		}
	}
	return rows
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
