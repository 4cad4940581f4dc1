package restore

import (
	"errors"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"oncebus/processor/app"
	"oncebus/state"
)

// TestPositionsAreOfAllStores protects that the leader of a group learns the position of each store of a process,
// including closed stores, so that the former owner of a task gets it again.
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

// TestStartRemovesWhatMovesLeft protects that a start removes the directories of tasks whose keys were moved, by the
// whole name of the topic. The directories of running tasks, of later generations, which a move may be filling, and
// of others stay.
func TestStartRemovesWhatMovesLeft(t *testing.T) {
	s := &Stores{dir: t.TempDir(), app: "app"}
	left := []string{"app-repartition-0", "app-repartition-11", "app-repartition-2-0", "payments-3"}
	kept := []string{
		"app-repartition-3-0", "app-repartition-3-10", "app-repartition-4-1", "app-repartition-x-1", "app-repartition-3-0.quarantine-20261128T000000.000000000Z",
		"app-repartition-2-0.quarantine-20261128T000000.000000000Z", "payments-eu-3", "keyed-0", "other-repartition-0", "payments", "notes-", "app-repartition-2--1",
	}
	for _, name := range append(slices.Clone(left), kept...) {
		if err := os.MkdirAll(filepath.Join(s.dir, s.app, name, "files"), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	file := filepath.Join(s.dir, s.app, "app-repartition-7")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	s.RemoveFormer(&app.Topology{App: "app", Generation: 3, Repartition: "app-repartition-3", Routed: []string{"payments", "app-repartition-2"}, Prepartitioned: []string{"keyed"}}, slog.New(slog.DiscardHandler))
	entries, err := os.ReadDir(filepath.Join(s.dir, s.app))
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	want := slices.Sorted(slices.Values(append(slices.Clone(kept), filepath.Base(file))))
	if !slices.Equal(names, want) {
		t.Errorf("left %q, want %q", names, want)
	}
}
