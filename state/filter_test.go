package state

import "testing"

// TestFilter requires that the filter finds every added key, also a key that was added twice, and has few false hits.
func TestFilter(t *testing.T) {
	const rows = 50_000
	f := newFilter(rows)
	for n := range uint64(rows) {
		d := digestOf(n)
		f.add(&d)
		f.add(&d)
	}
	g := newFilter(rows)
	g.load(f.append(nil))
	wrong := 0
	for n := range uint64(rows) {
		d := digestOf(n)
		if !g.has(&d) {
			t.Fatalf("row %d is a miss", n)
		}
		if d = digestOf(1<<40 + n); g.has(&d) {
			wrong++
		}
	}
	if wrong > rows/400 {
		t.Fatalf("%d of %d absent keys are false hits", wrong, rows)
	}
	empty := newFilter(0)
	if d := digestOf(1); empty.has(&d) {
		t.Fatal("an empty filter has a key")
	}
}
