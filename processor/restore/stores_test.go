package restore

import (
	"errors"
	"log/slog"
	"maps"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"oncebus/processor/app"
	"oncebus/state"
)

// TestPositionsAreOfAllStores: the leader of a group is sent the position of each store of a process,
// also of one that is closed, so that its former owner gets the task again.
func TestPositionsAreOfAllStores(t *testing.T) {
	registry, log := prometheus.NewRegistry(), slog.New(slog.DiscardHandler)
	stores, err := NewStores(Config{Dir: t.TempDir(), App: "app", State: state.DefaultConfig(), Openings: 1}, registry, NewMetrics(registry), log)
	if err != nil {
		t.Fatal(err)
	}
	if err := stores.makeDir(); err != nil {
		t.Fatal(err)
	}
	want := map[app.TaskID]int64{}
	var open *state.Store
	for p, position := range []int64{7, 9} {
		id := app.TaskID{Topic: "app-repartition", Partition: int32(p)}
		store, err := stores.Host.Open(stores.DirOf(id), []byte("identity"))
		if err != nil {
			t.Fatal(err)
		}
		if err := store.Apply(position, nil); err != nil {
			t.Fatal(err)
		}
		want[id], open = position, store
		if p == 0 {
			if err := store.Close(); err != nil {
				t.Fatal(err)
			}
		}
	}
	topology := &app.Topology{App: "app", Repartition: "app-repartition", Topics: map[string]app.Topic{"app-repartition": {Partitions: 3}}}
	if got := stores.Positions(topology); !maps.Equal(got, want) {
		t.Errorf("positions: %v, want %v", got, want)
	}
	if err := errors.Join(open.Close(), stores.Close()); err != nil {
		t.Error(err)
	}
}
