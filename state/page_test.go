package state

import (
	"bytes"
	"errors"
	"slices"
	"testing"

	"oncebus/dedup"
)

// TestPageCoversItsDigests finds the least digest on the first page, the greatest on
// the last.
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
		b.add(&r.Digest, r.AppendBody(nil))
	}
	return b.rows, bytes.Clone(b.bytes())
}

// FuzzPage decodes any payload as a page: it never panics, and find returns the
// row of the digest.
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
