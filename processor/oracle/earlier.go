package oracle

import (
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"slices"
)

// A key has a row for each of its windows, if a task at level 2 made the rows. The row of the latest window has
// the digest of the key. Each row tells when the previous window was first seen, or that there is no previous
// window. A row that says neither was made by a seed, or at level 1: whether the key had a previous window is
// not known.

// What a row tells about the previous window:
const (
	beforeUnknown = iota
	beforeNone
	beforeKnown
)

// flags returns the flags of a row: 16 there is no previous window, 32 there is one, 64 the row is of an
// earlier window, 128 it was stored again.
func (r *row) flags() byte {
	flags := []byte{0, 16, 32}[r.link]
	if r.earlier {
		flags |= 64
	}
	if r.again {
		flags |= 128
	}
	return flags
}

// appendLink appends how long before the row the previous window was first seen, if there is a previous window.
func (r *row) appendLink(dst []byte) []byte {
	if r.link != beforeKnown {
		return dst
	}
	return binary.AppendUvarint(dst, uint64(r.first-r.before))
}

// A placed row is a row with the digest under which it is stored.
type placed struct {
	digest digest
	row    row
}

// ofEarlier returns a row as the row of an earlier window of a key. Its digest is the digest of the key, xor a
// hash of the time when the row was first seen.
func ofEarlier(key digest, r row) placed {
	sum := sha256.Sum256(binary.LittleEndian.AppendUint64([]byte("oncebus earlier window\n"), uint64(r.first)))
	for i := range key {
		key[i] ^= sum[i]
	}
	r.earlier = true
	return placed{key, r}
}

// judgeEarlier judges an event that is before the window of the key's latest row. The fold has the windows of a
// key that still count in a list, so it need not follow the links between rows.
func (f *fold) judgeEarlier(e *envelope, r *Route, next row, counts func(*row) bool, window int64) judgement {
	windows := f.windows[e.digest]
	at := 0 // index of the first window that the event is not before
	for ; at < len(windows) && counts(&windows[at]) && e.time < add(windows[at].first, -window); at++ {
		if windows[at].link == beforeUnknown {
			return judgement{verdict: "late", topic: r.to(r.Late),
				reason: fmt.Sprintf("event time %d cannot be judged: the first event under the key has time %d, window %v", e.time, windows[at].first, ms(window))}
		}
	}
	if next.link = beforeNone; at < len(windows) && counts(&windows[at]) {
		if below := windows[at]; e.time <= add(below.first, window) {
			return r.duplicate(e, below, window)
		}
		next.link, next.before = beforeKnown, windows[at].first
	}
	next.earlier = true
	return judgement{verdict: "unique", topic: r.Output, row: next, wrote: true, above: at}
}

// store stores the row of a judgement, and returns all rows that are written thereby.
func (f *fold) store(e *envelope, r *Route, j *judgement) (wrote []placed) {
	windows := f.windows[e.digest]
	switch {
	case j.row.earlier:
		above := &windows[j.above-1]
		above.link, above.before, above.again = beforeKnown, j.row.first, true
		wrote = []placed{ofEarlier(e.digest, j.row), {e.digest, *above}}
		if above.earlier {
			wrote[1] = ofEarlier(e.digest, *above)
		}
		f.windows[e.digest] = slices.Insert(windows[:j.above:j.above], j.above, j.row)
		if rest := windows[j.above:]; j.row.link == beforeKnown {
			f.windows[e.digest] = append(f.windows[e.digest], rest...)
		}
	case j.row.link == beforeKnown:
		old := ofEarlier(e.digest, *j.replaces)
		old.row.again = true
		windows[0] = old.row
		f.windows[e.digest] = slices.Insert(windows, 0, j.row)
		wrote = []placed{old, {e.digest, j.row}}
	default:
		f.windows[e.digest] = []row{j.row}
		wrote = []placed{{e.digest, j.row}}
	}
	for _, p := range wrote {
		f.rows[p.digest] = p.row
	}
	f.count(r, j)
	return wrote
}
