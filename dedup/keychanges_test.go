package dedup

import (
	"bytes"
	"math/rand/v2"
	"testing"
)

// TestKeyChanges changes a counter at random. The output of AppendChanges must make the earlier counter equal to the
// changed one, and must be empty without a change.
func TestKeyChanges(t *testing.T) {
	w := Window{Size: 640, Grace: 64}
	rand := rand.New(rand.NewPCG(1, 2))
	counter, folded := NewKeyCounter(w), KeyCounter{}
	var firsts []int64
	streamTime, short := int64(-5000), 0
	for range 3000 {
		before := NewKeyCounter(w)
		counter.CopyTo(&before)
		for range rand.IntN(4) {
			switch n := len(firsts); {
			case n > 0 && rand.IntN(3) == 0:
				at := rand.IntN(n)
				counter.Remove(firsts[at])
				firsts[at] = firsts[n-1]
				firsts = firsts[:n-1]
			default:
				firsts = append(firsts, streamTime-rand.Int64N(200))
				counter.Add(firsts[n])
			}
		}
		if rand.IntN(10) == 0 {
			streamTime += rand.Int64N(100)
			counter.Advance(w, streamTime)
			kept := firsts[:0]
			for _, first := range firsts {
				if i, found := counter.find(first); found && i >= 0 {
					kept = append(kept, first)
				}
			}
			firsts = kept
		}
		changes := counter.AppendChanges(nil, &before)
		if len(changes) == 0 != bytes.Equal(before.Append(nil), counter.Append(nil)) {
			t.Fatalf("changes %x from %x to %x", changes, before.Append(nil), counter.Append(nil))
		}
		if len(changes) > 0 {
			r := NewCursor(changes)
			if folded.ApplyChanges(&r); !r.Done() {
				t.Fatalf("changes %x do not fit %x", changes, before.Append(nil))
			}
			if len(changes) == 2 {
				short++
			}
		}
		if len(folded.buckets) > 0 && (!bytes.Equal(folded.Append(nil), counter.Append(nil)) || folded.Live() != counter.Live()) || len(folded.buckets) != len(counter.buckets) {
			t.Fatalf("folded to %x with %d rows, want %x with %d", folded.Append(nil), folded.Live(), counter.Append(nil), counter.Live())
		}
	}
	if short < 10 {
		t.Errorf("%d changes were of the newest bucket only", short)
	}
}
