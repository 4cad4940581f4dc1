package restore_test

import (
	"context"
	"encoding/binary"
	"errors"
	"log/slog"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"oncebus/dedup"
	"oncebus/dedup/rules"
	"oncebus/processor/app"
	"oncebus/processor/restore"
	"oncebus/processor/wire"
	"oncebus/state"
)

// TestRecountEndsWhenItsTaskIsRevoked protects rebalances: a rebalance waits until the restore of the task has ended,
// so a count of many rows must not run to its end.
func TestRecountEndsWhenItsTaskIsRevoked(t *testing.T) {
	t.Parallel()
	host, err := state.NewHost(state.DefaultConfig(), prometheus.NewRegistry(), slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	store, err := host.Open(t.TempDir(), []byte("test"))
	if err != nil {
		t.Fatal(err)
	}
	const rows = 10_000
	for n := range uint64(rows) {
		row := dedup.Row{First: 1, NamespaceID: 1}
		binary.BigEndian.PutUint64(row.Digest[:], n)
		store.Put(row)
	}
	if err := store.Apply(rows, nil); err != nil {
		t.Fatal(err)
	}
	a := &app.App{Routes: []*app.Route{{Route: &rules.Route{}, NamespaceID: 1, Span: dedup.Window{Size: 1000}}}}
	c := &wire.Checkpoint{}
	c.StreamTimes.Has[1] = true
	revoked, revoke := context.WithCancel(t.Context())
	revoke()
	if _, err := restore.CountKeys(revoked, a, c, store); !errors.Is(err, context.Canceled) {
		t.Errorf("the recount of a revoked task returned %v", err)
	}
	if err := errors.Join(store.Close(), host.Close()); err != nil {
		t.Error(err)
	}
}
