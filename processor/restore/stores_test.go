package restore

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"oncebus/state"
)

// TestStoreOpensInItsTurn: a store waits while as many others open as may, and its restore
// can be stopped meanwhile.
func TestStoreOpensInItsTurn(t *testing.T) {
	registry := prometheus.NewRegistry()
	dir := t.TempDir()
	stores, err := NewStores(Config{Dir: dir, App: "app", State: state.DefaultConfig(), Openings: 1}, registry, NewMetrics(registry), slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := stores.Close(); err != nil {
			t.Error(err)
		}
	}()
	for range cap(stores.openings) {
		<-stores.openings
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	at := filepath.Join(dir, "store")
	if _, err := stores.open(ctx, at, nil); !errors.Is(err, context.Canceled) {
		t.Errorf("without a turn the store opens: %v", err)
	}
	if _, err := os.Stat(at); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the store has files: %v", err)
	}
	stores.openings <- struct{}{}
	for range 2 { // the turn comes back
		store, err := stores.open(t.Context(), at, nil)
		if err != nil {
			t.Fatal(err)
		}
		if err := store.Close(); err != nil {
			t.Error(err)
		}
	}
}
