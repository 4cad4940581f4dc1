package restore

import (
	"errors"
	"log/slog"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"oncebus/processor/app"
	"oncebus/state"
)

// TestLongRestoreIsNoFailure protects that a restore that only takes long to read does not start a bypass.
func TestLongRestoreIsNoFailure(t *testing.T) {
	r := &Restore{}
	if r.FailedFor() != 0 {
		t.Error("a restore without a failure reports when it failed")
	}
	_ = r.noteFailure(errStale)
	if r.FailedFor() <= 0 || r.FailedFor() > time.Minute {
		t.Errorf("failed for %v", r.FailedFor())
	}
}

// TestStoreWithoutFilesIsRenewed covers a store before its first flush, which has no directory to keep. The restore
// continues with a new store, and counts the rebuild.
func TestStoreWithoutFilesIsRenewed(t *testing.T) {
	registry, log := prometheus.NewRegistry(), slog.New(slog.DiscardHandler)
	metrics := NewMetrics(registry)
	stores, err := NewStores(Config{Dir: t.TempDir(), App: "app", State: state.DefaultConfig(), RebuildsPerHour: 1, Openings: 1}, registry, metrics, log)
	if err != nil {
		t.Fatal(err)
	}
	if err := stores.makeDir(); err != nil {
		t.Fatal(err)
	}
	topology := &app.Topology{App: "app", Topics: map[string]app.Topic{}}
	r := &Restore{src: &Source{App: &app.App{Topology: topology}, Stores: stores, Metrics: metrics}, id: app.TaskID{Topic: "app-repartition"}, log: log}
	for _, want := range []error{nil, ErrTooOften} {
		if r.Store == nil {
			if err := r.open(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		if err := r.Store.Apply(7, nil); err != nil {
			t.Fatal(err)
		}
		if err := r.renew(t.Context(), true); !errors.Is(err, want) || want == nil && r.Store.Position() != 0 {
			t.Fatalf("renew a store without files: %v, want %v", err, want)
		}
	}
	if err := stores.Close(); err != nil {
		t.Error(err)
	}
}
