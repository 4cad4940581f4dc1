package judge

import (
	"errors"
	"log/slog"
	"math"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/twmb/franz-go/pkg/kgo"

	"oncebus/dedup"
	"oncebus/dedup/rules"
	"oncebus/processor/app"
	"oncebus/state"
)

// TestCheckpointRowWithoutOffsetIsReadBack covers the checkpoint row of a committed transaction without an offset,
// which happens if the broker recognizes a batch that was sent twice. The task must apply nothing at a guessed
// position.
func TestCheckpointRowWithoutOffsetIsReadBack(t *testing.T) {
	host, err := state.NewHost(state.DefaultConfig(), prometheus.NewRegistry(), slog.New(slog.DiscardHandler))
	must(t, err)
	t.Cleanup(func() { must(t, host.Close()) })
	store, err := host.Open(t.TempDir(), []byte("x"))
	must(t, err)
	t.Cleanup(func() { must(t, store.Close()) })
	must(t, store.Apply(10, []byte("c")))
	task := &State{ID: app.TaskID{Topic: "topic", Partition: 1}, Store: store, InTransaction: true, CheckpointRecord: &kgo.Record{Offset: -1}}
	if err := task.Commit(); !errors.Is(err, ErrNoOffset) || store.Position() != 10 {
		t.Errorf("commit returned %v, position %d", err, store.Position())
	}
}

// TestFirstEventOfTheBeginningOfTime covers the smallest timestamps, because a record's timestamp may be any number.
// If the horizon of its class wrapped around to the far end, every row would expire.
func TestFirstEventOfTheBeginningOfTime(t *testing.T) {
	const class, minute = 3, 60_000
	span := dedup.Window{Size: 60 * minute, Grace: 10 * minute}
	first := &State{App: &app.App{Routes: []*app.Route{{Route: &rules.Route{}, NamespaceID: class, Span: span}}}}
	for at, want := range map[int64]int64{math.MinInt64 + 5: math.MinInt64, 0: -(2*60 + 10) * minute} {
		first.Committed.StreamTimes.At[class], first.Committed.StreamTimes.Has[class] = at, true
		if got := first.App.Horizons(&first.Committed); got[class] != want || got[class+1] != math.MinInt64 {
			t.Errorf("at %d the horizon is %d, want %d", at, got[class], want)
		}
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
