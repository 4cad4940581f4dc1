package oracle

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"math"
	"time"
)

// A digest is the key of a row.
type digest = [16]byte

// A position is the position of an input record; topic is the number of the topic in the manifest.
type position struct {
	topic     uint16
	partition int32
	offset    int64
}

// A row is the state of a dedup key: when and where the key was first seen.
type row struct {
	first       int64
	at          position
	namespaceID uint8
	earlier     bool  // it belongs to an earlier window of its key
	again       bool  // a row of the same event was stored before, with another digest or link
	link        uint8 // beforeUnknown, beforeNone or beforeKnown
	before      int64 // when the previous window was first seen, if link is beforeKnown
}

// value returns the row as in the changelog: version | flags | namespace id | status "seen" | first | topic |
// partition | offset | link.
func (r *row) value(dst []byte) []byte {
	dst = append(dst, 1, r.flags(), r.namespaceID, 0)
	dst = binary.AppendVarint(dst, r.first)
	dst = binary.AppendUvarint(dst, uint64(r.at.topic))
	dst = binary.AppendUvarint(dst, uint64(r.at.partition))
	return r.appendLink(binary.AppendUvarint(dst, uint64(r.at.offset)))
}

// A fold is the state of a partition of the repartition topic after some of the partition's records.
type fold struct {
	rows map[digest]row
	// windows has the rows of each key, the latest first, down to a row that says nothing about the previous
	// window. linked reports that the task is at level 2: then only rows of seeds, and rows that were made
	// before at level 1, say nothing about the previous window.
	windows map[digest][]row
	linked  bool
	times   [256]int64 // stream time by namespace id
	seen    [256]bool  // the namespace has a stream time
	// sources has the sources that the stream time of a namespace follows. Without sources, stream time follows
	// the highest event time.
	sources map[uint8]*sourceTimes
	live    map[uint8]*liveKeys
	spans   spans
}

func newFold() *fold {
	return &fold{rows: map[digest]row{}, windows: map[digest][]row{}, sources: map[uint8]*sourceTimes{}, live: map[uint8]*liveKeys{}}
}

// A judgement is the verdict on a record, with its consequences.
type judgement struct {
	verdict string
	topic   string // the topic to emit to; "" if nothing is emitted
	reason  string
	first   *row // the first event, if the verdict is duplicate
	row     row  // the row to write, if the topic accepts the record
	wrote   bool
	// replaces is the row that decided on the key before, and that row replaces; nil if the key is new.
	replaces *row
	above    int   // how many windows of the key are later than the earlier window to which row belongs
	live     int64 // number of live keys, if the event is beyond the limit
}

// judge applies the rules in section 6, "Time", of the product's contract. It sets e.time to the event time
// that counts.
func (f *fold) judge(e *envelope, r *Route, present int64) judgement {
	last, running := f.times[r.NamespaceID], f.seen[r.NamespaceID]
	window, grace := f.spans.windowOf(r.NamespaceID, r.Window, r.Grace)
	own := e.time
	if j := f.judgeByTime(e, r, present); j != nil {
		return *j
	}
	if e.time == own { // a clamped event, whose time differs, does not move stream time
		f.moveTime(e, r.NamespaceID, present)
	}
	next := row{first: e.time, at: e.from, namespaceID: r.NamespaceID}
	prior, known := f.rows[e.digest]
	counts := func(prior *row) bool { return !f.absent(prior, window, grace, last, running) }
	if f.linked {
		next.link = beforeNone
	}
	switch {
	case !known || !counts(&prior):
		if r.LiveKeys > 0 {
			if n := f.liveKeys(r, last, running); n >= r.LiveKeys {
				return judgement{verdict: "limited", topic: r.to(r.OnLimit), live: n}
			}
		}
		return judgement{verdict: "unique", topic: r.Output, row: next, wrote: true}
	case e.time < add(prior.first, -window):
		return f.judgeEarlier(e, r, next, counts, window)
	case e.time > add(prior.first, window):
		if f.linked {
			next.link, next.before = beforeKnown, prior.first
		}
		return judgement{verdict: "after_window", topic: r.Output, row: next, wrote: true, replaces: &prior}
	}
	return r.duplicate(e, prior, window)
}

// duplicate returns the judgement on an event in the window of a row.
func (r *Route) duplicate(e *envelope, first row, window int64) judgement {
	return judgement{verdict: "duplicate", first: &first, topic: r.to(cmp.Or(r.Duplicates, Drop)),
		reason: fmt.Sprintf("duplicate %v after the first, window %v", ms(e.time-first.first), ms(window))}
}

// judgeByTime judges an event that is too far in the future or too old; it returns nil for any other event. It
// sets e.time to the event time that counts.
func (f *fold) judgeByTime(e *envelope, r *Route, present int64) *judgement {
	if latest := add(present, r.Skew); e.time > latest {
		if r.Future != Clamp {
			return &judgement{verdict: "invalid", topic: r.DeadLetter,
				reason: fmt.Sprintf("event time %d is more than %v ahead of the broker's %d", e.time, ms(r.Skew), present)}
		}
		e.time = latest
	}
	if reason := f.lateness(e, r.NamespaceID, r.Window, r.Grace); reason != "" {
		return &judgement{verdict: "late", topic: r.to(r.Late), reason: reason}
	}
	return nil
}

// to returns the topic to which a policy sends a record; "" if it sends it to none.
func (r *Route) to(p Policy) string {
	switch p {
	case Forward:
		return r.Output
	case To:
		return r.DuplicatesTo
	case Drop:
		return ""
	}
	return r.DeadLetter
}

func ms(n int64) time.Duration { return time.Duration(n) * time.Millisecond }

// add returns a+b or, if that overflows, the nearest int64.
func add(a, b int64) int64 {
	switch {
	case b > 0 && a > math.MaxInt64-b:
		return math.MaxInt64
	case b < 0 && a < math.MinInt64-b:
		return math.MinInt64
	}
	return a + b
}
