package dedup

import (
	"bytes"
	"errors"
	"math"
	"math/rand/v2"
	"testing"
)

// drawPackable returns a row that a pack can have: a row similar to the one before it, or a row with extreme values.
func drawPackable(rng *rand.Rand, before Row) Row {
	r := before
	for i := range r.Digest {
		r.Digest[i] = byte(rng.Uint32())
	}
	r.First += rng.Int64N(100)
	r.At.Offset = max(0, r.At.Offset+rng.Int64N(20)-2)
	r.Fingerprint = 0
	switch rng.IntN(8) {
	case 0:
		r.First = []int64{math.MinInt64, math.MaxInt64, 0, -1}[rng.IntN(4)]
	case 1:
		r.At.Offset = []int64{math.MaxInt64, 0}[rng.IntN(2)]
	case 2:
		r.At.Topic, r.At.Partition = uint16(rng.Uint32()), rng.Int32N(math.MaxInt32)
	case 3:
		r.NamespaceID = uint8(rng.Uint32())
	case 4:
		r.Fingerprint = rng.Uint64() | 1
	}
	r.Earlier, r.Again, r.Link, r.Before = rng.IntN(4) == 0, rng.IntN(4) == 0, Link(rng.IntN(3)), 0
	if r.Link == LinkBefore {
		r.Before = []int64{r.First - 1, math.MinInt64, math.MaxInt64, r.First - rng.Int64N(1<<40)}[rng.IntN(4)]
	}
	return r
}

// TestPackRoundTrip protects that a reader returns the rows that were added, in their order, also after Reset.
func TestPackRoundTrip(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 17))
	var p Pack
	for range 200 {
		p.Reset()
		var want []Row
		var before Row
		for range 1 + rng.IntN(50) {
			length := len(p.Bytes())
			before = drawPackable(rng, before)
			if !before.Packs() {
				t.Fatalf("%+v does not pack", before)
			}
			p.Add(&before)
			want = append(want, before)
			if n := len(p.Bytes()) - length; n > PackedBytesMax {
				t.Fatalf("a row of %d bytes, at most %d expected", n, PackedBytesMax)
			}
		}
		if p.Rows() != len(want) {
			t.Fatalf("%d rows, want %d", p.Rows(), len(want))
		}
		i := 0
		for row, err := range PackedRows(p.Bytes()) {
			if err != nil {
				t.Fatal(err)
			}
			if got := row.AppendValue(nil); row.Digest != want[i].Digest || !bytes.Equal(got, want[i].AppendValue(nil)) {
				t.Fatalf("row %d is %+v, want %+v", i, *row, want[i])
			}
			i++
		}
		if i != len(want) {
			t.Fatalf("%d rows read, want %d", i, len(want))
		}
	}
}

// TestPackBytes protects that a row of steady traffic takes 20 bytes.
func TestPackBytes(t *testing.T) {
	var p Pack
	for n := range 1000 {
		p.Add(&Row{First: 1_760_000_000_000 + int64(n), At: Position{Topic: 3, Partition: 11, Offset: 1<<40 + int64(n)}})
	}
	if n := len(p.Bytes()) / 1000; n > 20 {
		t.Errorf("%d bytes a row", n)
	}
}

// TestRowsThatDoNotPack protects that rows of claims and orders are not packed, because a pack would lose the fields
// that only they have.
func TestRowsThatDoNotPack(t *testing.T) {
	for name, row := range map[string]Row{
		"a claim": {Status: ClaimInProgress}, "a shift": {Shift: -5}, "an attempt": {Attempt: 1}, "an empty result": {HasResult: true},
	} {
		if row.Packs() {
			t.Errorf("a row with %s packs", name)
		}
	}
}

// TestPackRefusesDamage protects that each truncation and each unknown flag or version is an error, from which no row
// is made.
func TestPackRefusesDamage(t *testing.T) {
	var p Pack
	p.Add(&Row{First: 100, At: Position{Topic: 1, Partition: 2, Offset: 3}, Fingerprint: 9})
	whole := p.Bytes()
	refused := func(what string, b []byte) {
		t.Helper()
		for row, err := range PackedRows(b) {
			if !errors.Is(err, ErrRow) {
				t.Errorf("%s: row %+v, error %v", what, row, err)
			}
			return
		}
		t.Errorf("%s: no row and no error", what)
	}
	for n := range whole {
		refused("cut", whole[:n])
	}
	for _, at := range []int{0, 1 + len(Digest{})} {
		damaged := bytes.Clone(whole)
		damaged[at] |= 0x80
		refused("unknown bit", damaged)
	}
	linked := bytes.Clone(whole)
	linked[1+len(Digest{})] |= packedLinkNone | packedLinkBefore
	refused("two links", append(linked, 1))
	for _, flag := range []byte{packedPlace, packedNamespace} {
		damaged := bytes.Clone(whole)
		damaged[1+len(Digest{})] &^= flag
		refused("first row without its place or namespace", damaged)
	}
}

// FuzzPackedRows requires that no input panics, and that rows which were read can be packed again to equal rows.
func FuzzPackedRows(f *testing.F) {
	var p Pack
	p.Add(&Row{First: 100, At: Position{Topic: 1, Partition: 2, Offset: 3}, Fingerprint: 9})
	p.Add(&Row{First: 90, At: Position{Topic: 1, Partition: 2, Offset: 4}})
	f.Add(bytes.Clone(p.Bytes()))
	f.Fuzz(func(t *testing.T, b []byte) {
		var again Pack
		var rows []Row
		for row, err := range PackedRows(b) {
			if err != nil {
				return
			}
			rows = append(rows, *row)
			again.Add(row)
		}
		i := 0
		for row, err := range PackedRows(again.Bytes()) {
			if err != nil || !bytes.Equal(row.AppendValue(nil), rows[i].AppendValue(nil)) {
				t.Fatalf("row %d is %+v after packing again, was %+v: %v", i, row, rows[i], err)
			}
			i++
		}
	})
}
