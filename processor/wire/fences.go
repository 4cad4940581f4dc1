package wire

import (
	"encoding/binary"
	"math"
	"slices"

	"oncebus/dedup"
)

// Fence says that every row of a namespace id below a changelog offset was first seen at
// Latest or before. A fence whose times all lie below their horizons becomes the floor of
// the changelog.
type Fence struct {
	Offset int64
	// Rows is Checkpoint.Rows as of Offset.
	Rows int64
	// Latest has the namespace ids, ascending, whose time is another one than in the
	// fences before. A namespace id without an entry there has no row that decides.
	Latest []FirstSeen
}

// FirstSeen is the latest first seen time of the rows of a namespace id, in ms.
type FirstSeen struct {
	NamespaceID uint8
	At          int64
}

// fencesMax and fencedMax bound the fences of a checkpoint and the entries in them, some
// 200 bytes for one namespace and 3 KB for 255. Two fences of all namespaces fit, so the
// oldest fence stays until it is due.
const fencesMax, fencedMax = 16, 512

// reached returns the latest event time that moved the stream time of a namespace or one of its
// sources; dedup.NoStreamTime for none. No row is later but those of Ahead.
func (c *Checkpoint) reached(namespaceID uint8) int64 {
	if at, has := c.SourcesOf(namespaceID); has {
		return max(c.Sources[at].Highest, c.StreamTimes.Of(namespaceID))
	}
	return c.StreamTimes.Of(namespaceID)
}

// SetAhead notes a row of which no other time of the namespace says that it was first seen so
// late, as that of a clamped event. c must not share Ahead with another checkpoint.
func (c *Checkpoint) SetAhead(namespaceID uint8, first int64) {
	if first <= c.reached(namespaceID) {
		return
	}
	at := slices.IndexFunc(c.Ahead, func(a FirstSeen) bool { return a.NamespaceID >= namespaceID })
	switch {
	case at < 0:
		c.Ahead = append(c.Ahead, FirstSeen{namespaceID, first})
	case c.Ahead[at].NamespaceID == namespaceID:
		c.Ahead[at].At = max(first, c.Ahead[at].At)
	default:
		c.Ahead = slices.Insert(c.Ahead, at, FirstSeen{namespaceID, first})
	}
}

// DropAhead removes the entries of Ahead that the namespaces have reached. c must not share
// Ahead with another checkpoint.
func (c *Checkpoint) DropAhead() {
	c.Ahead = slices.DeleteFunc(c.Ahead, func(a FirstSeen) bool { return a.At <= c.reached(a.NamespaceID) })
	if len(c.Ahead) == 0 {
		c.Ahead = nil
	}
}

// Latest returns the latest first seen time of the rows of a namespace id; false for a
// namespace id without rows.
func (c *Checkpoint) Latest(namespaceID uint8) (int64, bool) {
	latest := c.reached(namespaceID)
	for _, a := range c.Ahead {
		if a.NamespaceID == namespaceID {
			latest = max(latest, a.At)
		}
	}
	return latest, latest != dedup.NoStreamTime
}

// FencedTimes returns, by namespace id, the time in the newest fence that has one, and whether
// one has.
func (c *Checkpoint) FencedTimes() (at [256]int64, has [256]bool) {
	for _, f := range c.Fences {
		for _, e := range f.Latest {
			at[e.NamespaceID], has[e.NamespaceID] = e.At, true
		}
	}
	return at, has
}

// RaiseFloor makes the newest fence that is due the floor. A fence is due when it and all
// fences before it have only times below the horizons, which are by namespace id.
func (c *Checkpoint) RaiseFloor(horizons *[256]int64) {
	due := 0
	for due < len(c.Fences) && !slices.ContainsFunc(c.Fences[due].Latest, func(e FirstSeen) bool { return e.At >= horizons[e.NamespaceID] }) {
		due++
	}
	if due == 0 {
		return
	}
	c.Floor, c.FloorRows = c.Fences[due-1].Offset, c.Fences[due-1].Rows
	c.Fences = c.Fences[due:]
	if len(c.Fences) == 0 {
		c.Fences = nil
	}
}

// AddFence adds a fence at a changelog offset. rows is the checkpoint of the rows below
// the offset. It leaves out namespace ids without a row that decides an event. Other
// checkpoints may share the fences of c: AddFence copies them.
func (c *Checkpoint) AddFence(offset int64, rows *Checkpoint, horizons *[256]int64) {
	if offset <= c.Floor || len(c.Fences) > 0 && offset <= c.Fences[len(c.Fences)-1].Offset {
		return // no row since
	}
	added := Fence{Offset: offset, Rows: rows.Rows}
	before, has := c.FencedTimes()
	for n := range 256 {
		if latest, ok := rows.Latest(uint8(n)); ok && latest >= horizons[n] && (!has[n] || latest != before[n]) {
			added.Latest = append(added.Latest, FirstSeen{uint8(n), latest})
		}
	}
	if len(added.Latest) == 0 {
		return
	}
	c.Fences = append(slices.Clone(c.Fences), added)
	for len(c.Fences) > 2 && (len(c.Fences) > fencesMax || c.fenced() > fencedMax) {
		c.mergeFence()
	}
}

// fenced returns the number of entries in the fences.
func (c *Checkpoint) fenced() (n int) {
	for _, f := range c.Fences {
		n += len(f.Latest)
	}
	return n
}

// mergeFence merges one fence into the next one. It chooses the fence between the
// two that are closest, so that the fences stay spread over the changelog. The oldest fence stays:
// if it moved, it might never be due.
func (c *Checkpoint) mergeFence() {
	at, least := 1, int64(math.MaxInt64)
	for k := 1; k < len(c.Fences)-1; k++ {
		if gap := c.Fences[k+1].Offset - c.Fences[k-1].Offset; gap < least {
			at, least = k, gap
		}
	}
	merged := Fence{Offset: c.Fences[at+1].Offset, Rows: c.Fences[at+1].Rows}
	older, newer := c.Fences[at].Latest, c.Fences[at+1].Latest
	for len(older) > 0 || len(newer) > 0 {
		switch {
		case len(older) == 0 || len(newer) > 0 && newer[0].NamespaceID < older[0].NamespaceID:
			merged.Latest, newer = append(merged.Latest, newer[0]), newer[1:]
		case len(newer) == 0 || older[0].NamespaceID < newer[0].NamespaceID:
			merged.Latest, older = append(merged.Latest, older[0]), older[1:]
		default:
			merged.Latest, older, newer = append(merged.Latest, newer[0]), older[1:], newer[1:]
		}
	}
	c.Fences = slices.Replace(c.Fences, at, at+2, merged)
}

// SetFloor sets the floor, with Rows as of it, and drops all fences. A fence omits what
// the fences before it say, so none is valid without those.
func (c *Checkpoint) SetFloor(floor, rows int64) { c.Floor, c.FloorRows, c.Fences = floor, rows, nil }

// EndSweep makes the offset at which a sweep began the floor: the sweep wrote every row
// below it again, or the row decides no event any more. The changelog is complete.
func (c *Checkpoint) EndSweep(began, rows int64) {
	c.SetFloor(max(began, c.Floor), max(rows, c.FloorRows))
	c.Incomplete = false
}

// appendFences appends the fences: their number, and for each the gaps to the offset and
// to the rows before, and its entries. The first gaps are from the floor.
func (c *Checkpoint) appendFences(dst []byte) []byte {
	dst = binary.AppendUvarint(dst, uint64(len(c.Fences)))
	offset, rows, at := c.Floor, c.FloorRows, int64(0)
	for _, f := range c.Fences {
		dst = binary.AppendUvarint(dst, uint64(f.Offset-offset))
		dst = binary.AppendUvarint(dst, uint64(f.Rows-rows))
		offset, rows = f.Offset, f.Rows
		dst, at = appendFirstSeen(dst, f.Latest, at)
	}
	return dst
}

// appendFirstSeen appends entries: their number, and for each the namespace id and the
// difference to the time before. It returns the last time.
func appendFirstSeen(dst []byte, entries []FirstSeen, at int64) ([]byte, int64) {
	dst = binary.AppendUvarint(dst, uint64(len(entries)))
	for _, e := range entries {
		dst = binary.AppendVarint(append(dst, e.NamespaceID), e.At-at) // wraps around, and back
		at = e.At
	}
	return dst, at
}

func (c *Checkpoint) decodeFences(r *dedup.Cursor) {
	n := r.Uvarint(fencesMax)
	if n == 0 {
		r.Fail()
	}
	offset, rows, at, left := c.Floor, c.FloorRows, int64(0), uint64(fencedMax)
	for ; n > 0 && !r.Bad(); n-- {
		gap := int64(r.Uvarint(uint64(math.MaxInt64 - offset)))
		if gap == 0 {
			r.Fail()
		}
		offset += gap
		rows += int64(r.Uvarint(uint64(c.Rows - rows)))
		f := Fence{Offset: offset, Rows: rows}
		f.Latest, at = decodeFirstSeen(r, left, at)
		left -= uint64(len(f.Latest))
		c.Fences = append(c.Fences, f)
	}
}

// decodeFirstSeen reads at least one and at most limit entries, ascending by namespace
// id.
func decodeFirstSeen(r *dedup.Cursor, limit uint64, at int64) ([]FirstSeen, int64) {
	n := r.Uvarint(limit)
	if n == 0 {
		r.Fail()
	}
	var entries []FirstSeen
	for before := -1; n > 0 && !r.Bad(); n-- {
		namespaceID := r.Byte()
		if int(namespaceID) <= before {
			r.Fail()
		}
		before = int(namespaceID)
		at += r.Varint()
		entries = append(entries, FirstSeen{namespaceID, at})
	}
	return entries, at
}
