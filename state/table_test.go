package state

import (
	"math/rand/v2"
	"slices"
	"testing"

	"oncebus/dedup"
)

// randomRow returns a row of one of 3000 digests; some rows have a result.
func randomRow(r *rand.Rand) dedup.Row {
	row := rowOf(r.Uint64N(3000))
	row.Fingerprint, row.Shift = r.Uint64(), r.Int64N(4)-2
	if r.IntN(5) == 0 {
		row.HasResult = true
		if r.IntN(2) == 0 {
			row.Result = make([]byte, r.IntN(10))
		}
	}
	return row
}

func TestTableAgainstMap(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	tab := newTable(newHashSeed())
	for round := range 20 {
		want := make(map[dedup.Digest]dedup.Row)
		for range 1 + r.IntN(5000)/(round+1) { // later rounds put few rows into a large index
			row := randomRow(r)
			want[row.Digest] = row
			tab.put(tab.seed.hash(&row.Digest), slotOf(&row), extraOf(&row))
		}
		if tab.rows != len(want) {
			t.Fatalf("%d rows, want %d", tab.rows, len(want))
		}
		for n := range uint64(4000) {
			d := digestOf(n)
			s := tab.find(tab.seed.hash(&d), &d)
			w, found := want[d]
			if found != (s != nil) || found && !sameRow(tab.row(s), w) {
				t.Fatalf("round %d, row %d: %v, want %v", round, n, s, found)
			}
		}
		tab.clear()
		if i := slices.IndexFunc(tab.index, func(e uint32) bool { return e != 0 }); i >= 0 || tab.weight() != 0 {
			t.Fatalf("round %d: index %d is not clear", round, i)
		}
	}
}
