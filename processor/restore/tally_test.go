package restore

import (
	"encoding/binary"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"oncebus/dedup"
	"oncebus/dedup/rules"
	"oncebus/processor/app"
	"oncebus/processor/wire"
	"oncebus/state"
)

// tallyApp has one route of each mode.
func tallyApp() *app.App {
	return &app.App{Routes: []*app.Route{
		{Route: &rules.Route{Name: "plain"}, NamespaceID: 1, Span: dedup.Window{Size: 1000}},
		{Route: &rules.Route{Name: "claims", Mode: rules.ClaimMode}, NamespaceID: 2, Span: dedup.Window{Size: 5000}},
	}}
}

// tallyRow draws a row of one of n keys. The first half of the keys belong to the plain route.
func tallyRow(rng *rand.Rand, n int) dedup.Row {
	key := rng.IntN(n)
	row := dedup.Row{First: rng.Int64N(3000), NamespaceID: 1, Status: dedup.Seen}
	binary.BigEndian.PutUint64(row.Digest[:], uint64(key))
	if key >= n/2 {
		var claim dedup.Claim
		for i := range rng.IntN(3) {
			claim.Requests = append(claim.Requests, dedup.Request{ID: fmt.Append(nil, "request-", i)})
		}
		row.NamespaceID = 2
		row.Status = []dedup.Status{dedup.ClaimInProgress, dedup.Submitted, dedup.Completed}[rng.IntN(3)]
		row.Result, row.HasResult = claim.Append(nil), true
	}
	if rng.IntN(20) == 0 {
		row.Status = dedup.Freed
	}
	return row
}

// TestTallyIsTheCountOfTheRows protects that the counts which a standby keeps, from the rows in the store and from
// later rows, equal the counts of the store's rows.
func TestTallyIsTheCountOfTheRows(t *testing.T) {
	t.Parallel()
	host, err := state.NewHost(state.DefaultConfig(), prometheus.NewRegistry(), slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := host.Close(); err != nil {
			t.Error(err)
		}
	}()
	for seed := range uint64(20) {
		store, err := host.Open(t.TempDir(), []byte("test"))
		if err != nil {
			t.Fatal(err)
		}
		rng := rand.New(rand.NewPCG(seed, 3))
		a := tallyApp()
		r := Restore{src: &Source{App: a}, Store: store}
		for position := range int64(40) {
			if position == int64(seed) {
				if r.tally, err = newTally(t.Context(), a, store); err != nil {
					t.Fatal(err)
				}
			}
			for range rng.IntN(50) {
				row := tallyRow(rng, 400)
				if err := r.put(&row); err != nil {
					t.Fatal(err)
				}
			}
			if err := store.Apply(position+1, nil); err != nil {
				t.Fatal(err)
			}
			if rng.IntN(5) == 0 {
				if err := store.Flush(t.Context()); err != nil {
					t.Fatal(err)
				}
			}
		}
		c := wire.Checkpoint{Counted: true}
		for _, id := range []uint8{1, 2} {
			c.StreamTimes.Has[id], c.StreamTimes.At[id] = true, 1000 // no key has expired
		}
		scanned, err := CountKeys(t.Context(), a, &c, store)
		if err != nil {
			t.Fatal(err)
		}
		counted, err := countKeys(t.Context(), a, &c, store, r.tally, nil)
		if err != nil {
			t.Fatal(err)
		}
		for i := range scanned.Counters {
			if want, got := scanned.Counters[i].Live(), counted.Counters[i].Live(); want != got {
				t.Errorf("run %d, counter %d: %d rows are counted, want %d", seed, i, got, want)
			}
		}
		if err := store.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

// TestTallyIsOfFirstCheckpointsOnly protects that a tally is used only for a first checkpoint: a later checkpoint has
// counts of its own, and a checkpoint with another window needs buckets of another width.
func TestTallyIsOfFirstCheckpointsOnly(t *testing.T) {
	a, wider := tallyApp(), tallyApp()
	wider.Routes[0].Span.Size *= 2
	of := &tally{app.NewCounts(a)}
	of.counts.Of(1, dedup.Seen).Add(1)
	for name, c := range map[string]struct {
		reader   *app.App
		sequence int64
		counted  *tally
		want     bool
	}{
		"first checkpoint":  {a, 0, of, true},
		"a later one":       {a, 1, of, false},
		"another window":    {wider, 0, of, false},
		"none was followed": {a, 0, nil, false},
	} {
		all := app.NewCounts(c.reader)
		took := c.counted.into(&all, map[uint8]bool{1: true}, &wire.Checkpoint{Sequence: c.sequence})
		if live := all.Of(1, dedup.Seen).Live(); took != c.want || (live == 1) != c.want {
			t.Errorf("%s: taken %v, %d rows", name, took, live)
		}
	}
}

// TestTallyIsOfTheStoreThatWasClosed protects that a tally applies only to the store that was closed with it: a store
// that was opened elsewhere meanwhile is at another position.
func TestTallyIsOfTheStoreThatWasClosed(t *testing.T) {
	id := app.TaskID{Topic: "next", Partition: 3}
	for _, position := range []int64{7, 8} {
		var s tallies
		kept := &tally{}
		s.keep(id, 7, kept)
		if took := s.take(id, position); (took == kept) != (position == 7) {
			t.Errorf("the tally of position 7 at position %d: %v", position, took)
		}
		if again := s.take(id, 7); again != nil {
			t.Error("a tally was taken twice")
		}
	}
}
