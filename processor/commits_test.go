package processor_test

import (
	"log/slog"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"oncebus/processor"
	"oncebus/processor/app"
	"oncebus/processor/restore"
	"oncebus/processor/wire"
	"oncebus/state"
)

// TestNothingIsAppliedBeforeTheCommit lets no transaction commit any more, and looks into the stores after the
// process has stopped: the stores hold what was committed before, and nothing else (invariant 1).
func TestNothingIsAppliedBeforeTheCommit(t *testing.T) {
	t.Parallel()
	b := newBench(t, benchRoutes)
	i := b.ready(b.start(b.config("one")))
	records, _ := traffic(50)
	b.produce(records...)
	b.drain(i, "signals.raw")
	b.cluster.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.EndTxn}, TxnID: "app-dedup-0/one", Err: kerr.InvalidTxnState, Count: -1})
	records, _ = traffic(200)
	b.produce(records...)
	_, aborted, unknown := i.outcomes(processor.StageDedup)
	b.wait("a transaction to be refused", func() bool {
		_, nowAborted, nowUnknown := i.outcomes(processor.StageDedup)
		return nowAborted+nowUnknown >= aborted+unknown+1
	})
	must(t, i.stop())

	committed, rows := b.folds("app-repartition-changelog"), map[int32]uint64{}
	for _, r := range b.rows("app-repartition-changelog") {
		rows[r.Partition]++
	}
	b.eachStore(i, func(p int32, store *state.Store, stored *wire.Fold) {
		if got, want := stored.Newest(), committed[p].Newest(); !stored.Has() || !reflect.DeepEqual(got, want) {
			t.Errorf("partition %d: the store's checkpoint is %+v, the last committed one %+v", p, got, want)
		}
		if n := store.Stats().Rows; n != rows[p] {
			t.Errorf("partition %d: the store holds %d rows, the changelog %d", p, n, rows[p])
		}
	})
}

// eachStore opens the stores of a stopped instance with four tasks, and calls each for every store.
func (b *bench) eachStore(i *instance, each func(partition int32, store *state.Store, stored *wire.Fold)) {
	b.t.Helper()
	host, err := state.NewHost(state.DefaultConfig(), prometheus.NewRegistry(), slog.New(slog.DiscardHandler))
	must(b.t, err)
	b.t.Cleanup(func() { must(b.t, host.Close()) })
	for p := range int32(4) {
		id := app.TaskID{Topic: "app-repartition", Partition: p}
		store, err := host.Open(i.Stores().DirOf(id), restore.StoreIdentity(i.App(), id))
		must(b.t, err)
		stored, err := wire.ReadStored(store.Checkpoint())
		must(b.t, err)
		each(p, store, &stored)
		must(b.t, store.Close())
	}
}

// TestFirstEventWaitsForNoInterval sends one event to a process whose commit interval is longer than the test may
// take. Both stages commit the event at once.
func TestFirstEventWaitsForNoInterval(t *testing.T) {
	t.Parallel()
	b := newBench(t, benchRoutes)
	cfg := b.config("one")
	cfg.CommitInterval, cfg.TransactionTimeout, cfg.StopTimeout = 4*time.Minute, 14*time.Minute, 5*time.Minute
	i := b.ready(b.start(cfg))
	first := signal("first", 0, testTime)
	b.produce(first)
	b.drain(i, "signals.raw")
	assertOnce(t, b.read("signals.unique"), map[string]*kgo.Record{"first": first})
}

// TestPollIsWorkedOffWhole sends many events at once and, while the process works them off, one further event over
// and over. When that event is emitted, all events before it must be emitted as well (hazard A5: the client never
// returns the rest of a poll again).
func TestPollIsWorkedOffWhole(t *testing.T) {
	t.Parallel()
	b := newBench(t, benchRoutes)
	i := b.ready(b.start(b.onePartition("one")))
	records, sent := traffic(300)
	for _, r := range records {
		r.Partition = 0
	}
	b.produce(records...)
	last := signal("last", 0, testTime)
	sent["last"] = last
	b.wait("the last event", func() bool {
		b.produce(signal("last", 0, testTime))
		for _, r := range b.read("signals.unique") {
			if strings.HasSuffix(string(r.Key), "last") {
				return true
			}
		}
		return false
	})
	assertOnce(t, b.read("signals.unique"), sent)
	b.drain(i, "signals.raw")
}
