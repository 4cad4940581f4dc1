package processor_test

import (
	"fmt"
	"testing"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kmsg"

	"oncebus/processor"
	"oncebus/processor/app"
	"oncebus/processor/restore"
)

// TestGroupOffsetsThatSomebodyMoved moves the offsets of the dedup group while the app is stopped and input waits:
// back to the start, past all of the input, or away by deleting the group. The checkpoint says where to go on, so
// nothing is lost and nothing comes twice (fault g2, hazards B7, G7).
func TestGroupOffsetsThatSomebodyMoved(t *testing.T) {
	t.Parallel()
	for name, move := range map[string]func(b *bench) error{
		"to the start": func(b *bench) error { return b.moveGroup(func(int64) int64 { return 0 }) },
		"to the end":   func(b *bench) error { return b.moveGroup(func(end int64) int64 { return end }) },
		"away": func(b *bench) error {
			_, err := b.admin.DeleteGroup(b.t.Context(), app.GroupName("app", processor.StageDedup))
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newBench(t, benchRoutes)
			cfg := b.config("one")
			i := b.ready(b.start(cfg))
			records, _ := traffic(50)
			b.produce(records...)
			b.drain(i, "signals.raw")
			refusal := b.cluster.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.EndTxn}, TxnID: "app-dedup-0/one", Err: kerr.InvalidTxnState, Count: -1})
			more, sent := traffic(200)
			b.produce(more...)
			b.wait("the router to be done", func() bool { return len(b.routedRecords()) == len(records)+len(more) })
			must(t, i.stop())
			refusal.Remove()
			b.wait("the group to be empty, so that its offsets can be moved", func() bool { return move(b) == nil })

			i = b.ready(b.start(cfg))
			b.wait("all of the output", func() bool { return len(b.read("signals.unique")) >= len(sent) })
			again, _ := traffic(200)
			b.produce(again...)
			b.drain(i, "signals.raw")
			assertOnce(t, b.read("signals.unique"), sent)
		})
	}
}

// moveGroup commits offsets for the dedup group as an operator would. The broker refuses this while the group has
// members.
func (b *bench) moveGroup(to func(end int64) int64) error {
	ends, err := b.admin.ListEndOffsets(b.t.Context(), "app-repartition")
	if err != nil {
		return err
	}
	var offsets kadm.Offsets
	ends.Each(func(o kadm.ListedOffset) { offsets.AddOffset(o.Topic, o.Partition, to(o.Offset), -1) })
	moved, err := b.admin.CommitOffsets(b.t.Context(), app.GroupName("app", processor.StageDedup), offsets)
	if err != nil {
		return err
	}
	return moved.Error()
}

// TestStoreOutOfStepWithTheChangelog starts on a store whose position the changelog does not have: the position is
// beyond the end, as after an unclean election, or before the beginning, as in an old copy. The process quarantines
// the store and rebuilds it (hazard T3, faults b6, s4).
func TestStoreOutOfStepWithTheChangelog(t *testing.T) {
	t.Parallel()
	for name, part := range map[string]func(b *bench, i *instance){
		"beyond the end": func(b *bench, i *instance) {
			id := app.TaskID{Topic: "app-repartition", Partition: 0}
			store, err := i.Stores().Host.Open(i.Stores().DirOf(id), restore.StoreIdentity(i.App(), id))
			must(b.t, err)
			must(b.t, store.Apply(store.Position()+1000, store.Checkpoint()))
			must(b.t, store.Close())
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newBench(t, benchRoutes)
			cfg := b.config("one")
			records, _ := traffic(50)
			b.lived(cfg, records...)
			records, sent := traffic(100)
			i := b.lived(cfg, records...)

			part(b, i)
			i = b.ready(b.start(cfg))
			if n := testutil.ToFloat64(i.RestoreMetrics().Quarantined); n != 1 {
				t.Errorf("%v stores were quarantined, want 1", n)
			}
			for n := range 100 {
				r := signal(fmt.Sprint("new-", n), int32(n%4), testTime)
				sent[fmt.Sprint("new-", n)] = r
				b.produce(r)
			}
			b.drain(i, "signals.raw")
			assertOnce(t, b.read("signals.unique"), sent)
		})
	}
}

// TestFirstTransactionAbortsAboveTheLogStart aborts the very first transaction of a group whose input does not begin
// at 0. The client then goes back to an offset that nobody committed (hazard A10).
func TestFirstTransactionAbortsAboveTheLogStart(t *testing.T) {
	t.Parallel()
	b := newBench(t, benchRoutes)
	b.createTopic("signals.raw", 4)
	records, _ := traffic(50)
	b.produce(records...)
	ends, err := b.admin.ListEndOffsets(t.Context(), "signals.raw")
	must(t, err)
	_, err = b.admin.DeleteRecords(t.Context(), ends.Offsets())
	must(t, err)
	refused := b.cluster.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.Produce}, Topic: "app-repartition", Err: kerr.InvalidRecord})
	records, sent := traffic(100)
	b.produce(records...)
	i := b.start(b.config("one"))
	b.wait("all of the output", func() bool {
		select {
		case <-i.done:
			t.Fatalf("the process ended: %v", i.err)
		default:
		}
		return i.Ready() == nil && len(b.read("signals.unique")) >= len(sent)
	})
	if _, aborted, _ := i.outcomes(processor.StageRoute); aborted == 0 || refused.Hits() == 0 {
		t.Fatal("the first transaction was not aborted")
	}
	assertOnce(t, b.read("signals.unique"), sent)
}

// ends returns the end offset of every partition of a topic.
func (b *bench) ends(topic string) kadm.Offsets {
	b.t.Helper()
	listed, err := b.admin.ListEndOffsets(b.t.Context(), topic)
	must(b.t, err)
	return listed.Offsets()
}
