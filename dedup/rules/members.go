package rules

import (
	"hash/maphash"
	"math/bits"
	"slices"
)

// members has the member names of an object that scan is reading, to find a second member of the same name.
type members struct {
	first int    // where the hashes of the object's names begin in scan.names
	table int    // where the object's table begins in scan.slots
	seen  uint64 // a set of 64 bits, one set for each name: most often it shows at once that a name is new
}

const (
	// membersListed is how many members of an object are compared one by one. An object with more members
	// gets a table.
	membersListed = 32
	// membersMax is the most members that all open objects may have together, so that a Deriver keeps at most 3
	// MiB. scan refuses a payload with more members. The decoder does not read such a payload either, because
	// it would keep all the names in memory, so the record is malformed.
	membersMax = 1 << 16
	// probesMax is how many slots a search in a table tries. The table is at most half full, so a search needs
	// more slots only if somebody chose names whose hashes collide.
	probesMax = 64
)

// memberFactor is odd and differs in each process, so a sender cannot foresee at which slots the searches for
// its names begin. The factor changes no result, because the decoder reads every payload that scan refuses.
var memberFactor = maphash.String(maphash.MakeSeed(), "members") | 1

// add adds the hash of a member's name. It returns false if the object may already have a member of that
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

// close removes the names of an object when the object ends.
func (s *scan) close(m *members) {
	s.names, s.slots = s.names[:m.first], s.slots[:m.table]
}

// unlisted reports whether no member of the object has this hash.
func (s *scan) unlisted(m *members, h uint64) bool {
	for _, other := range s.names[m.first:] {
		if other == h {
			return false
		}
	}
	return true
}

// inTable gives an object of n members a table with room for one more. All objects within that object are
// closed, so the object's table is the last one in s.slots and can grow there.
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

// insert adds a hash to a table. It returns false if the table already has the hash, if it found no free slot
// among probesMax slots, or if the hash is zero, because zero marks a free slot. The slot comes from the high
// bits of the product, because only they depend on every bit of the hash.
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
