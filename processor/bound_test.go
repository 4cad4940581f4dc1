package processor_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"oncebus/processor"
)

// batchesOf returns an observer of requests that calls visit for every batch that a produce request has for a topic.
func (b *bench) batchesOf(topic string, visit func(partition int32, batch *kmsg.RecordBatch)) func(kmsg.Request) bool {
	b.t.Helper()
	meta, err := b.admin.Metadata(b.t.Context(), topic)
	must(b.t, err)
	id := [16]byte(meta.Topics[topic].ID)
	return func(req kmsg.Request) bool {
		for _, t := range req.(*kmsg.ProduceRequest).Topics {
			if t.Topic != topic && t.TopicID != id {
				continue
			}
			for _, p := range t.Partitions {
				var batch kmsg.RecordBatch
				if batch.ReadFrom(p.Records) == nil {
					visit(p.Partition, &batch)
				}
			}
		}
		return false
	}
}

// largerThan selects produce requests with a batch of more than n records for a topic.
func (b *bench) largerThan(topic string, n int32) func(kmsg.Request) bool {
	larger := false
	visit := b.batchesOf(topic, func(_ int32, batch *kmsg.RecordBatch) { larger = larger || batch.NumRecords > n })
	return func(req kmsg.Request) bool {
		larger = false
		visit(req)
		return larger
	}
}

// TestTransactionThatTimesOutShrinks lets the brokers acknowledge a batch of one record in time, and no larger batch
// (hazard C12). The transactions shrink to one record, which commits. When the brokers are fast again, the
// transactions grow back.
func TestTransactionThatTimesOutShrinks(t *testing.T) {
	t.Parallel()
	for stage, topic := range map[string]string{processor.StageRoute: "app-repartition", processor.StageDedup: "signals.unique"} {
		t.Run(stage, func(t *testing.T) {
			t.Parallel()
			b := newBench(t, benchRoutes)
			cfg := b.onePartition("one")
			cfg.TransactionTimeout = time.Second
			i := b.ready(b.start(cfg))
			bound := func() float64 {
				return gather(t, i)[fmt.Sprintf("oncebus_transaction_records_max{stage=%q,worker=%q}", stage, "0")]
			}
			if bound() != 50_000 {
				t.Errorf("the bound is %v at the start, want 50000", bound())
			}
			committed, _, _ := i.outcomes(stage)
			slow := b.cluster.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.Produce}, Topic: topic, Err: kerr.NotLeaderForPartition, Count: -1, When: b.largerThan(topic, 1)})
			sent := map[string]*kgo.Record{}
			var records []*kgo.Record
			for n := range 40 {
				r := signal(fmt.Sprint("id-", n), 0, testTime)
				sent[fmt.Sprint("id-", n)] = r
				records = append(records, r)
			}
			lingers := b.newClient(kgo.ProducerLinger(time.Minute)) // so that all are in one batch
			for _, r := range records {
				lingers.Produce(t.Context(), r, nil)
			}
			must(t, lingers.Flush(t.Context()))
			b.wait("a transaction of one record to commit", func() bool {
				now, _, _ := i.outcomes(stage)
				return slow.Hits() > 0 && now > committed
			})
			slow.Remove()
			if n := gather(t, i)[fmt.Sprintf("oncebus_transaction_timeouts_total{stage=%q}", stage)]; n < 3 {
				t.Errorf("%v timeouts were counted, want at least 3: 40 records, 10, 2", n)
			}
			b.drain(i, "signals.raw")
			for n := 0; bound() < 50_000; n++ {
				id := fmt.Sprint("later-", n)
				r := signal(id, 0, testTime)
				sent[id] = r
				b.produce(r)
				b.drain(i, "signals.raw")
				if n > 100 {
					t.Fatalf("the bound is %v after %d transactions in time", bound(), n)
				}
			}
			assertOnce(t, b.read("signals.unique"), sent)
			b.assertWhole(i)
		})
	}
}
