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
}

// value is the row in the changelog: version | no flags | namespace id |
// status "seen" | first | topic | partition | offset.
func (r *row) value(dst []byte) []byte {
	dst = append(dst, 1, 0, r.namespaceID, 0)
	dst = binary.AppendVarint(dst, r.first)
	dst = binary.AppendUvarint(dst, uint64(r.at.topic))
	dst = binary.AppendUvarint(dst, uint64(r.at.partition))
	return binary.AppendUvarint(dst, uint64(r.at.offset))
}

// A fold is the state of one partition of the repartition topic after some of
// its records.
type fold struct {
	rows  map[digest]row
	times [256]int64 // stream time by namespace id
	seen  [256]bool  // the namespace has a stream time
	live  map[uint8]*liveKeys
	spans spans
}

func newFold() *fold { return &fold{rows: map[digest]row{}, live: map[uint8]*liveKeys{}} }

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
	if clamped := e.time != own; !clamped && (!running || e.time > last) { // a clamped event moves nothing
		f.times[r.NamespaceID], f.seen[r.NamespaceID] = e.time, true
	}
	next := row{first: e.time, at: e.from, namespaceID: r.NamespaceID}
	prior, known := f.rows[e.digest]
	switch {
	case !known || f.absent(&prior, window, grace, last, running):
		if r.LiveKeys > 0 {
			if n := f.liveKeys(r, last, running); n >= r.LiveKeys {
				return judgement{verdict: "limited", topic: r.to(r.OnLimit), live: n}
			}
		}
		return judgement{verdict: "unique", topic: r.Output, row: next, wrote: true}
	case e.time < add(prior.first, -window):
		return judgement{verdict: "late", topic: r.to(r.Late),
			reason: fmt.Sprintf("event time %d cannot be judged: the first event under the key has time %d, window %v", e.time, prior.first, ms(window))}
	case e.time > add(prior.first, window):
		return judgement{verdict: "after_window", topic: r.Output, row: next, wrote: true, replaces: &prior}
	}
	return judgement{verdict: "duplicate", first: &prior, topic: r.to(cmp.Or(r.Duplicates, Drop)),
		reason: fmt.Sprintf("duplicate %v after the first, window %v", ms(e.time-prior.first), ms(window))}
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
	if reason := f.lateness(r.NamespaceID, r.Window, r.Grace, e.time); reason != "" {
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
