package demo

import (
	"fmt"
	"slices"
	"strconv"

	"github.com/twmb/franz-go/pkg/kgo"
)

// ledger is the demo's own account of what was produced. It is kept by the
// identities the generator gave, never by dedup keys, so that it can convict
// oncebus of a wrong key as well as of a lost or doubled event.
type ledger struct {
	produced []entry
	events   []eventEntry
	bad      int // bad records produced

	passed  int // events found in their output topics
	invalid int // bad records found in the dead-letter topic
	missing int // events and bad records that are nowhere
	extra   int // records beyond the one of each
	altered int // records that are not what was produced, or not the first copy
	faults  []string
}

// entry is one produced record, found by its number.
type entry struct {
	event  int
	route  string
	digest uint64 // its fingerprint
	// first: no earlier copy of its event went to the same partition, nor
	// was one there before a pause; only such a record may pass.
	first bool
	found int // times it was read back
}

// eventEntry is one produced event.
type eventEntry struct {
	partitions []int32
	found      int // records of it in its output topic
}

// faultsMax bounds how many faults are shown one by one.
const faultsMax = 10

// add enters records and marks each with its number, in the order in which they
// are then produced. Of records added by a later call none can be a first copy.
func (l *ledger) add(records []sentRecord) {
	later := len(l.produced) > 0
	for _, r := range records {
		number := len(l.produced)
		r.Headers = append(r.Headers, kgo.RecordHeader{Key: headerRecord, Value: strconv.AppendInt(nil, int64(number), 10)})
		e := entry{event: r.event, route: r.route, digest: fingerprint(r.Record)}
		if r.event == badEvent {
			l.bad++
		} else {
			for len(l.events) <= r.event {
				l.events = append(l.events, eventEntry{})
			}
			event := &l.events[r.event]
			e.first = !later && !slices.Contains(event.partitions, r.Partition)
			event.partitions = append(event.partitions, r.Partition)
		}
		l.produced = append(l.produced, e)
	}
}

// unique is how many events must come out, duplicates how many copies must not.
func (l *ledger) unique() int     { return len(l.events) }
func (l *ledger) duplicates() int { return len(l.produced) - len(l.events) - l.bad }

// output judges a record read from the output topic of route.
func (l *ledger) output(route string, r *kgo.Record) {
	e, ok := l.find(r)
	if !ok || e.event == badEvent {
		l.fault(&l.extra, r, "nothing of this kind was produced")
		return
	}
	event := &l.events[e.event]
	if event.found++; event.found == 1 {
		l.passed++
	}
	switch verdict := header(r, "oncebus-verdict"); {
	case event.found > 1:
		l.fault(&l.extra, r, "another copy of the event stands in the output")
	case e.digest != fingerprint(r):
		l.fault(&l.altered, r, "key, value, headers or time are not as produced")
	case !e.first:
		l.fault(&l.altered, r, "an earlier copy should have passed instead")
	case verdict != "unique" || header(r, "oncebus-route") != route || e.route != route:
		l.fault(&l.altered, r, fmt.Sprintf("verdict %q, route %q", verdict, header(r, "oncebus-route")))
	}
}

// deadLetter judges a record read from the dead-letter topic.
func (l *ledger) deadLetter(r *kgo.Record) {
	e, ok := l.find(r)
	if !ok || e.event != badEvent {
		l.fault(&l.extra, r, "not a bad record, reason "+strconv.Quote(header(r, "oncebus-reason")))
		return
	}
	e.found++
	switch {
	case e.found > 1:
		l.fault(&l.extra, r, "the bad record was there before")
		return
	case e.digest != fingerprint(r):
		l.fault(&l.altered, r, "key, value, headers or time are not as produced")
	case header(r, "oncebus-reason") == "":
		l.fault(&l.altered, r, "no reason is given")
	}
	l.invalid++
}

// close counts what was produced and never found.
func (l *ledger) close() {
	for i, e := range l.events {
		if e.found == 0 {
			l.missing++
			l.note("event %d (its copies went to partitions %v) is missing", i, e.partitions)
		}
	}
	for i, e := range l.produced {
		if e.event == badEvent && e.found == 0 {
			l.missing++
			l.note("bad record %d (route %s) is missing", i, e.route)
		}
	}
}

func (l *ledger) find(r *kgo.Record) (*entry, bool) {
	number, err := strconv.Atoi(header(r, headerRecord))
	if err != nil || number < 0 || number >= len(l.produced) {
		return nil, false
	}
	return &l.produced[number], true
}

func (l *ledger) fault(count *int, r *kgo.Record, what string) {
	*count++
	l.note("%s/%d/%d (record %s): %s", r.Topic, r.Partition, r.Offset, header(r, headerRecord), what)
}

func (l *ledger) note(format string, args ...any) {
	if len(l.faults) < faultsMax {
		l.faults = append(l.faults, fmt.Sprintf(format, args...))
	}
}

// header returns the value of the only header of that name; "" where there is
// none, or more than one to choose from.
func header(r *kgo.Record, name string) string {
	var value string
	n := 0
	for _, h := range r.Headers {
		if h.Key == name {
			value = string(h.Value)
			n++
		}
	}
	if n != 1 {
		return ""
	}
	return value
}
