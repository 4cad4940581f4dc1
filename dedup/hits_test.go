package dedup

import (
	"bytes"
	"testing"
)

// TestHitsAreInTheRow protects that a row has the number of duplicates of its key and the time of the last one, in a
// stated number of bytes. A row without duplicates is encoded as before.
func TestHitsAreInTheRow(t *testing.T) {
	first := Row{Digest: Digest{1}, First: 1_764_109_200_000, At: Position{1, 2, 300}, Fingerprint: 7, Status: Seen, Link: LinkNone}
	row := first
	for n := range 300 {
		var err error
		if row, err = row.Hit(1_764_109_200_000 + int64(n%200)); err != nil { // broker time went back
			t.Fatal(err)
		}
	}
	got, err := DecodeValue(row.Digest, row.AppendValue(nil))
	if err != nil {
		t.Fatal(err)
	}
	claim, err := DecodeClaim(got.Result)
	if err != nil || claim.Hits != 300 || claim.LastHit != 1_764_109_200_199 {
		t.Errorf("claim %+v, %v", claim, err)
	}
	if more := len(row.AppendValue(nil)) - len(first.AppendValue(nil)); more != 11 {
		t.Errorf("300 hits take %d bytes, the page says 11", more)
	}
	if got.Result, got.HasResult, got.Again = nil, false, false; !bytes.Equal(got.AppendValue(nil), first.AppendValue(nil)) {
		t.Errorf("the rest of the row changed: %+v", got)
	}
	for cut := 1; cut < len(row.Result); cut++ {
		if _, err := DecodeClaim(row.Result[:cut]); err == nil {
			t.Errorf("%d bytes are read as hits", cut)
		}
	}
}
