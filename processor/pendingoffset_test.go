package processor_test

import (
	"context"
	"maps"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"oncebus/processor"
	"oncebus/processor/app"
)

// A pendedTask is a pending offset of the task app-repartition/1, until end is called.
type pendedTask struct {
	end func()
	// registered counts the producers of the dedup stage that registered since; asked counts how often a member asked
	// for the offset.
	registered, asked atomic.Int32
}

// waitsInVain reports whether workers have begun to wait for the offset, which no waiting brings.
func (p *pendedTask) waitsInVain() bool { return p.registered.Load() > 8 || p.asked.Load() > 25 }

// pendTask makes the offset part of a transaction that no coordinator ends. The embedded broker alone would make all
// offsets of the group pending. If isThere is set, the offsets topic has the transaction.
func (b *bench) pendTask(isThere bool) *pendedTask {
	b.t.Helper()
	ctx, p := context.Background(), &pendedTask{}
	stranger := b.newClient(kgo.TransactionalID("forgotten"), kgo.TransactionTimeout(10*time.Minute))
	if isThere {
		b.createTopic("__consumer_offsets", 50)
		b.cluster.Intercept(func(req kmsg.Request) (kmsg.Response, error, bool) {
			return req.ResponseKind(), nil, len(req.(*kmsg.ListTransactionsRequest).ProducerIDFilters) > 0
		}, kmsg.ListTransactions)
		must(b.t, stranger.BeginTransaction())
		must(b.t, stranger.ProduceSync(ctx, &kgo.Record{Topic: "__consumer_offsets", Partition: 18, Value: []byte("offset")}).FirstErr())
	}
	b.cluster.Intercept(func(req kmsg.Request) (kmsg.Response, error, bool) {
		if r := req.(*kmsg.InitProducerIDRequest); r.TransactionalID != nil && strings.Contains(*r.TransactionalID, app.StageDedup) && r.ProducerID < 0 {
			p.registered.Add(1)
		}
		return nil, nil, false
	}, kmsg.InitProducerID)
	fault := b.cluster.Fault(kfake.Fault{
		Keys: []kmsg.Key{kmsg.OffsetFetch}, Group: "app-dedup", Topic: "app-repartition", Partitions: []int32{1}, Err: kerr.UnstableOffsetCommit, Count: -1,
		When: func(req kmsg.Request) bool {
			r := req.(*kmsg.OffsetFetchRequest)
			if slices.ContainsFunc(r.Groups, func(g kmsg.OffsetFetchRequestGroup) bool { return g.MemberID != nil }) {
				p.asked.Add(1)
			}
			return r.RequireStable
		},
	})
	p.end = func() {
		if isThere {
			must(b.t, stranger.EndTransaction(ctx, kgo.TryAbort))
		}
		fault.Remove()
	}
	return p
}

// routedTo returns how many records were routed in total, and how many to this partition.
func (b *bench) routedTo(partition int32) (all, to int) {
	for _, r := range b.routedRecords() {
		if all++; r.Partition == partition {
			to++
		}
	}
	return all, to
}

// TestOnlyThePartitionOfAPendingOffsetWaits makes the offset of one task part of a transaction of a producer that no
// coordinator knows. All other tasks go on, the process and doctor name the command, and the task goes on once the
// transaction is aborted.
func TestOnlyThePartitionOfAPendingOffsetWaits(t *testing.T) {
	t.Parallel()
	for name, isThere := range map[string]bool{"seen": true, "hidden": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newBench(t, benchRoutes)
			watch := func(p *processor.Processor) { p.SetHangInterval(100 * time.Millisecond) }
			start := func(instance string) *instance {
				cfg := b.config(instance)
				cfg.Workers, cfg.TransactionTimeout = 1, 2*time.Second
				return b.startWith(cfg, watch)
			}
			one, two := start("one"), start("two")
			b.ready(one)
			b.ready(two)
			b.produce(batch("a", 100)...)
			b.drain(two, "signals.raw")

			_, before := b.routedTo(1)
			offset := b.pendTask(isThere)
			must(t, one.stop())
			one = start("one")
			b.produce(batch("b", 100)...)
			b.wait("all other tasks to go on", func() bool {
				if offset.waitsInVain() {
					t.Fatalf("%d producers registered, and the offset was asked for %d times", offset.registered.Load(), offset.asked.Load())
				}
				all, waits := b.routedTo(1)
				return all == 200 && len(b.read("signals.unique")) >= all-waits+before
			})
			command := "kafka-transactions.sh find-hanging --broker-id 0"
			if isThere {
				command = "kafka-transactions.sh abort --topic __consumer_offsets --partition 18 --start-offset 0"
			}
			const series = `oncebus_hanging_transactions{partition="1",topic="app-repartition"}`
			for _, i := range []*instance{one, two} {
				b.wait("the process to report it", func() bool {
					err := i.Ready()
					return gather(t, i)[series] == 1 && err != nil && strings.Contains(err.Error(), "app-repartition/1") && strings.Contains(err.Error(), command)
				})
			}
			assertFinding(t, b.diagnose(b.config("one"), 0), app.Fails, "transactions", command)
			b.wait("the state to show that only this task waits", func() bool {
				states := map[string]string{}
				for _, s := range append(one.State().Tasks, two.State().Tasks...) {
					if states[s.Task] = s.State; s.State == "waiting" && !strings.Contains(s.Reason, "in group app-dedup is part of a transaction that no coordinator ends") {
						return false
					}
				}
				return maps.Equal(states, map[string]string{"app-repartition/0": "running", "app-repartition/1": "waiting", "app-repartition/2": "running", "app-repartition/3": "running"})
			})
			b.produce(batch("c", 100)...)

			offset.end()
			b.drain(one, "signals.raw")
			b.drain(two, "signals.raw")
			assertOut(t, b, batch("a", 100), batch("b", 100), batch("c", 100))
			t.Logf("%d producers registered, and the offset was asked for %d times", offset.registered.Load(), offset.asked.Load())
			if _, shown := gather(t, one)[series]; shown {
				t.Error("the metric still reports it")
			}
		})
	}
}
