package processor_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"oncebus/processor"
	"oncebus/processor/app"
	"oncebus/processor/wire"
)

// bothWays runs a test on a routes file as it stands and with every route prepartitioned: the routed and the
// prepartitioned way of a record must treat bad input alike.
func bothWays(t *testing.T, routes string, test func(t *testing.T, routes string)) {
	t.Helper()
	t.Run("routed", func(t *testing.T) { test(t, routes) })
	t.Run("keyed", func(t *testing.T) {
		test(t, strings.ReplaceAll(routes, "    key:\n", "    prepartitioned: true\n    key:\n"))
	})
}

// stageOf returns the stage whose transaction turns a record without a key away.
func stageOf(routes string) string {
	if strings.Contains(routes, "prepartitioned: true") {
		return processor.StageDedup
	}
	return processor.StageRoute
}

// sourceOf formats the topic, partition and offset of a record as our headers do.
func sourceOf(r *kgo.Record) string { return fmt.Sprintf("%s/%d/%d", r.Topic, r.Partition, r.Offset) }

const badRoutes = `routes:
  - name: signals
    topics: [signals.raw]
    key:
      - field: id
    max_key_bytes: 64
    window: 1h
    output: signals.unique
    dead_letter: dead
`

// assertCounts checks the values of oncebus_events_total of a route.
func assertCounts(t *testing.T, i *instance, route string, want map[string]float64) {
	t.Helper()
	for verdict, n := range want {
		series := fmt.Sprintf("oncebus_events_total{route=%q,verdict=%q}", route, verdict)
		if got := gather(t, i)[series]; got != n {
			t.Errorf("%s is %v, want %v", series, got, n)
		}
	}
}

// TestDeadLetterIsPartOfTheTransaction fails the end of the transaction that carries a dead letter: the dead letter
// is withdrawn together with its offset, and written again.
func TestDeadLetterIsPartOfTheTransaction(t *testing.T) {
	t.Parallel()
	bothWays(t, badRoutes, func(t *testing.T, routes string) {
		b := newBench(t, routes)
		i := b.ready(b.start(b.config("one")))
		fault := b.cluster.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.EndTxn}, TxnID: app.TransactionalID("app", stageOf(routes), 0, "one"), Err: kerr.UnknownServerError})
		bad := signal("", 0, testTime)
		bad.Value = []byte("?")
		b.produce(bad, signal("next", 0, testTime))
		b.drain(i, "signals.raw")
		if fault.Hits() != 1 {
			t.Fatalf("the fault was hit %d times, want once", fault.Hits())
		}
		if dead := b.read("dead"); len(dead) != 1 || header(dead[0], wire.HeaderSource) != sourceOf(bad) {
			t.Errorf("%d dead letters, want one", len(dead))
		}
		if n := b.uncommitted("dead"); n < 2 {
			t.Errorf("%d dead letters were ever written: the one of the failed transaction is missing, so the fault came too early to show anything", n)
		}
		if out := b.read("signals.unique"); len(out) != 1 {
			t.Errorf("%d records in the output, want one", len(out))
		}
		assertCounts(t, i, "signals", map[string]float64{"invalid": 1, "unique": 1})
	})
}
