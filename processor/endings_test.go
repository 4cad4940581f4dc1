package processor_test

import (
	"context"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"oncebus/processor"
	"oncebus/processor/app"
)

// TestNoTransactionBeforeTheLastIsClosed protects that a worker judges events but writes nothing of the next
// transaction while the coordinator writes, or says that it writes, the markers of the last one.
func TestNoTransactionBeforeTheLastIsClosed(t *testing.T) {
	t.Parallel()
	for _, stage := range []string{processor.StageRoute, processor.StageDedup} {
		t.Run(stage, func(t *testing.T) {
			t.Parallel()
			b := newBench(t, benchRoutes)
			cfg := b.config("one")
			cfg.Workers = 1
			i := b.ready(b.start(cfg))
			b.produce(batch("a", 50)...)
			b.drain(i, "signals.raw")

			id := "app-" + stage + "-0/one"
			var ending atomic.Bool
			var asked, wrote atomic.Int64
			ending.Store(true)
			b.cluster.ControlKey(kmsg.DescribeTransactions.Int16(), func(req kmsg.Request) (kmsg.Response, error, bool) {
				b.cluster.KeepControl()
				if !ending.Load() || !slices.Contains(req.(*kmsg.DescribeTransactionsRequest).TransactionalIDs, id) {
					return nil, nil, false
				}
				asked.Add(1)
				resp := req.ResponseKind().(*kmsg.DescribeTransactionsResponse)
				s := kmsg.NewDescribeTransactionsResponseTransactionState()
				s.TransactionalID, s.State = id, "PrepareCommit"
				resp.TransactionStates = append(resp.TransactionStates, s)
				return resp, nil, true
			})
			b.cluster.ControlKey(kmsg.Produce.Int16(), func(req kmsg.Request) (kmsg.Response, error, bool) {
				b.cluster.KeepControl()
				if by := req.(*kmsg.ProduceRequest).TransactionID; by != nil && *by == id {
					wrote.Add(1)
				}
				return nil, nil, false
			})
			b.produce(batch("b", 50)...) // its transaction may begin
			b.wait("the worker to look whether it is closed", func() bool { return asked.Load() > 0 })
			before := wrote.Load()
			b.produce(batch("c", 50)...)
			seen := asked.Load()
			b.wait("the worker to look again and again", func() bool { return asked.Load() > seen+5 })
			if now := wrote.Load(); now != before {
				t.Errorf("the next transaction sent %d requests with records before the last one was closed", now-before)
			}
			ending.Store(false)
			b.drain(i, "signals.raw")
			assertOut(t, b, batch("a", 50), batch("b", 50), batch("c", 50))
		})
	}
}

// TestHangingTransactionOfASender leaves a sender's transaction open in an input although its coordinator says that
// it has completed the transaction. The process and doctor say so, name the command, and do not touch the
// transaction.
func TestHangingTransactionOfASender(t *testing.T) {
	t.Parallel()
	b := newBench(t, benchRoutes)
	i := b.ready(b.startWith(b.config("one"), func(p *processor.Processor) { p.SetHangInterval(20 * time.Millisecond) }))
	ctx := context.Background()
	sender := b.newClient(kgo.TransactionalID("sender"), kgo.TransactionTimeout(10*time.Minute))
	producer, _, err := sender.ProducerID(ctx)
	must(t, err)
	b.cluster.ControlKey(kmsg.ListTransactions.Int16(), func(req kmsg.Request) (kmsg.Response, error, bool) {
		b.cluster.KeepControl()
		resp := req.ResponseKind().(*kmsg.ListTransactionsResponse)
		s := kmsg.NewListTransactionsResponseTransactionState()
		s.TransactionalID, s.ProducerID, s.TransactionState = "sender", producer, "CompleteCommit"
		resp.TransactionStates = append(resp.TransactionStates, s)
		return resp, nil, true
	})
	must(t, sender.BeginTransaction())
	must(t, sender.ProduceSync(ctx, &kgo.Record{Topic: "signals.raw", Partition: 1, Value: []byte(`{"id":"x"}`)}).FirstErr())
	assertFinding(t, b.diagnose(b.config("one"), 0), app.Fails, "transactions",
		"the coordinator of its transactional id sender has completed it (CompleteCommit): readers wait before it -> kafka-transactions.sh abort --topic signals.raw --partition 1")
	const series = `oncebus_hanging_transactions{partition="1",topic="signals.raw"}`
	b.wait("the process to report it", func() bool {
		err := i.Ready()
		return gather(t, i)[series] == 1 && err != nil && strings.Contains(err.Error(), "kafka-transactions.sh abort --topic signals.raw --partition 1 --start-offset ")
	})
	if !strings.Contains(b.logs.String(), "a transaction hangs") {
		t.Error("the log does not say it")
	}
	must(t, sender.EndTransaction(ctx, kgo.TryAbort))
	b.ready(i)
	if _, shown := gather(t, i)[series]; shown {
		t.Error("the metric still reports it")
	}
}

// TestManifestIsDecidedOnceWhereAMarkerIsMissing commits the rows of a command while the partition leader says that
// their transaction is open. The command closes the transaction, and does not decide again over its own rows.
func TestManifestIsDecidedOnceWhereAMarkerIsMissing(t *testing.T) {
	t.Parallel()
	b := newBench(t, benchRoutes)
	b.ready(b.start(b.config("one")))
	found, err := app.Find(t.Context(), b.client, "app", b.routes)
	must(t, err)
	var committed, opened atomic.Int64 // the producer id of the commit
	b.cluster.ControlKey(kmsg.EndTxn.Int16(), func(req kmsg.Request) (kmsg.Response, error, bool) {
		b.cluster.KeepControl()
		if end := req.(*kmsg.EndTxnRequest); end.TransactionalID == "app-manifest" && end.Commit {
			committed.CompareAndSwap(0, end.ProducerID)
		}
		return nil, nil, false
	})
	b.cluster.ControlKey(kmsg.DescribeProducers.Int16(), func(req kmsg.Request) (kmsg.Response, error, bool) {
		b.cluster.KeepControl()
		asked := req.(*kmsg.DescribeProducersRequest).Topics
		if committed.Load() == 0 || asked[0].Topic != "app-manifest" || opened.Add(1) > 1 {
			return nil, nil, false
		}
		resp := req.ResponseKind().(*kmsg.DescribeProducersResponse)
		open := kmsg.NewDescribeProducersResponseTopicPartitionActiveProducer()
		open.ProducerID, open.CurrentTxnStartOffset = committed.Load(), 1
		p := kmsg.NewDescribeProducersResponseTopicPartition()
		p.ActiveProducers = append(p.ActiveProducers, open)
		topic := kmsg.NewDescribeProducersResponseTopic()
		topic.Topic, topic.Partitions = "app-manifest", append(topic.Partitions, p)
		resp.Topics = append(resp.Topics, topic)
		return resp, nil, true
	})
	decided := 0
	must(t, app.ChangeRows(t.Context(), b.conn(), b.config("operator").Config, found.Topology, func(app.Rows) ([]*kgo.Record, error) {
		decided++
		return []*kgo.Record{{Key: []byte("x"), Value: []byte("{}")}}, nil
	}))
	if decided != 1 || opened.Load() < 2 {
		t.Errorf("decided %d times after %d questions, want once, and a second look", decided, opened.Load())
	}
}

// TestEachDecisionIsKept lets commands decide over the rows of the manifest at the same time. The rows of each
// command that ends without an error are there, and no other command decided over the same rows.
func TestEachDecisionIsKept(t *testing.T) {
	t.Parallel()
	const commands, decisions = 6, 25
	b := newBench(t, benchRoutes)
	b.ready(b.start(b.config("one")))
	found, err := app.Find(t.Context(), b.client, "app", b.routes)
	must(t, err)
	var deciding sync.WaitGroup
	for range commands {
		deciding.Go(func() {
			for range decisions {
				err := app.ChangeRows(t.Context(), b.conn(), b.config("operator").Config, found.Topology, func(rows app.Rows) ([]*kgo.Record, error) {
					n, _ := strconv.Atoi(string(rows["decisions"])) // 0 before the first one
					return []*kgo.Record{{Key: []byte("decisions"), Value: []byte(strconv.Itoa(n + 1))}}, nil
				})
				if err != nil {
					t.Error(err)
				}
			}
		})
	}
	deciding.Wait()
	rows, err := app.ReadRows(t.Context(), b.client, found.Topology)
	must(t, err)
	if want := strconv.Itoa(commands * decisions); string(rows["decisions"]) != want {
		t.Errorf("%s of %s decisions are there", rows["decisions"], want)
	}
}
