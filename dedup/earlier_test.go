package dedup

import (
	"fmt"
	"math/rand/v2"
	"testing"
)

// A linkedTask judges events of plain deduplication as package judge does, with a map as its store.
type linkedTask struct {
	w      Window
	rows   map[Digest]Row
	stream int64
}

// judge judges an admitted event of a key. With the verdict Duplicate it returns the row that covers the event; with
// a verdict that emits, it returns the event's own row.
func (l *linkedTask) judge(key Digest, at int64) (Verdict, Row) {
	ev := Event{Digest: key, Time: at, Linked: true}
	prior, found := l.rows[key]
	var d *Descent
	for found && ev.GoesBelow(&prior, l.w, l.stream) {
		if d == nil {
			d = new(Descent)
		}
		d.Pass(new(prior))
		digest, linked := prior.Below(l.w, l.stream)
		if found = linked; linked {
			prior, found = l.rows[digest]
		}
	}
	if d == nil {
		verdict, row := Decide(ev, prior, found, l.w, l.stream)
		l.store(verdict, row, nil, &prior)
		return verdict, row
	}
	verdict, row := DecideBelow(ev, d, prior, found, l.w, l.stream)
	l.store(verdict, row, d.Above, &prior)
	return verdict, row
}

// store stores the row of an emitted event, and the changes that this row makes to others.
func (l *linkedTask) store(verdict Verdict, row Row, above, prior *Row) {
	if verdict != Unique && verdict != AfterWindow {
		return
	}
	l.rows[row.Digest] = row
	switch {
	case above != nil:
		l.rows[above.Digest] = above.Above(row.First)
	case verdict == AfterWindow:
		earlier := prior.AsEarlier()
		l.rows[earlier.Digest] = earlier
	}
}

// erase frees all rows of a key.
func (l *linkedTask) erase(key Digest) {
	for digest, row := range l.rows {
		if row.Key() == key {
			row.Status = Freed
			l.rows[digest] = row
		}
	}
}

// rowsOf returns how many rows a key has.
func (l *linkedTask) rowsOf(key Digest) (n int) {
	for _, row := range l.rows {
		if row.Key() == key {
			n++
		}
	}
	return n
}

// TestEventsOfSeveralWindows judges events of a key in different orders, with a window of 10.
func TestEventsOfSeveralWindows(t *testing.T) {
	for name, c := range map[string]struct {
		events []int64
		want   string
	}{
		"in order":                            {[]int64{0, 11, 22}, "unique after_window after_window"},
		"the later one first":                 {[]int64{30, 0, 0, 30}, "unique unique duplicate duplicate"},
		"both sides of the earlier one":       {[]int64{50, 20, 30, 10, 31, 9}, "unique unique duplicate duplicate unique unique"},
		"between both":                        {[]int64{0, 40, 20, 10, 30, 31}, "unique after_window unique duplicate duplicate duplicate"},
		"copies of the one that was replaced": {[]int64{0, 40, 0, 10, -10, 11}, "unique after_window duplicate duplicate duplicate unique"},
		"ever earlier":                        {[]int64{40, 29, 18, 7, 40, 29, 18, 7}, "unique unique unique unique duplicate duplicate duplicate duplicate"},
		"the edges of two windows":            {[]int64{0, 21, 10, 11}, "unique after_window duplicate duplicate"},
		"a gap that no window covers":         {[]int64{0, 22, 11, 11}, "unique after_window unique duplicate"},
	} {
		l := &linkedTask{w: Window{Size: 10, Grace: 100}, rows: map[Digest]Row{}, stream: NoStreamTime}
		got := ""
		for _, at := range c.events {
			verdict, _ := l.judge(Digest{1}, at)
			got += " " + verdict.String()
		}
		if got != " "+c.want {
			t.Errorf("%s:%s, want %s", name, got, c.want)
		}
	}
}

// TestWindowsOfAKeyInAnyOrder judges events of a few keys over several windows in any order, while stream time
// follows the sources at any distance. An event is emitted if and only if no event was emitted within a window of it,
// and only time makes an event late. Eviction changes nothing.
func TestWindowsOfAKeyInAnyOrder(t *testing.T) {
	counts := map[Verdict]int{}
	for seed := range uint64(20_000) {
		rng := rand.New(rand.NewPCG(seed, 39))
		w := Window{Size: rng.Int64N(20), Grace: rng.Int64N(100)}
		all := &linkedTask{w: w, rows: map[Digest]Row{}, stream: NoStreamTime}
		evicting := &linkedTask{w: w, rows: map[Digest]Row{}, stream: NoStreamTime}
		emitted, newest := map[Digest][]int64{}, NoStreamTime
		for n := range 60 {
			key, at := Digest{byte(rng.IntN(3))}, int64(n)+rng.Int64N(200)
			if w.Late(at, all.stream) {
				counts[Late]++
				continue
			}
			if rng.IntN(4) == 0 {
				evict(evicting.rows, w, evicting.stream)
			}
			got, _ := all.judge(key, at)
			if again, _ := evicting.judge(key, at); again != got {
				t.Fatalf("run %d, event %d: %v with all rows, %v after eviction", seed, n, got, again)
			}
			near := false
			for _, before := range emitted[key] {
				near = near || w.Covers(before, at)
			}
			switch {
			case got == Unique || got == AfterWindow:
				if near {
					t.Fatalf("run %d, event %d of key %v at %d is %v, window %d, emitted were %v", seed, n, key, at, got, w.Size, emitted[key])
				}
				emitted[key] = append(emitted[key], at)
			case got != Duplicate || !near:
				t.Fatalf("run %d, event %d of key %v at %d is %v, window %d, stream time %d, emitted were %v", seed, n, key, at, got, w.Size, all.stream, emitted[key])
			}
			counts[got]++
			newest = max(newest, at)
			if rng.IntN(3) == 0 { // as far as the source that is behind
				all.stream = max(all.stream, newest-rng.Int64N(150))
				evicting.stream = all.stream
			}
		}
	}
	t.Log(counts)
	for _, v := range []Verdict{Unique, AfterWindow, Duplicate, Late} {
		if counts[v] < 10_000 {
			t.Errorf("only %d events were %v", counts[v], v)
		}
	}
}

// TestWindowsOfAKeyWhileTheWindowChanges protects that the links between rows hold after a change of the window. No
// two events of a key are emitted within the shortest window, each duplicate is the duplicate of an emitted event,
// and only time makes an event late.
func TestWindowsOfAKeyWhileTheWindowChanges(t *testing.T) {
	below := 0
	for seed := range uint64(5000) {
		c := newChanging(seed)
		c.w.Grace, c.kept.Grace = 200, 200
		l := &linkedTask{rows: map[Digest]Row{}}
		emitted := map[Digest][]int64{}
		for n := range int64(80) {
			c.change()
			l.w, l.stream = c.w, c.stream
			if c.rng.IntN(4) == 0 {
				evict(l.rows, l.w, l.stream)
			}
			key, at := Digest{byte(c.rng.IntN(3))}, 3*n+c.rng.Int64N(200)
			if l.w.Late(at, l.stream) {
				continue
			}
			got, row := l.judge(key, at)
			distance := int64(1 << 40)
			for _, before := range emitted[key] {
				distance = min(distance, max(at-before, before-at))
			}
			switch {
			case got == Unique || got == AfterWindow:
				if distance <= c.least {
					t.Fatalf("run %d, event %d of key %v at %d is %v, emitted were %v, the least window is %d", seed, n, key, at, got, emitted[key], c.least)
				}
				emitted[key] = append(emitted[key], at)
				if row.Earlier {
					below++
				}
			case got != Duplicate || distance > l.w.Size:
				t.Fatalf("run %d, event %d of key %v at %d is %v, emitted were %v, window %+v", seed, n, key, at, got, emitted[key], l.w)
			}
			c.stream = max(c.stream, at-100)
		}
	}
	if below < 5000 {
		t.Errorf("only %d events came out before the window of a row", below)
	}
}

// TestUnlinkedRowMakesEarlierEventsLate covers a row without a link: before its window another event may have been
// emitted, so earlier events are late. A row that links to an unlinked row proves no more.
func TestUnlinkedRowMakesEarlierEventsLate(t *testing.T) {
	key := Digest{1}
	l := &linkedTask{w: Window{Size: 10, Grace: 100}, rows: map[Digest]Row{key: {Digest: key, First: 50}}, stream: NoStreamTime}
	for _, c := range []struct {
		at   int64
		want Verdict
	}{
		{39, Late}, {40, Duplicate}, {80, AfterWindow}, {39, Late}, {40, Duplicate}, {65, Unique}, {39, Late}, {60, Duplicate}, {75, Duplicate}, {91, AfterWindow}, {39, Late},
	} {
		if got, _ := l.judge(key, c.at); got != c.want {
			t.Errorf("event at %d: %v, want %v", c.at, got, c.want)
		}
	}
}

// TestErasedWindows protects that the windows of an erased key are free, and that the windows of other keys stay as
// they are.
func TestErasedWindows(t *testing.T) {
	key, other := Digest{1}, Digest{2}
	for seed := range uint64(3000) {
		rng := rand.New(rand.NewPCG(seed, 40))
		l := &linkedTask{w: Window{Size: rng.Int64N(12), Grace: 1000}, rows: map[Digest]Row{}, stream: NoStreamTime}
		emitted := map[Digest][]int64{}
		for n := range 60 {
			if rng.IntN(20) == 0 {
				l.erase(key)
				emitted[key] = nil
			}
			at, of := rng.Int64N(150), []Digest{key, other}[rng.IntN(2)]
			near := false
			for _, before := range emitted[of] {
				near = near || l.w.Covers(before, at)
			}
			got, _ := l.judge(of, at)
			if emits := got == Unique || got == AfterWindow; emits == near || got == Late {
				t.Fatalf("run %d, event %d of key %v at %d is %v, window %d, emitted were %v", seed, n, of, at, got, l.w.Size, emitted[of])
			} else if emits {
				emitted[of] = append(emitted[of], at)
			}
		}
	}
}

// TestEarlierDigests protects that a row of an earlier window says to which key it belongs.
func TestEarlierDigests(t *testing.T) {
	seen := map[Digest]string{}
	for _, key := range []Digest{{1}, {2}, {}} {
		for _, first := range []int64{0, 1, -1, 1 << 62, -1 << 63} {
			row := Row{Digest: key, First: first, Link: LinkNone}
			earlier := row.AsEarlier()
			if earlier.Key() != key || row.Key() != key || earlier.Digest == key {
				t.Errorf("%v at %d has digest %v, of key %v", key, first, earlier.Digest, earlier.Key())
			}
			name := fmt.Sprint(key, first)
			if other, ok := seen[earlier.Digest]; ok {
				t.Errorf("%s and %s share a digest", name, other)
			}
			seen[earlier.Digest] = name
		}
	}
	if got := EarlierDigest(Digest{}, 1).String(); got != "ac49f6523effa7bec133f368ad1f35b2" {
		t.Errorf("the digest of the zero key at 1 is %s: stored rows would not be found", got)
	}
}
