package sketch

import (
	"encoding/binary"
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"testing"
	"unsafe"

	"pgregory.net/rapid"

	"oncebus/dedup"
)

// truth is the exact count of names.
type truth map[string]uint64

func (x truth) total() (n uint64) {
	for _, c := range x {
		n += c
	}
	return n
}

// check compares a summary with the exact counts: the bounds of the package comment.
func (x truth) check(t interface{ Fatalf(string, ...any) }, s Summary) {
	if s.Total != x.total() || len(s.Counters) > s.Capacity {
		t.Fatalf("total %d with %d counters, want %d with at most %d", s.Total, len(s.Counters), x.total(), s.Capacity)
	}
	missing, bound := s.Missing(), s.Total/uint64(s.Capacity)
	if missing > bound {
		t.Fatalf("%d may be missing, want at most %d of %d", missing, bound, s.Total)
	}
	has := map[string]bool{}
	for _, c := range s.Counters {
		if has[c.Name] {
			t.Fatalf("%q has two counters", c.Name)
		}
		has[c.Name] = true
		if n := x[c.Name]; n > c.Count || n < c.Count-c.Error || c.Error > bound {
			t.Fatalf("%q came %d times, its counter is %d with error %d of at most %d", c.Name, n, c.Count, c.Error, bound)
		}
	}
	for name, n := range x {
		if !has[name] && n > missing {
			t.Fatalf("%q came %d times and has no counter; at most %d may be missing", name, n, missing)
		}
		if n > bound && !has[name] {
			t.Fatalf("%q came %d times of %d and has no counter of %d", name, n, s.Total, s.Capacity)
		}
	}
}

// drawName draws skewed names: low numbers are frequent, and there are many more than counters.
func drawName(t *rapid.T) string {
	n := rapid.IntRange(0, 40).Draw(t, "name")
	if n > 20 {
		n = rapid.IntRange(0, 1000).Draw(t, "rare")
	}
	return "n" + strconv.Itoa(n)
}

// offers draws a stream, its commits and discards, and returns the sketch, all final, and the
// exact counts. A fold of its changes stays equal to it.
func offers(t *rapid.T, s *Sketch) truth {
	exact, fold := truth{}, s.Summary()
	for _, c := range fold.Counters {
		if c.Error > 0 {
			t.Fatal("offers begins with exact counts")
		}
		exact[c.Name] = c.Count
	}
	for range rapid.IntRange(0, 12).Draw(t, "transactions") {
		open := truth{}
		for range rapid.IntRange(0, 60).Draw(t, "offers") {
			name := drawName(t)
			s.Offer([]byte(name))
			open[name]++
		}
		s.verify(t)
		if rapid.Bool().Draw(t, "discard") {
			s.Discard()
		} else {
			changes, want := s.AppendChanges(nil), s.Open()
			s.Commit()
			if len(changes) > 0 {
				r := dedup.NewCursor(changes)
				if fold.ApplyChanges(&r); !r.Done() || !reflect.DeepEqual(fold, want) {
					t.Fatalf("the changes %x make %+v, want %+v", changes, fold, want)
				}
			}
			for name, n := range open {
				exact[name] += n
			}
		}
		s.verify(t)
		exact.check(t, s.Summary())
		if !reflect.DeepEqual(fold, s.Summary()) {
			t.Fatalf("the fold is %+v, the sketch %+v", fold, s.Summary())
		}
	}
	return exact
}

// verify checks the heap and the index.
func (s *Sketch) verify(t *rapid.T) {
	used := 0
	for place, number := range s.index {
		if number == 0 {
			continue
		}
		used++
		one := &s.now.slots[number-1]
		if at, found := s.find(one.hash, one.text()); !found || at != place {
			t.Fatalf("slot %d is at %d of the index and is found at %d: %v", number-1, place, at, found)
		}
	}
	if used != len(s.now.slots) || len(s.heap) != used {
		t.Fatalf("%d slots, %d in the index, %d in the heap", len(s.now.slots), used, len(s.heap))
	}
	for place, number := range s.heap {
		if int(s.now.slots[number].at) != place || place > 0 && s.count(place) < s.count((place-1)/2) {
			t.Fatalf("place %d of the heap is wrong", place)
		}
	}
}

// TestBounds compares sketches with exact counts, through commits and discards.
func TestBounds(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := New(rapid.IntRange(1, 12).Draw(t, "capacity"))
		offers(t, s)
	})
}

// TestMergeKeepsTheBounds merges several sketches, loads the result into a sketch of another
// capacity and goes on: the bounds hold for the sum of the streams.
func TestMergeKeepsTheBounds(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		capacity := rapid.IntRange(1, 12).Draw(t, "capacity")
		var merged Summary
		exact := truth{}
		for range rapid.IntRange(1, 4).Draw(t, "sketches") {
			s := New(capacity)
			for name, n := range offers(t, s) {
				exact[name] += n
			}
			merged = Merge(merged, s.Summary())
		}
		if merged.Total == 0 {
			return
		}
		exact.check(t, merged)
		smaller := New(rapid.IntRange(1, capacity).Draw(t, "smaller"))
		smaller.Load(merged)
		smaller.verify(t)
		exact.check(t, smaller.Summary())
		for range rapid.IntRange(0, 60).Draw(t, "more") {
			name := drawName(t)
			smaller.Offer([]byte(name))
			exact[name]++
		}
		smaller.Commit()
		exact.check(t, smaller.Summary())
		larger := New(16)
		larger.Load(smaller.Summary())
		for range 20 {
			name := drawName(t)
			larger.Offer([]byte(name))
			exact[name]++
		}
		larger.Commit()
		within := larger.Summary()
		within.Capacity = smaller.capacity // the counts below come from the lower one
		exact.withinErrors(t, within)
	})
}

// withinErrors checks the bounds of each counter alone.
func (x truth) withinErrors(t *rapid.T, s Summary) {
	for _, c := range s.Counters {
		if n := x[c.Name]; n > c.Count || n < c.Count-c.Error {
			t.Fatalf("%q came %d times, its counter is %d with error %d", c.Name, n, c.Count, c.Error)
		}
	}
}

// TestSummaryEncoding pins the bytes, decodes what Append wrote, and refuses damage.
func TestSummaryEncoding(t *testing.T) {
	s := New(4)
	for _, name := range []string{"a", "bc", "a", ""} {
		s.Offer([]byte(name))
	}
	s.Commit()
	all := s.Summary()
	b := all.Append(nil)
	if got, want := fmt.Sprintf("%x", b), "04"+"04"+"00"+"03"+"01"+"61"+"02"+"00"+"02"+"6263"+"01"+"00"+"00"+"01"+"00"; got != want {
		t.Errorf("encoded as %s, want %s", got, want)
	}
	r := dedup.NewCursor(b)
	if back := DecodeSummary(&r); !r.Done() || !reflect.DeepEqual(back, all) {
		t.Errorf("decoded as %+v, want %+v", back, all)
	}
	s.Offer([]byte("a"))
	s.Offer([]byte("d"))
	if got, want := fmt.Sprintf("%x", s.AppendChanges(nil)), "02"+"02"+"00"+"01"+"07"+"01"+"01"+"64"+"00"; got != want {
		t.Errorf("changes encoded as %s, want %s", got, want)
	}
	for at := range b {
		r := dedup.NewCursor(b[:at])
		if DecodeSummary(&r); r.Done() {
			t.Errorf("%d bytes of %d were decoded", at, len(b))
		}
	}
	for name, text := range map[string]string{
		"no capacity": "\x00\x00\x00\x00", "too many counters": "\x01\x02\x00\x02\x01a\x01\x00\x01b\x01\x00", "error as high as the count": "\x01\x02\x00\x01\x01a\x02\x02",
		"one name twice": "\x02\x02\x00\x02\x01a\x01\x00\x01a\x01\x00", "a long name": "\x01\x01\x00\x01\x41" + string(make([]byte, 65)) + "\x01\x00",
	} {
		r := dedup.NewCursor([]byte(text))
		if got := DecodeSummary(&r); !r.Bad() {
			t.Errorf("%s: decoded as %+v", name, got)
		}
	}
	for name, text := range map[string]string{
		"a counter that is missing": "\x01\x01\x08\x01", "a new counter without a name": "\x01\x01\x06\x01", "a counter that stood": "\x01\x01\x00\x00",
	} {
		changed, r := all, dedup.NewCursor([]byte(text))
		if changed.ApplyChanges(&r); !r.Bad() {
			t.Errorf("%s: applied as %+v", name, changed)
		}
	}
}

// TestMillionsOfNames offers ten million different names and one that comes for two of five:
// memory stays what New states, and the frequent one is found.
func TestMillionsOfNames(t *testing.T) {
	s := New(128)
	names := 10_000_000
	if testing.Short() || raceEnabled {
		names = 100_000
	}
	var rare [8]byte
	exact := uint64(0)
	s.Offer([]byte("frequent"))
	allocated := testing.AllocsPerRun(1, func() {
		for i := range names / 2 {
			binary.BigEndian.PutUint64(rare[:], exact<<32|uint64(i))
			s.Offer(rare[:])
			if i%3 < 2 {
				s.Offer([]byte("frequent"))
				exact++
			}
		}
		s.Commit()
	})
	all := s.Summary()
	first := all.Top(1)[0]
	// Go's runtime itself allocates once in a while, and this takes a second.
	if allocated > 10 || first.Name != "frequent" || first.Count < exact+1 || first.Count-first.Error > exact+1 || first.Error > all.Total/128 {
		t.Errorf("%v allocations; the first of %d is %+v, it came %d times", allocated, all.Total, first, exact+1)
	}
	bytes := (cap(s.now.slots)+cap(s.committed.slots))*int(unsafe.Sizeof(slot{})) + 2*(cap(s.heap)+cap(s.index)+cap(s.changed))
	if bytes > 128*220 {
		t.Errorf("%d bytes for 128 counters", bytes)
	}
	t.Logf("%d names, %d of them different: %d bytes", all.Total, names, bytes)
}

// TestTop is in order of the counts, of equal ones by error and name.
func TestTop(t *testing.T) {
	s := Summary{Counters: []Counter{{"c", 5, 1}, {"a", 9, 0}, {"d", 5, 0}, {"b", 5, 0}}}
	if got := fmt.Sprint(s.Top(3)); got != "[{a 9 0} {b 5 0} {d 5 0}]" || !slices.Equal(s.Top(9)[:3], s.Top(3)) {
		t.Errorf("the top is %s", got)
	}
}

func BenchmarkOffer(b *testing.B) {
	for _, different := range []int{100, 1 << 20} {
		b.Run(strconv.Itoa(different)+" names", func(b *testing.B) {
			s := New(128)
			var name [12]byte
			copy(name[:], "src-")
			x := uint64(1)
			for b.Loop() {
				x = x*6364136223846793005 + 1442695040888963407
				binary.BigEndian.PutUint64(name[4:], (x>>33)%uint64(different))
				s.Offer(name[:])
			}
			s.Commit()
		})
	}
}
