package oracle

import (
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"slices"
)

// A key has a row for each of its windows, as far as a task at level 2 made them. That of the
// latest one has the digest of the key. Each says when the window before it was first seen, or
// that it is the first. A row that says neither was made by a seed, or at level 1: what was before
// it is not known.

// What a row says of the window before.
const (
	beforeUnknown = iota
	beforeNone
	beforeKnown
)

// flags returns the flags of a row: 16 no window before, 32 one before, 64 of an earlier window,
// 128 stored again.
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

// appendLink appends how long before the row the window before was first seen, if there is one.
func (r *row) appendLink(dst []byte) []byte {
	if r.link != beforeKnown {
		return dst
	}
	return binary.AppendUvarint(dst, uint64(r.first-r.before))
}

// A placed row is one with its digest.
type placed struct {
	digest digest
	row    row
}

// ofEarlier returns a row as one of an earlier window of a key: its digest is that of the key,
// xor a hash of when it was first seen.
func ofEarlier(key digest, r row) placed {
	sum := sha256.Sum256(binary.LittleEndian.AppendUint64([]byte("oncebus earlier window\n"), uint64(r.first)))
	for i := range key {
		key[i] ^= sum[i]
	}
	r.earlier = true
	return placed{key, r}
}

// judgeEarlier judges an event before the window of the key's latest row. The windows of the key
// that still count are a list, so no link has to be followed.
func (f *fold) judgeEarlier(e *envelope, r *Route, next row, counts func(*row) bool, window int64) judgement {
	windows := f.windows[e.digest]
	at := 0 // of the first window that the event is not before
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

// store stores the row of a judgement, and returns all rows that this writes.
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
