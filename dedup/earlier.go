package dedup

import (
	"crypto/sha256"
	"crypto/subtle"
	"encoding/binary"
)

// A key of plain deduplication has one row for each of its windows, while it is retained. That
// of the latest window is at the key's digest, and decides almost all events. Those of earlier
// windows have digests of their own. Each row links to the one of the window before it. An event
// before the window of a row goes down these links: to the row that covers it, or to its place
// between two of them. Two sources that are read at different speeds make such events.
//
// A link is a first seen time, so it holds on when the window changes. A row that is not retained
// ends the way down: it covers no event that is not late. A freed row decides nothing, so every
// event passes it.
//
// Rows of claims, of keys with adjacent buckets, of seeds and of shadows have no link, nor have
// those of an app at level 1. Other firsts may be before them, so an event before the window of
// such a row is Late.

// Link says whether a key has a row of a window before that of a row.
type Link uint8

// Links.
const (
	LinkUnknown Link = iota // it may have had one that is not stored
	LinkNone                // it had no retained one
	LinkBefore              // it has one, whose first seen time is Row.Before
)

// EarlierDigest returns the digest of a key's row of an earlier window, first seen at first, ms.
// It also returns the digest of the key for that of such a row. So the row says in which task it
// belongs, wherever it is.
func EarlierDigest(d Digest, first int64) (earlier Digest) {
	sum := sha256.Sum256(binary.LittleEndian.AppendUint64(append(make([]byte, 0, 64), "oncebus earlier window\n"...), uint64(first)))
	subtle.XORBytes(earlier[:], d[:], sum[:])
	return earlier
}

// Key returns the digest of the row's key.
func (r *Row) Key() Digest {
	if !r.Earlier {
		return r.Digest
	}
	return EarlierDigest(r.Digest, r.First)
}

// AsEarlier returns the row of a key's latest window as it is stored when another one replaces it.
func (r *Row) AsEarlier() Row {
	earlier := *r
	earlier.Digest, earlier.Earlier, earlier.Again = EarlierDigest(r.Digest, r.First), true, true
	return earlier
}

// Above returns the row with a link to one that was first seen at first, ms.
func (r *Row) Above(first int64) Row {
	above := *r
	above.Link, above.Before, above.Again = LinkBefore, first, true
	return above
}

// Unlinked returns the row as one that says nothing of others.
func (r *Row) Unlinked() Row {
	alone := *r
	alone.Link, alone.Before, alone.Again = LinkUnknown, 0, false
	return alone
}

// Below returns the digest of the row of the window before that of r; false if the key has no
// retained one.
func (r *Row) Below(w Window, streamTime int64) (Digest, bool) {
	if r.Link != LinkBefore || !w.Retains(r.Before, streamTime) {
		return Digest{}, false
	}
	return EarlierDigest(r.Key(), r.Before), true
}

// A Descent is the way of an event down the rows of its key.
type Descent struct {
	// Above is the last row that the event lies before, if there is one. Freed rows are none.
	Above *Row
	// link is that of the last row that the event has passed.
	link Link
}

// GoesBelow reports whether the row below r decides on the event in place of r.
func (ev *Event) GoesBelow(r *Row, w Window, streamTime int64) bool {
	switch {
	case !ev.Linked || !w.Retains(r.First, streamTime):
		return false
	case r.Status == Freed:
		return true
	}
	return ev.Time < r.First && r.Link != LinkUnknown && !w.Covers(r.First, ev.Time)
}

// Pass notes that the event goes below r. It keeps r.
func (d *Descent) Pass(r *Row) {
	if d.link = r.Link; r.Status != Freed {
		d.Above = r
	}
}

// DecideBelow decides as Decide does on an event that went down the rows of its key. prior is the
// first row that it does not pass, if found. An event that comes out is Unique. Its row is one of
// an earlier window if there is a row above, which then links to it. Freed rows that the event
// passed are linked no more.
func DecideBelow(ev Event, d *Descent, prior Row, found bool, w Window, streamTime int64) (Verdict, Row) {
	verdict, row := Decide(ev, prior, found, w, streamTime)
	if verdict != Unique && verdict != AfterWindow {
		return verdict, row
	}
	if !found && d.link == LinkUnknown {
		row.Link = LinkUnknown
	}
	if d.Above != nil {
		row.Digest, row.Earlier = EarlierDigest(ev.Digest, row.First), true
	}
	return Unique, row
}

// link returns the link of the row that an event makes. prior is the row that it was compared
// with, if found.
func (ev *Event) link(prior *Row, found bool, w Window, streamTime int64) (Link, int64) {
	switch {
	case !ev.Linked:
		return LinkUnknown, 0
	case !found || !w.Retains(prior.First, streamTime):
		return LinkNone, 0
	}
	return LinkBefore, prior.First
}
