package rules

import (
	"hash/maphash"
	"math/bits"
	"slices"
)

// members has the names of the open object, to find a second member of one name.
type members struct {
	first int    // where the object's hashes begin in scan.names
	table int    // where its table begins in scan.slots
	seen  uint64 // has one of 64 bits set for each name: most often it shows that a name is new
}

const (
	// membersListed is how many members of an object are compared one by one. An object with
	// more gets a table.
	membersListed = 32
	// membersMax bounds the members of all open objects, and so what a Deriver keeps: 3 MiB. A payload
	// with more is refused: the decoder would keep their names.
	membersMax = 1 << 16
	// probesMax bounds a search in a table. It is at most half full, so only hashes that were
	// made to collide need more.
	probesMax = 64
)

// memberFactor is odd and differs in each process. A sender cannot foresee at which slots
// searches for its names begin. It changes no result, because the decoder reads what scan refuses.
var memberFactor = maphash.String(maphash.MakeSeed(), "members") | 1

// add adds a member's name by its hash. It returns false if the object may have one of that
// name, or if a search would take long.
func (s *scan) add(m *members, h uint64) bool {
	n := len(s.names) - m.first
	switch bit := uint64(1) << (h >> 58); {
	case len(s.names) >= membersMax:
		return false
	case n >= membersListed:
		if !s.inTable(m, n) || !insert(s.slots[m.table:], h) {
			return false
		}
	case m.seen&bit == 0:
		m.seen |= bit
	case !s.unlisted(m, h):
		return false
	}
	s.names = append(s.names, h)
	return true
}

// close removes the names of an object at its end.
func (s *scan) close(m *members) {
	s.names, s.slots = s.names[:m.first], s.slots[:m.table]
}

// unlisted reports whether no member has this hash.
func (s *scan) unlisted(m *members, h uint64) bool {
	for _, other := range s.names[m.first:] {
		if other == h {
			return false
		}
	}
	return true
}

// inTable gives an object of n members a table with room for one more. The objects in it are
// closed, so its table is the last one in s.slots and can grow there.
func (s *scan) inTable(m *members, n int) bool {
	size := len(s.slots) - m.table
	if 2*n < size {
		return true
	}
	size = max(2*size, 4*membersListed)
	s.slots = slices.Grow(s.slots[:m.table], size)[:m.table+size]
	clear(s.slots[m.table:])
	for _, h := range s.names[m.first:] {
		if !insert(s.slots[m.table:], h) {
			return false
		}
	}
	return true
}

// insert adds a hash to a table. It returns false if the table has it, or after probesMax
// slots. Zero marks a free slot, so it is refused. The slot depends on the high bits of the
// product: they alone depend on every bit of the hash.
func insert(table []uint64, h uint64) bool {
	at, _ := bits.Mul64(h*memberFactor, uint64(len(table)))
	for range probesMax {
		switch slot := &table[at]; *slot {
		case 0:
			*slot = h
			return h != 0
		case h:
			return false
		}
		if at++; at == uint64(len(table)) {
			at = 0
		}
	}
	return false
}
