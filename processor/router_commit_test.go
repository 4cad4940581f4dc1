package processor_test

import (
	"fmt"
	"testing"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
	"github.com/twmb/franz-go/pkg/kversion"

	"oncebus/processor"
	"oncebus/processor/app"
	"oncebus/processor/wire"
)

// TestRouterRoutesOnceAfterAnUnknownCommit answers the router's EndTxn with UNKNOWN_SERVER_ERROR after the broker has
// committed. The client calls that "not committed" and goes on from the offsets it remembers. Unless the router
// replaces the client, it routes all records of the transaction twice; the dedup stage hides this for events with a
// key, but not for events without one (hazard A6).
func TestRouterRoutesOnceAfterAnUnknownCommit(t *testing.T) {
	t.Parallel()
	b := newBench(t, benchRoutes)
	dialer := &spoilingDialer{api: kmsg.EndTxn, match: "app-one-" + processor.StageRoute + "-0", spoil: answerEndTxn(kerr.UnknownServerError)}
	i := b.ready(b.start(b.config("one"), kgo.Dialer(dialer.dial)))
	dialer.arm(1)
	noKey := &kgo.Record{Topic: "signals.raw", Partition: 1, Value: []byte(`{"price":"1.0"}`)}
	b.produce(signal("a", 0, testTime), signal("b", 1, testTime), signal("b", 2, testTime), noKey)
	b.drain(i, "signals.raw")
	if dialer.left() != 0 {
		t.Fatal("no answer was spoiled")
	}
	routed := map[string]int{}
	for _, r := range b.routedRecords() {
		var env wire.Envelope
		if err := wire.ReadEnvelope(r, &env); err != nil {
			t.Fatal(err)
		}
		routed[fmt.Sprint(env.From)]++
	}
	if len(routed) != 3 {
		t.Errorf("routed %v, want 3 records", routed)
	}
	for from, n := range routed {
		if n != 1 {
			t.Errorf("the record at %s was routed %d times", from, n)
		}
	}
	if dead := b.read("dead"); len(dead) != 1 {
		t.Errorf("%d dead letters of one record without a key", len(dead))
	}
}

// TestRefusedBeginLosesNothing makes a transaction end so badly that the client cannot begin another one, which
// happens after TRANSACTION_ABORTABLE on brokers without KIP-890's second part. The records polled for the
// transaction that could not begin must come again, and the next transaction must not skip them. The simulation found
// this.
func TestRefusedBeginLosesNothing(t *testing.T) {
	t.Parallel()
	for _, stage := range []string{processor.StageRoute, processor.StageDedup} {
		t.Run(stage, func(t *testing.T) {
			t.Parallel()
			b := newBench(t, benchRoutes, kfake.MaxVersions(kversion.V3_6_0()))
			i := b.ready(b.start(b.config("one")))
			fault := b.cluster.Fault(kfake.Fault{
				Keys: []kmsg.Key{kmsg.EndTxn}, TxnID: app.TransactionalID("app", stage, 0, "one"), Err: kerr.TransactionAbortable, Count: 2,
			})
			sent := map[string]*kgo.Record{}
			for n := range 10 {
				r := signal(fmt.Sprint("id-", n), int32(n%4), testTime)
				sent[fmt.Sprint("id-", n)] = r
				b.produce(r)
			}
			b.drain(i, "signals.raw")
			if fault.Hits() == 0 {
				t.Fatal("the fault was never met")
			}
			assertOnce(t, b.read("signals.unique"), sent)
		})
	}
}
