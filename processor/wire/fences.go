package wire

import (
	"encoding/binary"
	"math"
	"slices"

	"oncebus/dedup"
)

// Fence states a fact about a changelog: for each namespace id, every row below Offset has its First at or
// before a known time. Once all these times are before the horizons of their namespaces, no row below Offset
// decides an event any more, and Offset becomes the floor of the changelog.
type Fence struct {
	Offset int64
	// Rows is Checkpoint.Rows as of Offset.
	Rows int64
	// Latest has the time of each namespace id, ascending, for which the time differs from that in the fences
	// before. If no fence has an entry for a namespace id, that namespace has no row that decides an event.
	Latest []FirstSeen
}

// FirstSeen is the latest First of the rows of a namespace id, in ms. First is the event time of a
// key's first event.
type FirstSeen struct {
	NamespaceID uint8
	At          int64
}

// fencesMax bounds the fences of a checkpoint and fencedMax the entries in all of them: some 200 bytes with one
// namespace, and 3 KB with 255. There is room for two fences with entries for all namespaces, so the oldest
// fence need not be merged before it is due.
const fencesMax, fencedMax = 16, 512

// reached returns the latest event time to which events have raised the stream time of a namespace or the time
// of one of its sources; dedup.NoStreamTime for none. Only rows that are covered by Ahead are later.
func (c *Checkpoint) reached(namespaceID uint8) int64 {
	if at, has := c.SourcesOf(namespaceID); has {
		return max(c.Sources[at].Highest, c.StreamTimes.Of(namespaceID))
	}
	return c.StreamTimes.Of(namespaceID)
}

// SetAhead records a row whose First is later than anything else that the checkpoint says of the row's
// namespace, for example the row of a clamped event (hazard T11). c must not share Ahead with another
// checkpoint.
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

// DropAhead removes the entries of Ahead whose time the namespace has reached. c must not share Ahead
// with another checkpoint.
func (c *Checkpoint) DropAhead() {
	c.Ahead = slices.DeleteFunc(c.Ahead, func(a FirstSeen) bool { return a.At <= c.reached(a.NamespaceID) })
	if len(c.Ahead) == 0 {
		c.Ahead = nil
	}
}

// Latest returns the latest First of the rows of a namespace id; false for a namespace id without rows.
func (c *Checkpoint) Latest(namespaceID uint8) (int64, bool) {
	latest := c.reached(namespaceID)
	for _, a := range c.Ahead {
		if a.NamespaceID == namespaceID {
			latest = max(latest, a.At)
		}
	}
	return latest, latest != dedup.NoStreamTime
}

// FencedTimes returns, by namespace id, the time in the newest fence that has an entry for this id, and whether
// there is such a fence.
func (c *Checkpoint) FencedTimes() (at [256]int64, has [256]bool) {
	for _, f := range c.Fences {
		for _, e := range f.Latest {
			at[e.NamespaceID], has[e.NamespaceID] = e.At, true
		}
	}
	return at, has
}

// RaiseFloor makes the newest fence that is due the floor. A fence is due when it and all fences before
// it have only times below the horizons of their namespaces. horizons is indexed by namespace id.
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

// AddFence adds a fence at a changelog offset. rows is the checkpoint that describes the rows below the
// offset. The fence leaves out namespace ids without a row that decides an event. Other checkpoints may
// share the fences of c, so AddFence copies them.
func (c *Checkpoint) AddFence(offset int64, rows *Checkpoint, horizons *[256]int64) {
	if offset <= c.Floor || len(c.Fences) > 0 && offset <= c.Fences[len(c.Fences)-1].Offset {
		return // no row was written since
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

// fenced returns the number of entries in all fences.
func (c *Checkpoint) fenced() (n int) {
	for _, f := range c.Fences {
		n += len(f.Latest)
	}
	return n
}

// mergeFence merges one fence into the next one. It chooses the fence whose two neighbours are closest
// to each other, so that the fences stay spread over the changelog. The oldest fence stays: if it moved
// each time, it might never become due.
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

// SetFloor sets the floor with its FloorRows, and drops all fences. It must drop them, because a fence omits
// what the fences before it say, and is not valid without those.
func (c *Checkpoint) SetFloor(floor, rows int64) { c.Floor, c.FloorRows, c.Fences = floor, rows, nil }

// EndSweep makes the offset at which a sweep began the floor. The sweep has written every row below
// that offset again, unless the row decides no event any more. The changelog is then complete.
func (c *Checkpoint) EndSweep(began, rows int64) {
	c.SetFloor(max(began, c.Floor), max(rows, c.FloorRows))
	c.Incomplete = false
}

// appendFences appends the number of fences, and for each fence the differences of its offset and rows
// to those of the fence before (of the floor for the first fence), and its entries.
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

// appendFirstSeen appends the number of entries, and for each entry the namespace id and the difference
// to the time before. It returns the last time.
func appendFirstSeen(dst []byte, entries []FirstSeen, at int64) ([]byte, int64) {
	dst = binary.AppendUvarint(dst, uint64(len(entries)))
	for _, e := range entries {
		dst = binary.AppendVarint(append(dst, e.NamespaceID), e.At-at) // may wrap around; decodeFirstSeen wraps back
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

// decodeFirstSeen reads at least one entry and at most limit entries, ascending by namespace id.
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
