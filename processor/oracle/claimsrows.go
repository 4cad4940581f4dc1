package oracle

import "fmt"

// row describes the expected row of a claim.
func (k *claim) row() string {
	return fmt.Sprintf("%s, attempt %d, first %d at %v", k.status, k.attempt, k.first, k.at)
}

// readRow describes a row: version 1 | flags 1 | namespaceID 1 | status 1 | first varint | topic, partition,
// offset uvarint | [fingerprint 8] | [attempt uvarint] | … (rows of routes with adjacent buckets have a shift
// there, but the oracle knows no such routes)
func readRow(b []byte) string {
	f := fields{rest: b[4:]}
	first := f.signed()
	from := position{uint16(f.unsigned(1 << 16)), int32(f.unsigned(1 << 31)), int64(f.unsigned(1 << 63))}
	if b[1]&1 != 0 {
		f.take(min(8, len(f.rest)))
	}
	var attempt uint64
	if b[1]&2 != 0 {
		attempt = f.unsigned(1 << 32)
	}
	if f.bad || b[3] > 4 {
		return "unreadable"
	}
	k := claim{status: [...]string{"seen", "in_progress", "submitted", "completed", "freed"}[b[3]], attempt: attempt, first: first, at: from}
	return k.row()
}

// compareRows compares every key with its newest changelog row.
func (c *Claims) compareRows(want map[digest]string, changelog []Record) (wrong []string) {
	got := map[digest]string{}
	for i := range changelog {
		r := &changelog[i]
		if len(r.Key) == len(digest{}) && len(r.Value) > 4 && (c.Route == "" || r.Value[2] == c.NamespaceID) {
			got[digest(r.Key)] = readRow(r.Value)
		}
	}
	for d, row := range want {
		if got[d] != row {
			wrong = append(wrong, fmt.Sprintf("key %x is %q in the changelog, want %q", d, got[d], row))
		}
	}
	if len(got) > len(want) {
		wrong = append(wrong, fmt.Sprintf("the changelog has %d keys, want %d", len(got), len(want)))
	}
	return wrong
}
