package processor_test

import (
	"context"
	"testing"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/twmb/franz-go/pkg/kadm"
)

// TestPurgeDeletesOnlyWhatIsCommitted purges the repartition topic between two batches of duplicates. No task may
// lose a record that it still needs, also not after a restart.
func TestPurgeDeletesOnlyWhatIsCommitted(t *testing.T) {
	t.Parallel()
	b := newBench(t, benchRoutes)
	cfg := b.config("one")
	i := b.ready(b.start(cfg))
	records, sent := traffic(100)
	b.produce(records...)
	b.drain(i, "signals.raw")
	b.wait("the snapshot to show the last commits", func() bool {
		records := int64(0)
		i.ProcessedOffsets().Each(func(o kadm.Offset) { records += o.At })
		return records >= 300 // and transaction markers
	})
	processed := i.ProcessedOffsets()
	if !i.Purge(context.Background(), processed) {
		t.Fatal("purging is not allowed here")
	}
	starts, err := b.admin.ListStartOffsets(context.Background(), "app-repartition")
	if err != nil {
		t.Fatal(err)
	}
	starts.Each(func(o kadm.ListedOffset) {
		if want, _ := processed.Lookup(o.Topic, o.Partition); o.Offset != want.At {
			t.Errorf("%s/%d begins at %d, want %d", o.Topic, o.Partition, o.Offset, want.At)
		}
	})
	if n := testutil.ToFloat64(i.PurgedRecords()); n < 300 {
		t.Errorf("%v records counted", n)
	}
	if err := i.stop(); err != nil {
		t.Fatal(err)
	}
	i = b.ready(b.start(cfg))
	again, _ := traffic(100)
	b.produce(again...)
	b.drain(i, "signals.raw")
	assertOnce(t, b.read("signals.unique"), sent)
}
