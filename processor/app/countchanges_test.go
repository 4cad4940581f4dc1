package app

import (
	"math/rand/v2"
	"testing"

	"oncebus/dedup"
	"oncebus/dedup/rules"
	"oncebus/processor/wire"
)

// TestCountChangesFold changes counts of plain and claimed keys in transactions that commit or
// are discarded. The partial checkpoints fold to the counts, with those that are carried.
func TestCountChangesFold(t *testing.T) {
	rt := &App{}
	for id, mode := range []rules.Mode{rules.Plain, rules.ClaimMode, rules.Plain, rules.ClaimMode} {
		rt.Routes = append(rt.Routes, &Route{Route: &rules.Route{Mode: mode}, NamespaceID: uint8(id), Span: dedup.Window{Size: 1000}})
	}
	all := NewCounts(rt)
	all.Of(3, dedup.Completed).Add(7)
	all.CountLookup(3, dedup.Unique)
	text := all.Encode()
	rt.Routes = rt.Routes[:3] // the last one is carried
	counts := NewCounts(rt)
	if _, err := counts.Decode(&wire.Checkpoint{Counts: text}, 0); err != nil {
		t.Fatal(err)
	}
	open := counts.Open(rt)
	before := wire.Checkpoint{Epoch: -1, Counts: counts.Encode(), Counted: true}
	var fold wire.Fold
	if err := fold.Add(0, before.Append(nil)); err != nil {
		t.Fatal(err)
	}
	rand := rand.New(rand.NewPCG(3, 4))
	statuses := []dedup.Status{dedup.ClaimInProgress, dedup.Submitted, dedup.Completed}
	var rows []dedup.Row // claimed ones
	verdicts := []dedup.Verdict{dedup.Unique, dedup.Duplicate}
	for number, at := uint32(0), int64(0); number < 500; at += rand.Int64N(20) {
		kept := append([]dedup.Row(nil), rows...)
		for range rand.IntN(5) {
			open.CountLookup(uint8(rand.IntN(3)), verdicts[rand.IntN(2)])
			switch n := rand.IntN(3); {
			case n == 1 && len(rows) > 0:
				row := &rows[rand.IntN(len(rows))]
				old := *row
				row.Status = statuses[rand.IntN(3)]
				open.Replace(row, &old)
				open.AddWaiting(row, rand.IntN(2))
			case n == 1:
				row := dedup.Row{NamespaceID: 1, Status: dedup.ClaimInProgress, First: at}
				rows = append(rows, row)
				open.Replace(&row, nil)
			default:
				open.Replace(&dedup.Row{NamespaceID: uint8(n), Status: dedup.Seen, First: at - rand.Int64N(100)}, nil)
			}
		}
		open.Advance(uint8(rand.IntN(3)), at)
		if rand.IntN(3) == 0 {
			if counts.Discard(&open); open.Encode() != counts.Encode() {
				t.Fatalf("discarded to %x, want %x", open.Encode(), counts.Encode())
			}
			rows = kept
			continue
		}
		number++
		c := before
		c.Sequence++
		value := counts.AppendChanges(c.AppendPartial(nil, &before, nil, nil), &open)
		before = c
		if counts.Commit(&open); open.Encode() != counts.Encode() {
			t.Fatalf("committed to %x, want %x", counts.Encode(), open.Encode())
		}
		if err := fold.Add(number, value); err != nil {
			t.Fatal(err)
		}
		newest, got := fold.Newest(), NewCounts(rt)
		if recount, err := got.Decode(&newest, 0); err != nil || len(recount) > 0 || got.Encode() != counts.Encode() {
			t.Fatalf("folded to %x, want %x: recount %v, %v", got.Encode(), counts.Encode(), recount, err)
		}
	}
}
