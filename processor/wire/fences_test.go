package wire

import (
	"encoding/hex"
	"errors"
	"math"
	"math/rand/v2"
	"reflect"
	"slices"
	"testing"
)

// fenceVectors were put together by hand from varints. Each begins with version, flags,
// next 10, epoch -1, sequence 0 and the rows ever written.
func fenceVectors() map[string]Checkpoint {
	ahead := Checkpoint{Next: 10, Epoch: -1, Ahead: []FirstSeen{{2, 300}, {9, 301}}}
	fenced := Checkpoint{Next: 10, Epoch: -1, Rows: 300, Floor: 300, FloorRows: 9, Fences: []Fence{
		{Offset: 301, Rows: 10, Latest: []FirstSeen{{0, 5}, {255, -5}}},
		{Offset: 601, Rows: 300, Latest: []FirstSeen{{3, 59}}},
	}}
	ends := Checkpoint{Next: 10, Epoch: -1, Fences: []Fence{{Offset: math.MaxInt64, Latest: []FirstSeen{{1, math.MinInt64}, {2, math.MaxInt64}}}}}
	return map[string]Checkpoint{
		"034014010000" + "02" + "02d804" + "0902":                                                           ahead,
		"0328140100ac02" + "ac0209" + "02" + "0101" + "02" + "000a" + "ff13" + "ac02a202" + "01" + "038001": fenced,
		"032014010000" + "01" + "ffffffffffffffff7f00" + "02" + "01ffffffffffffffffff01" + "0201":           ends,
	}
}

// TestFenceEncoding pins every byte, because later builds read a changelog.
func TestFenceEncoding(t *testing.T) {
	for want, c := range fenceVectors() {
		if got := hex.EncodeToString(c.Append(nil)); got != want {
			t.Errorf("got %s, want %s", got, want)
		}
		if back, err := DecodeCheckpoint(unhex(t, want)); err != nil || !reflect.DeepEqual(back, c) {
			t.Errorf("%s decoded to %+v, %v", want, back, err)
		}
	}
	for name, b := range map[string]string{
		"no fence": "03 20 140100 00 00", "fence at the floor": "03 28 140100 05 05 00 01 00 00 01 0002", "fence without entries": "03 20 140100 00 01 05 00 00",
		"namespace ids not ascending": "03 20 140100 00 01 05 00 02 0102 0102", "seventeen fences": "03 20 140100 00 11", "offset out of range": "03 28 140100 00 01 00 01 ffffffffffffffff7f 00 01 0002",
		"nothing ahead": "03 40 140100 00 00", "too many entries": "03 20 140100 00 01 05 00 8104 0002", "more rows below the floor than ever": "03 08 140100 05 01 06", "more rows below a fence than ever": "03 28 140100 05 01 05 01 01 01 01 0002",
	} {
		if c, err := DecodeCheckpoint(unhex(t, b)); !errors.Is(err, ErrCheckpoint) {
			t.Errorf("%s: %+v, %v", name, c, err)
		}
	}
}

// fenceModel is a changelog in memory, with the checkpoint of its task.
type fenceModel struct {
	rng       *rand.Rand
	c         Checkpoint // committed
	rows      []modelRow
	retention [256]int64
	sweeping  bool
	began     int64
}

type modelRow struct {
	namespaceID uint8
	first       int64
}

// horizons returns the horizons; a namespace id without a route has none.
func (m *fenceModel) horizons() (before [256]int64) {
	for n := range before {
		before[n] = math.MinInt64
		if m.retention[n] > 0 && m.c.StreamTimes.Has[n] {
			before[n] = m.c.StreamTimes.At[n] - m.retention[n]
		}
	}
	return before
}

// transact runs one transaction: rows, some of them late, some clamped, then the fences
// of the checkpoint. Every other transaction may abort.
func (m *fenceModel) transact(namespaces []uint8) {
	open, at := m.c, int64(len(m.rows))
	open.Ahead = slices.Clone(open.Ahead)
	written := len(m.rows)
	for range m.rng.IntN(4) {
		n := namespaces[m.rng.IntN(len(namespaces))]
		now := open.StreamTimes.At[n]
		switch first := now + m.rng.Int64N(30); m.rng.IntN(8) {
		case 0: // late
			m.rows = append(m.rows, modelRow{n, now - m.rng.Int64N(50)})
			open.StreamTimes.Has[n] = true
		case 1: // clamped
			m.rows = append(m.rows, modelRow{n, first})
			open.SetAhead(n, first)
		default:
			m.rows = append(m.rows, modelRow{n, first})
			open.StreamTimes.At[n], open.StreamTimes.Has[n] = max(now, first), true
		}
	}
	open.DropAhead()
	before := m.horizons()
	open.RaiseFloor(&before)
	if m.rng.IntN(3) == 0 {
		open.AddFence(at, &m.c, &before)
	}
	switch {
	case m.sweeping && m.rng.IntN(4) == 0: // the rest of the sweep, in one transaction
		for _, r := range m.rows[:m.began] {
			if r.first >= before[r.namespaceID] {
				m.rows = append(m.rows, r)
			}
		}
		open.EndSweep(m.began, open.Rows)
		m.sweeping = false
	case !m.sweeping && m.rng.IntN(200) == 0:
		m.sweeping, m.began = true, at
	}
	if m.rng.IntN(10) == 0 {
		m.rows = m.rows[:written] // aborted
		m.sweeping = false
		return
	}
	m.c = open
}

// TestFencesAgainstAModel: no row that may decide an event lies below a floor, except
// one that a sweep wrote again above it. The fences stay within their bounds, survive
// their encoding, and follow the stream times.
func TestFencesAgainstAModel(t *testing.T) {
	for seed := range uint64(20) {
		m := &fenceModel{rng: rand.New(rand.NewPCG(seed, 15))}
		namespaces := []uint8{1, 7, 200}[:1+seed%3]
		if seed%10 == 9 { // more than the fences have entries for
			for n := range uint8(255) {
				namespaces = append(namespaces, n)
			}
		}
		for _, n := range namespaces {
			m.retention[n] = 100 + m.rng.Int64N(300)
		}
		if seed%5 == 4 {
			m.retention[7] = 0 // its route was removed
		}
		moved := 0
		for step := range 1500 {
			floor := m.c.Floor
			m.transact(namespaces)
			if m.c.Floor < floor {
				t.Fatalf("seed %d step %d: the floor went from %d back to %d", seed, step, floor, m.c.Floor)
			}
			if m.c.Floor > floor {
				moved++
			}
			if m.c.Floor > floor || step%50 == 0 {
				m.check(t, seed)
			}
		}
		if moved < 2 {
			t.Errorf("run %d: the floor moved %d times in %d rows", seed, moved, len(m.rows))
		}
	}
}

// check compares the floor and the fences with all rows.
func (m *fenceModel) check(t *testing.T, seed uint64) {
	t.Helper()
	before := m.horizons()
	above := map[modelRow]bool{} // a sweep wrote these again
	for _, r := range m.rows[m.c.Floor:] {
		above[r] = true
	}
	for offset, r := range m.rows[:m.c.Floor] {
		if r.first >= before[r.namespaceID] && !above[r] {
			t.Fatalf("in seed %d the floor is %d, and the row at %d, namespace id %d, first seen at %d, decides after %d", seed, m.c.Floor, offset, r.namespaceID, r.first, before[r.namespaceID])
		}
	}
	if len(m.c.Fences) > fencesMax || m.c.fenced() > fencedMax {
		t.Fatalf("run %d: %d fences with %d entries", seed, len(m.c.Fences), m.c.fenced())
	}
	if back, err := DecodeCheckpoint(m.c.Append(nil)); err != nil || !reflect.DeepEqual(back, m.c) {
		t.Fatalf("in seed %d floor %d and fences %+v were decoded as %d and %+v, %v", seed, m.c.Floor, m.c.Fences, back.Floor, back.Fences, err)
	}
}

// TestStandingNamespaceKeepsItsFence: one namespace gets no event any more, while many
// fences of another are merged. The oldest fence keeps its place and its time.
func TestStandingNamespaceKeepsItsFence(t *testing.T) {
	var c Checkpoint
	var before [256]int64
	c.StreamTimes.At[1], c.StreamTimes.Has[1] = 1000, true
	c.StreamTimes.Has[2] = true
	for at := range int64(1000) {
		c.StreamTimes.At[2] = at
		before[2] = at - 100
		c.RaiseFloor(&before)
		c.AddFence(10*(at+1), &c, &before)
	}
	if c.Floor != 0 || c.Fences[0].Offset != 10 || c.Fences[0].Latest[0] != (FirstSeen{1, 1000}) || len(c.Fences) != fencesMax {
		t.Fatalf("floor %d, %d fences, the first %+v", c.Floor, len(c.Fences), c.Fences[0])
	}
	before[1] = 1001 // its events go on
	c.RaiseFloor(&before)
	if c.Floor < 8000 || c.Floor > 9100 {
		t.Errorf("all is due below offset 9000: floor %d", c.Floor)
	}
}
