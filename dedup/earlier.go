package dedup

import (
	"crypto/sha256"
	"crypto/subtle"
	"encoding/binary"
)

// This file keeps apart the windows of one key of plain deduplication. Each window has a separate row, as long
// as that row is retained. The row of the latest window is stored under the key's digest and decides almost
// every event. The rows of earlier windows have other digests (EarlierDigest), and each row links to the row of
// the window before it. An event before the window of a row follows these links down to the row that covers it,
// or to its place between two rows. Events before the window of the latest row occur, for example, when a
// worker reads two sources at different speeds.
//
// Example: with a window of 1 h and a grace of 3 h, events of one key come at 10:00, 14:00 and then, from the
// slower source, at 12:00. All three are emitted. The row of 14:00 links to the row of 12:00, and that row to
// the row of 10:00.
//
// A link is the first seen time of the row to which it leads, so it stays valid when the window changes. An
// event stops following the links at a row that is no longer retained, because such a row covers only late
// events. A freed row decides nothing, so an event follows the link of a freed row, too.
//
// Rows of claims, of keys with adjacent buckets, of seeds and of shadows have no links. The rows of an app at
// level 1 have no links either. In these cases the key may have an older row to which nothing links, so an
// event before the window of the row is Late.

// Link says whether a row's key also has a row of the previous window.
type Link uint8

// Links.
const (
	LinkUnknown Link = iota // the key may have had an earlier row that is not stored
	LinkNone                // the key had no retained earlier row
	LinkBefore              // the key has an earlier row, first seen at Row.Before
)

// EarlierDigest returns the digest under which a key's row of an earlier window is stored; first is the row's
// first seen time, in ms. The function is its own inverse: given the digest of such a row, it returns the
// digest of the key. Therefore the digest and the first seen time of a row suffice to find the key, and so the
// task, to which the row belongs.
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

// AsEarlier returns the row of a key's latest window in the form in which it is stored once another row
// replaces it.
func (r *Row) AsEarlier() Row {
	earlier := *r
	earlier.Digest, earlier.Earlier, earlier.Again = EarlierDigest(r.Digest, r.First), true, true
	return earlier
}

// Above returns the row with a link to the row that was first seen at first, in ms.
func (r *Row) Above(first int64) Row {
	above := *r
	above.Link, above.Before, above.Again = LinkBefore, first, true
	return above
}

// Unlinked returns the row without a link, so that it does not refer to any other row.
func (r *Row) Unlinked() Row {
	alone := *r
	alone.Link, alone.Before, alone.Again = LinkUnknown, 0, false
	return alone
}

// Below returns the digest of the row to which r links: the row of the previous window of the key. It returns
// false if the key has no such row within the retention.
func (r *Row) Below(w Window, streamTime int64) (Digest, bool) {
	if r.Link != LinkBefore || !w.Retains(r.Before, streamTime) {
		return Digest{}, false
	}
	return EarlierDigest(r.Key(), r.Before), true
}

// A Descent records which linked rows of its key an event has passed, from the latest row to earlier rows.
type Descent struct {
	// Above is the last row that the event passed because the event is before the window of that row; nil if
	// there is none. Freed rows do not count.
	Above *Row
	// link is the link of the last row that the event passed.
	link Link
}

// GoesBelow reports whether not r but the row to which r links decides on the event.
func (ev *Event) GoesBelow(r *Row, w Window, streamTime int64) bool {
	switch {
	case !ev.Linked || !w.Retains(r.First, streamTime):
		return false
	case r.Status == Freed:
		return true
	}
	return ev.Time < r.First && r.Link != LinkUnknown && !w.Covers(r.First, ev.Time)
}

// Pass records that r does not decide on the event, so that the event follows the link of r. The descent keeps
// the pointer r.
func (d *Descent) Pass(r *Row) {
	if d.link = r.Link; r.Status != Freed {
		d.Above = r
	}
}

// DecideBelow is Decide for an event that followed the links from the latest row of its key. prior is the first
// row that the event does not pass, if found. An event that is emitted is Unique. If d.Above is not nil, the
// event's row is the row of an earlier window, and the caller makes the row d.Above link to it. After that, no
// row links to the freed rows that the event passed.
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

// link returns the link, and Row.Before, for the row that is made for the event. prior is the row with which
// the event was compared, if found.
func (ev *Event) link(prior *Row, found bool, w Window, streamTime int64) (Link, int64) {
	switch {
	case !ev.Linked:
		return LinkUnknown, 0
	case !found || !w.Retains(prior.First, streamTime):
		return LinkNone, 0
	}
	return LinkBefore, prior.First
}
