package oracle

import (
	"cmp"
	"encoding/binary"
	"errors"
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

// An envelope is the router's header of a record in the repartition topic.
type envelope struct {
	digest          digest
	key             [32]byte
	time, timestamp int64 // of the event and of the raw record, ms
	from            position
	route           []byte
}

// Flags of an envelope.
const flagOutcome, flagDetails = 1, 8

// openEnvelope reads: version 1 | no flags | digest 16 | dedup key 32 | event
// time, varint | timestamp, varint | topic, partition, offset, uvarints |
// route's name.
func openEnvelope(r *Record) (e envelope, err error) {
	if len(r.Headers) == 0 || r.Headers[0].Key != "oncebus-envelope" {
		return e, errors.New("has no envelope as its first header")
	}
	b := r.Headers[0].Value
	if len(b) < 50 || b[0] != 1 || b[1] != 0 {
		return e, fmt.Errorf("has an invalid envelope: %x", b)
	}
	copy(e.digest[:], b[2:])
	copy(e.key[:], b[18:])
	f := fields{rest: b[50:]}
	e.time, e.timestamp = f.signed(), f.signed()
	e.from = position{uint16(f.unsigned(1 << 16)), int32(f.unsigned(1 << 31)), int64(f.unsigned(1 << 63))}
	if e.route = f.rest; f.bad {
		return e, fmt.Errorf("has an invalid envelope: %x", b)
	}
	return e, nil
}

// fields reads varints from a slice.
type fields struct {
	rest []byte
	bad  bool
}

func (f *fields) take(n int) {
	if n <= 0 {
		f.bad, f.rest = true, nil
		return
	}
	f.rest = f.rest[n:]
}

func (f *fields) signed() int64 {
	v, n := binary.Varint(f.rest)
	f.take(n)
	return v
}

func (f *fields) unsigned(below uint64) uint64 {
	v, n := binary.Uvarint(f.rest)
	f.take(n)
	f.bad = f.bad || v >= below
	return v
}

// entries skips times by namespace id.
func (f *fields) entries() {
	for n := f.unsigned(513); n > 0 && !f.bad; n-- {
		f.take(min(1, len(f.rest)))
		f.signed()
	}
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
}

func newFold() *fold { return &fold{rows: map[digest]row{}} }

// A judgement is the verdict on a record and its consequences.
type judgement struct {
	verdict string
	topic   string // the output; "" for none
	reason  string
	first   *row // the first event, of a duplicate
	row     row  // the row to write if the topic accepts the record
	wrote   bool
}

// judge applies the rules of the product's section 6, "Time". It sets e.time to the
// event time that counts.
func (f *fold) judge(e *envelope, r *Route, present int64) judgement {
	last, running := f.times[r.NamespaceID], f.seen[r.NamespaceID]
	clamped := false
	if latest := add(present, r.Skew); e.time > latest {
		if r.Future != Clamp {
			return judgement{verdict: "invalid", topic: r.DeadLetter,
				reason: fmt.Sprintf("event time %d is more than %v ahead of the broker's %d", e.time, ms(r.Skew), present)}
		}
		e.time, clamped = latest, true
	}
	late := func() judgement {
		return judgement{verdict: "late", topic: r.to(r.Late),
			reason: fmt.Sprintf("event time %d cannot be judged: stream time is %d, window %v, grace %v", e.time, last, ms(r.Window), ms(r.Grace))}
	}
	if running && e.time < add(last, -add(r.Window, r.Grace)) {
		return late()
	}
	switch {
	case clamped: // moves nothing
	case !running || e.time > last:
		f.times[r.NamespaceID], f.seen[r.NamespaceID] = e.time, true
	}
	next := row{first: e.time, at: e.from, namespaceID: r.NamespaceID}
	prior, known := f.rows[e.digest]
	evicted := running && prior.first < add(last, -add(add(r.Window, r.Window), r.Grace))
	switch {
	case !known || evicted:
		return judgement{verdict: "unique", topic: r.Output, row: next, wrote: true}
	case e.time < add(prior.first, -r.Window):
		return late()
	case e.time > add(prior.first, r.Window):
		return judgement{verdict: "after_window", topic: r.Output, row: next, wrote: true}
	}
	return judgement{verdict: "duplicate", first: &prior, topic: r.to(cmp.Or(r.Duplicates, Drop)),
		reason: fmt.Sprintf("duplicate %v after the first, window %v", ms(e.time-prior.first), ms(r.Window))}
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

// A checkpoint is a task's position in its input, from its changelog.
type checkpoint struct {
	next, sequence int64
	floor          int64 // changelog offset below which no row decides
	times          [256]int64
	seen           [256]bool
}

// Flags of a checkpoint.
const flagCounts, flagFloor, flagFences, flagAhead = 1, 8, 32, 64

// openCheckpoint reads: version 1 | flags | next, leader epoch, sequence, varints | floor,
// uvarint | number of fences, uvarint, and for each a uvarint and entries | entries |
// length of the counts of keys, uvarint, and these | for each namespace that has one:
// namespace id | stream time, varint. Entries are their number, uvarint, and for each a
// namespace id and a varint.
func openCheckpoint(b []byte) (c checkpoint, err error) {
	if len(b) < 2 || b[0] != 1 || b[1]&^(flagCounts|flagFloor|flagFences|flagAhead) != 0 {
		return c, fmt.Errorf("is not a checkpoint: %x", b)
	}
	f := fields{rest: b[2:]}
	c.next = f.signed()
	f.signed()
	c.sequence = f.signed()
	if b[1]&flagFloor != 0 {
		c.floor = int64(f.unsigned(math.MaxInt64))
	}
	if b[1]&flagFences != 0 {
		for n := f.unsigned(17); n > 0 && !f.bad; n-- {
			f.unsigned(math.MaxInt64)
			f.entries()
		}
	}
	if b[1]&flagAhead != 0 {
		f.entries()
	}
	if b[1]&flagCounts != 0 {
		n := f.unsigned(1 << 31)
		if n > uint64(len(f.rest)) {
			return c, fmt.Errorf("is not a checkpoint: %x", b)
		}
		f.rest = f.rest[n:]
	}
	for len(f.rest) > 0 {
		namespaceID := f.rest[0]
		f.rest = f.rest[1:]
		c.times[namespaceID], c.seen[namespaceID] = f.signed(), true
	}
	if f.bad {
		return c, fmt.Errorf("is not a checkpoint: %x", b)
	}
	return c, nil
}
