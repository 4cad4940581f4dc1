package state

import (
	"bytes"
	"errors"
	"math"
	"reflect"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"oncebus/dedup"
)

// TestPageCoversItsDigests requires that the least digest is found on the first page, and the greatest on the last.
func TestPageCoversItsDigests(t *testing.T) {
	for _, n := range []uint32{1, 2, 3, 1000, 1 << 31} {
		if pageOf(0, n) != 0 || pageOf(^uint64(0), n) != n-1 {
			t.Fatalf("%d pages: first %d, last %d", n, pageOf(0, n), pageOf(^uint64(0), n))
		}
	}
}

// samplePage returns the payload of a page with every kind of row.
func samplePage() (rows uint32, payload []byte) {
	var b pageBuilder
	var sorted []dedup.Row
	for n := range uint64(20) {
		r := rowOf(n)
		r.Fingerprint, r.Attempt, r.HasResult = n%3, uint32(n%2), n%4 == 0
		r.Shift = int64(n%5) - 2
		if n%8 == 0 {
			r.Result = []byte("result")
		}
		sorted = append(sorted, r)
	}
	slices.SortFunc(sorted, func(a, b dedup.Row) int { return bytes.Compare(a.Digest[:], b.Digest[:]) })
	for _, r := range sorted {
		b.add(&r)
	}
	return b.rows(), bytes.Clone(b.bytes())
}

// drawLink draws what a row says of the other windows of its key.
func drawLink(t *rapid.T, r *dedup.Row) {
	r.Earlier, r.Again = rapid.Bool().Draw(t, "earlier"), rapid.Bool().Draw(t, "again")
	if r.Link = rapid.SampledFrom([]dedup.Link{dedup.LinkUnknown, dedup.LinkNone, dedup.LinkBefore}).Draw(t, "link"); r.Link == dedup.LinkBefore {
		r.Before = rapid.SampledFrom([]int64{0, r.First - 1, math.MinInt64}).Draw(t, "before")
	}
}

// drawRow returns a row whose fields are drawn from all of their ranges.
func drawRow(t *rapid.T) dedup.Row {
	r := rowOf(rapid.Uint64Range(0, 1000).Draw(t, "n"))
	r.Digest[0] = rapid.SampledFrom([]byte{0, 1, 255}).Draw(t, "byte of the digest")
	r.First = rapid.Int64().Draw(t, "first")
	r.At.Topic = rapid.Uint16Range(0, 3).Draw(t, "topic")
	r.At.Partition = rapid.Int32Range(0, 1<<31-1).Draw(t, "partition")
	r.At.Offset = rapid.Int64Range(0, 1<<63-1).Draw(t, "offset")
	r.NamespaceID = rapid.Byte().Draw(t, "namespace")
	r.Status = dedup.Status(rapid.IntRange(0, int(dedup.Freed)).Draw(t, "status"))
	r.Fingerprint = rapid.Uint64().Draw(t, "fingerprint")
	r.Attempt = rapid.Uint32().Draw(t, "attempt")
	r.Shift = rapid.Int64().Draw(t, "shift")
	drawLink(t, &r)
	if r.HasResult = rapid.Bool().Draw(t, "has a result"); r.HasResult {
		r.Result = rapid.SampledFrom([][]byte{nil, {}, []byte("result"), make([]byte, 300)}).Draw(t, "result")
	}
	return r
}

// TestPageRoundTrip builds pages of random rows and reads every row back. Digests that the page does not have must
// not be found.
func TestPageRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		rows := rapid.SliceOfNDistinct(rapid.Custom(drawRow), 0, 30, func(r dedup.Row) dedup.Digest { return r.Digest }).Draw(t, "rows")
		slices.SortFunc(rows, func(a, b dedup.Row) int { return bytes.Compare(a.Digest[:], b.Digest[:]) })
		var b pageBuilder
		for range 2 { // the second page has the memory of the first
			b.reset()
			for _, r := range rows {
				b.add(&r)
			}
			p, err := decodePage(b.rows(), b.bytes())
			must(t, err)
			for i, r := range rows {
				got, err := p.row(i)
				if err != nil || !reflect.DeepEqual(got, r) {
					t.Fatalf("row %d: %+v, %v, want %+v", i, got, err, r)
				}
				at, found := p.find(&r.Digest)
				if !found || at != i {
					t.Fatalf("row %d is found at %d, %v", i, at, found)
				}
				other := r.Digest
				other[15]++
				if at, found := p.find(&other); found && rows[at].Digest != other {
					t.Fatalf("a digest without a row is found at %d", at)
				}
			}
		}
	})
}

// TestPageIsSmall protects the size of a page with rows of plain deduplication of one partition: a row takes 16 bytes
// for the digest, of which all rows share at least one byte, three bytes for the time, and three for the offset.
func TestPageIsSmall(t *testing.T) {
	var b pageBuilder
	const rows = 300
	for n := range rows {
		r := rowOf(0)
		r.Digest[1] = byte(n >> 8)
		r.Digest[2] = byte(n)
		r.First += int64(n) * 10_000
		r.At.Offset += int64(n) * 1000
		b.add(&r)
	}
	if got := len(b.bytes()); got > rows*rowBytes {
		t.Errorf("a page of %d rows has %d bytes, %d a row expected", rows, got, rowBytes)
	}
}

// FuzzPage decodes any payload as a page: decoding never panics, and find returns the row of the digest.
func FuzzPage(f *testing.F) {
	rows, payload := samplePage()
	f.Add(rows, payload)
	f.Add(uint32(0), []byte{})
	f.Add(uint32(1), make([]byte, 20))
	f.Fuzz(func(t *testing.T, rows uint32, payload []byte) {
		p, err := decodePage(rows, payload)
		if err != nil {
			if !errors.Is(err, ErrCorrupt) {
				t.Fatalf("error of another kind: %v", err)
			}
			return
		}
		for i := range p.rows {
			d := p.digest(i)
			if at, found := p.find(&d); found && p.digest(at) != d {
				t.Fatalf("find of row %d returns row %d", i, at)
			}
			if _, err := p.row(i); err != nil && !errors.Is(err, ErrCorrupt) {
				t.Fatalf("error of another kind: %v", err)
			}
		}
	})
}
