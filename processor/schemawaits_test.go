package processor

import (
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"oncebus/processor/app"
	"oncebus/processor/judge"
)

// TestRevokedPartitionDoesNotWait protects that a partition which another process has now is neither counted nor
// shown as waiting for a schema.
func TestRevokedPartitionDoesNotWait(t *testing.T) {
	client := unusedClient(t)
	s := &shared{metrics: newMetrics(prometheus.NewRegistry()), board: newBoard()}
	w := newSchemaWaits(t.Context(), s, func() {})
	pending := &judge.PendingSchemaError{Offset: 7}
	w.read[awaitedSchema{pending.Format, pending.Schema}] = false // it is asked for
	orders := []app.TaskID{{Topic: "orders.raw", Partition: 0}, {Topic: "orders.raw", Partition: 1}}
	for _, id := range orders {
		w.await(client, id, pending)
		if w.board.unread[id] != pending.Error() {
			t.Errorf("%v waits because of %q", id, w.board.unread[id])
		}
	}
	w.drop(map[string][]int32{"orders.raw": {1, 2}, "signals.raw": {0}})
	if got := testutil.ToFloat64(s.metrics.schemaWaits); got != 1 {
		t.Errorf("%v partitions wait, want 1", got)
	}
	if w.board.unread[orders[0]] == "" || w.board.unread[orders[1]] != "" {
		t.Errorf("partitions wait because of %q and %q, want the first alone", w.board.unread[orders[0]], w.board.unread[orders[1]])
	}
	w.close()
	if got := testutil.ToFloat64(s.metrics.schemaWaits); got != 0 || w.board.unread[orders[0]] != "" {
		t.Errorf("after close %v partitions wait, the first because of %q", got, w.board.unread[orders[0]])
	}
}
