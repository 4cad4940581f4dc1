package state

import (
	"bytes"
	"cmp"
	"slices"
	"testing"
)

func TestSortedTable(t *testing.T) {
	for _, rows := range []int{0, 1, 2, 63, 64, 5000} {
		tab := newTable(newHashSeed())
		for n := range rows {
			row := rowOf(uint64(n))
			if n%3 == 0 {
				clear(row.Digest[:8]) // one bucket, one prefix
			}
			tab.put(tab.seed.hash(&row.Digest), slotOf(&row), extra{})
		}
		got, order := new(scratch).sorted(tab)
		if len(order) != rows || !slices.IsSortedFunc(order, func(a, b sortKey) int {
			return cmp.Or(bytes.Compare(got[a.index].digest[:], got[b.index].digest[:]), cmp.Compare(a.index, b.index))
		}) {
			t.Fatalf("%d rows are not sorted", rows)
		}
		for i, k := range order {
			if i > 0 && got[k.index].digest == got[order[i-1].index].digest {
				t.Fatalf("%d rows: a row twice", rows)
			}
			if k.prefix != prefix(&got[k.index].digest) {
				t.Fatalf("%d rows: wrong prefix", rows)
			}
		}
	}
}
