package dedup

import (
	"errors"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

// TestKeyCounterAgainstRows compares the counter with a map of rows over random events. The counter must count every
// live row, and count no row for more than one bucket too long.
func TestKeyCounterAgainstRows(t *testing.T) {
	for seed := range uint64(20) {
		r := rand.New(rand.NewPCG(seed, 1))
		w := Window{Size: 1 + r.Int64N(5000), Grace: r.Int64N(1000)}
		c := NewKeyCounter(w)
		rows, streamTime := map[int]int64{}, NoStreamTime
		base := r.Int64N(1e6) - 5e5 // also before 1970
		for n := range int64(3000) {
			at := base + n*(1+r.Int64N(20)) - r.Int64N(w.Size+1)
			key := r.IntN(300)
			first, found := rows[key]
			switch verdict, row := Decide(Event{Time: at}, Row{First: first, Status: Seen}, found, w, streamTime); {
			case w.Late(at, streamTime), verdict == Duplicate, verdict == Late:
				continue
			case verdict == AfterWindow:
				c.Remove(first)
				fallthrough
			default:
				c.Add(row.First)
				rows[key] = row.First
			}
			streamTime = NextStreamTime(streamTime, at, at)
			c.Advance(w, streamTime)
			live, nearly, active, nearlyActive := uint64(0), uint64(0), uint64(0), uint64(0)
			for _, first := range rows {
				if !w.Over(first, streamTime) {
					active++
				}
				if !w.Over(first+c.width, streamTime) {
					nearlyActive++
				}
				if w.Retains(first, streamTime) {
					live++
				}
				if w.Retains(first+c.width, streamTime) {
					nearly++
				}
			}
			// A key that is seen again while its expired row still counts, counts twice.
			if c.Live() < live || c.Live() > nearly+300/counterBuckets+5 {
				t.Fatalf("run %d, event %d: %d counted, %d live, %d within a bucket", seed, n, c.Live(), live, nearly)
			}
			if got := c.Active(w, streamTime); got < active || got > nearlyActive {
				t.Fatalf("run %d, event %d: %d counted as active, %d are, %d within a bucket", seed, n, got, active, nearlyActive)
			}
			if len(c.buckets) > counterBuckets+2 && c.width > 1 {
				t.Fatalf("%d buckets", len(c.buckets))
			}
		}
		back, rest, err := DecodeKeyCounter(append(c.Append(nil), 7))
		if err != nil || len(rest) != 1 || back.live != c.live || back.width != c.width || !slices.Equal(back.buckets, c.buckets) {
			t.Fatalf("%+v was decoded as %+v, %v", c, back, err)
		}
		if !back.Fits(w) || back.Fits(Window{Size: 10 * w.Size}) {
			t.Errorf("decoded width %d: Fits returns a wrong result", back.width)
		}
	}
}

// TestKeyCounterOfALongerWindow protects that merged buckets count the same rows, including rows that are removed and
// added later. They are as few as the buckets of a new counter, or twice as many.
func TestKeyCounterOfALongerWindow(t *testing.T) {
	for seed := range uint64(50) {
		rng := rand.New(rand.NewPCG(seed, 8))
		w, longer := Window{Size: 1 + rng.Int64N(500)}, Window{Size: 1 + rng.Int64N(5000)}
		c, fine := NewKeyCounter(w), NewKeyCounter(Window{})
		var firsts []int64
		for range 200 {
			first := rng.Int64N(2000) - 1000
			c.Add(first)
			fine.Add(first)
			firsts = append(firsts, first)
		}
		before := c.width
		c.MergeFor(longer)
		if want := NewKeyCounter(longer).width; c.width < before || c.width > max(want, before) || c.width <= want/2 || c.IsCoarse(longer) != (before > want) {
			t.Fatalf("run %d: width %d after %d, want about %d", seed, c.width, before, want)
		}
		for i, first := range firsts {
			c.Remove(first)
			if fine.Remove(first); c.Live() != fine.Live() {
				t.Fatalf("run %d: %d rows are counted after %d of 200 were removed", seed, c.Live(), i+1)
			}
		}
		if c.Buckets() != 0 {
			t.Fatalf("run %d: %d buckets are left", seed, c.Buckets())
		}
	}
}

func TestKeyCounterAtTheEndsOfTime(t *testing.T) {
	w := Window{Size: 1000}
	c := NewKeyCounter(w)
	for _, at := range []int64{math.MinInt64, -1, 0, math.MaxInt64} {
		c.Add(at)
	}
	c.Advance(w, NoStreamTime)
	if n := c.Active(w, NoStreamTime); n != 4 {
		t.Errorf("%d active before the first stream time, want 4", n)
	}
	c.Remove(12345)
	if c.Live() != 4 {
		t.Errorf("%d live, want 4", c.Live())
	}
	c.Advance(w, 0)
	var copied KeyCounter
	c.CopyTo(&copied)
	c.Advance(w, math.MaxInt64)
	if n := c.Active(w, math.MaxInt64); n != 1 {
		t.Errorf("%d active, want 1", n)
	}
	if c.Live() != 1 || copied.Live() != 3 {
		t.Errorf("%d and %d live, want 1 and 3", c.Live(), copied.Live())
	}
}

func TestDamagedKeyCounterIsRefused(t *testing.T) {
	c := NewKeyCounter(Window{Size: 1000})
	c.Add(5)
	c.Add(1e6)
	good := c.Append(nil)
	for at := range good {
		if got, _, err := DecodeKeyCounter(good[:at]); !errors.Is(err, errKeyCounter) {
			t.Errorf("%d bytes decoded to %+v, %v", at, got, err)
		}
	}
	for _, b := range [][]byte{{0, 0}, {1, 1, 0, 0}, {1, 2, 4, 1, 4, 1}, {1, 9, 0, 1}} {
		if got, _, err := DecodeKeyCounter(b); !errors.Is(err, errKeyCounter) {
			t.Errorf("%v decoded to %+v, %v", b, got, err)
		}
	}
}

// TestKeysEndOnce protects that each row counts once when its window is over and once when its retention is over,
// also if the counter was stored in between and if stream time jumps.
func TestKeysEndOnce(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := Window{Size: rapid.Int64Range(1, 500).Draw(t, "window"), Grace: rapid.Int64Range(0, 100).Draw(t, "grace")}
		c, streamTime, added := NewKeyCounter(w), int64(0), uint64(0)
		c.Advance(w, streamTime)
		var sum Ended
		for range rapid.IntRange(1, 40).Draw(t, "steps") {
			if rapid.Bool().Draw(t, "stored") {
				decoded, rest, err := DecodeKeyCounter(c.Append(nil))
				if err != nil || len(rest) > 0 {
					t.Fatal(err)
				}
				c = decoded
				c.GoOn(w, streamTime)
			}
			for range rapid.IntRange(0, 3).Draw(t, "rows") { // within their window
				c.Add(streamTime + rapid.Int64Range(0, w.Size).Draw(t, "first"))
				added++
			}
			streamTime += rapid.Int64Range(0, 3*w.Size).Draw(t, "step")
			ended := c.Advance(w, streamTime)
			sum.Windows, sum.Retentions = sum.Windows+ended.Windows, sum.Retentions+ended.Retentions
			if sum.Retentions+c.Live() != added || sum.Windows+c.Active(w, streamTime) != added {
				t.Fatalf("%+v of %d rows, %d live, %d active at %d", sum, added, c.Live(), c.Active(w, streamTime), streamTime)
			}
		}
	})
}
