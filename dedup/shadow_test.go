package dedup

import (
	"math/rand/v2"
	"slices"
	"testing"
)

// TestShadowFates covers the four combinations of verdicts, and which events make rows.
func TestShadowFates(t *testing.T) {
	w := Window{Size: 10, Grace: 2}
	row := func(first int64) Row { return Row{First: first} }
	for name, c := range map[string]struct {
		emitted    bool
		at         int64
		prior      *Row
		streamTime int64
		want       ShadowFate
		first      int64 // of the stored row; 0 for none
	}{
		"first of its key":               {true, 50, nil, 40, ShadowBothEmit, 50},
		"duplicate by both":              {false, 50, new(row(45)), 50, ShadowBothDrop, 0},
		"would be dropped":               {true, 50, new(row(45)), 50, ShadowWouldDrop, 50},
		"would be dropped, earlier":      {true, 45, new(row(50)), 50, ShadowWouldDrop, 0},
		"would be let through":           {false, 50, nil, 50, ShadowWouldEmit, 0},
		"after the window":               {true, 61, new(row(50)), 61, ShadowBothEmit, 61},
		"window over for a duplicate":    {false, 61, new(row(50)), 61, ShadowWouldEmit, 0},
		"late, its row decides others":   {true, 80, nil, 100, ShadowBothEmit, 80},
		"so late that no row is needed":  {true, 77, nil, 100, ShadowBothEmit, 0},
		"row that is not retained":       {true, 100, new(row(77)), 100, ShadowBothEmit, 100},
		"later row stands, out of reach": {true, 80, new(row(95)), 100, ShadowBothEmit, 0},
	} {
		t.Run(name, func(t *testing.T) {
			var prior Row
			if c.prior != nil {
				prior = *c.prior
			}
			fate, stored, store := DecideShadow(Event{Time: c.at}, c.emitted, prior, c.prior != nil, w, c.streamTime)
			if fate != c.want || store != (c.first > 0) || stored.First != c.first {
				t.Errorf("fate %v, row %d stored %v; want %v, row %d", fate, stored.First, store, c.want, c.first)
			}
		})
	}
}

// TestPromotedRowsEmitEachKeyOnce lets another rule emit random events of one key, which make shadow rows. After the
// promotion, no event is emitted within the window of an emitted one.
func TestPromotedRowsEmitEachKeyOnce(t *testing.T) {
	w := Window{Size: 10, Grace: 4}
	for seed := range uint64(20_000) {
		random := rand.New(rand.NewPCG(seed, 7))
		var emitted []int64
		var row Row
		found, streamTime := false, NoStreamTime
		at := func() int64 { return max(streamTime, 40) - 14 + random.Int64N(20) }
		for range 1 + random.IntN(8) {
			ev := Event{Time: at()}
			went := random.IntN(2) == 0
			if went {
				emitted = append(emitted, ev.Time)
			}
			if _, next, store := DecideShadow(ev, went, row, found, w, streamTime); store {
				row, found = next, true
			}
			streamTime = NextStreamTime(streamTime, ev.Time, ev.Time)
		}
		for range 6 { // promoted
			ev := Event{Time: at()}
			if v, _ := w.Admit(ev.Time, streamTime, 1000); v == Late {
				continue
			}
			verdict, next := Decide(ev, row, found, w, streamTime)
			inWindow := slices.ContainsFunc(emitted, func(e int64) bool { return w.Covers(e, ev.Time) })
			if verdict == Unique || verdict == AfterWindow {
				if inWindow {
					t.Fatalf("run %d: event at %d is emitted, although %v were", seed, ev.Time, emitted)
				}
				row, found = next, true
				emitted = append(emitted, ev.Time)
			} else if verdict == Duplicate && !inWindow {
				t.Fatalf("run %d: event at %d is a duplicate, emitted were %v", seed, ev.Time, emitted)
			}
			streamTime = NextStreamTime(streamTime, ev.Time, ev.Time)
		}
	}
}
