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

// A position is that of a raw record; topic is the topic's number in the manifest.
type position struct {
	topic     uint16
	partition int32
	offset    int64
}

// A row is the state of one dedup key: when and where it was first seen.
type row struct {
	first       int64
	at          position
	namespaceID uint8
	earlier     bool  // of an earlier window of its key
	again       bool  // stored before, with another digest or link
	link        uint8 // beforeUnknown and so on
	before      int64 // when the window before was first seen, with beforeKnown
}

// value is the row in the changelog: version | flags | namespace id |
// status "seen" | first | topic | partition | offset | link.
func (r *row) value(dst []byte) []byte {
	dst = append(dst, 1, r.flags(), r.namespaceID, 0)
	dst = binary.AppendVarint(dst, r.first)
	dst = binary.AppendUvarint(dst, uint64(r.at.topic))
	dst = binary.AppendUvarint(dst, uint64(r.at.partition))
	return r.appendLink(binary.AppendUvarint(dst, uint64(r.at.offset)))
}

// A fold is the state of one partition of the repartition topic after some of
// its records.
type fold struct {
	rows map[digest]row
	// windows are the rows of a key, the latest first, down to one that says nothing of the window
	// before. linked reports that the task is at level 2: only of others and of seeds are such rows.
	windows map[digest][]row
	linked  bool
	times   [256]int64 // stream time by namespace id
	seen    [256]bool  // the namespace has a stream time
	// sources are those that the stream time of a namespace follows; it follows the highest event
	// time without any.
	sources map[uint8]*sourceTimes
	live    map[uint8]*liveKeys
	spans   spans
}

func newFold() *fold {
	return &fold{rows: map[digest]row{}, windows: map[digest][]row{}, sources: map[uint8]*sourceTimes{}, live: map[uint8]*liveKeys{}}
}

// A judgement is the verdict on a record and its consequences.
type judgement struct {
	verdict string
	topic   string // the output; "" for none
	reason  string
	first   *row // the first event, of a duplicate
	row     row  // the row to write if the topic accepts the record
	wrote   bool
	// replaces is the row that counts until row replaces it; nil for a new key.
	replaces *row
	above    int   // how many windows of the key are later than an earlier one
	live     int64 // keys, of an event beyond a limit
}

// judge applies the rules of the product's section 6, "Time". It sets e.time to the
// event time that counts.
func (f *fold) judge(e *envelope, r *Route, present int64) judgement {
	last, running := f.times[r.NamespaceID], f.seen[r.NamespaceID]
	window, grace := f.spans.windowOf(r.NamespaceID, r.Window, r.Grace)
	own := e.time
	if j := f.judgeByTime(e, r, present); j != nil {
		return *j
	}
	if e.time == own { // a clamped event moves nothing
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

// duplicate is the judgement on an event in the window of a row.
func (r *Route) duplicate(e *envelope, first row, window int64) judgement {
	return judgement{verdict: "duplicate", first: &first, topic: r.to(cmp.Or(r.Duplicates, Drop)),
		reason: fmt.Sprintf("duplicate %v after the first, window %v", ms(e.time-first.first), ms(window))}
}

// judgeByTime judges an event from the future, or too old; nil for any other. It sets
// e.time to the event time that counts.
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

// to returns the topic to which a policy sends a record; "" for none.
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

// add returns a+b, or on overflow the nearest int64.
func add(a, b int64) int64 {
	switch {
	case b > 0 && a > math.MaxInt64-b:
		return math.MaxInt64
	case b < 0 && a < math.MinInt64-b:
		return math.MinInt64
	}
	return a + b
}
