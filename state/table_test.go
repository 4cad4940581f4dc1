package state

import (
	"maps"
	"math/rand/v2"
	"slices"
	"testing"

	"oncebus/dedup"
)

// randomRow returns a row of one of 3000 digests; some rows have a result.
func randomRow(r *rand.Rand) dedup.Row {
	row := rowOf(r.Uint64N(3000))
	row.Fingerprint, row.Shift = r.Uint64(), r.Int64N(4)-2
	if row.Earlier, row.Again, row.Link = r.IntN(2) == 0, r.IntN(2) == 0, dedup.Link(r.IntN(3)); row.Link == dedup.LinkBefore {
		row.Before = row.First - r.Int64N(3)
	}
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
			s, _ := tab.find(tab.seed.hash(&d), &d)
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

// TestTableTransactions protects that commits, rollbacks and moves of open rows in random order leave the table and
// its index as they would be in a table that got only the resulting rows.
func TestTableTransactions(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	tab := newTable(newHashSeed())
	applied := map[dedup.Digest]dedup.Row{}
	for round := range 400 {
		open, put := maps.Clone(applied), map[dedup.Digest]dedup.Row{}
		for range r.IntN(1 + 200>>r.IntN(8)) {
			row := randomRow(r)
			open[row.Digest], put[row.Digest] = row, row
			tab.put(tab.seed.hash(&row.Digest), slotOf(&row), extraOf(&row))
		}
		compareTable(t, tab, open)
		compareTable(t, tab.appliedRows(), applied)
		switch r.IntN(4) {
		case 0:
			tab.rollback()
		case 1:
			moved := newTable(tab.seed)
			tab.moveOpen(moved)
			compareTable(t, moved, put)
			moved.rollback()
			compareTable(t, moved, nil)
		default:
			tab.commit()
			applied = open
		}
		compareTable(t, tab, applied)
		if tab.isOpen() {
			t.Fatalf("round %d: rows of a transaction are left", round)
		}
	}
}

// compareTable compares all rows of a table with the expected rows, and its index with an index built from its rows.
func compareTable(t *testing.T, tab *table, want map[dedup.Digest]dedup.Row) {
	t.Helper()
	if tab.rows != len(want) {
		t.Fatalf("%d rows, want %d", tab.rows, len(want))
	}
	for d, w := range want {
		s, ordinal := tab.find(tab.seed.hash(&d), &d)
		if s == nil || s != tab.at(ordinal) || !sameRow(tab.row(s), w) {
			t.Fatalf("row of %x is %v, want %v", d, s, w)
		}
	}
	before := slices.Clone(tab.index)
	tab.resize(len(tab.index))
	if !slices.Equal(before, tab.index) {
		t.Fatal("the index differs from one of the same rows")
	}
}
