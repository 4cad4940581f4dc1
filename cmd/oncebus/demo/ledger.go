package demo

import (
	"fmt"
	"slices"
	"strconv"

	"oncebus/processor/wire"

	"github.com/twmb/franz-go/pkg/kgo"
)

// ledger records what the demo has produced and verifies the output. It identifies events by the generator's
// numbers and never by dedup keys, so that it detects a wrong key as well as a lost or repeated event.
type ledger struct {
	produced []entry
	events   []eventEntry
	bad      int // bad records produced

	emitted int // events found in their output topics
	invalid int // bad records found in the dead-letter topic
	missing int // events and bad records that are in no topic
	extra   int // further records of an event that was found before
	altered int // records that differ from the produced record, or that may not be emitted because they are not the first
	faults  []string
}

// entry is a produced record. Its index in ledger.produced is the number of the record.
type entry struct {
	event  int
	route  string
	digest uint64 // fingerprint of the record
	// first reports that the record may be emitted: no record of the same event was produced before it to the
	// same partition or, if it follows after the pause, at all.
	first bool
	found int // how often the ledger has read it
}

// eventEntry is a produced event.
type eventEntry struct {
	partitions []int32
	found      int // how many records of the event the output topic has
}

// faultsMax is how many faults the report lists.
const faultsMax = 10

// add records what will be produced, in this order, and sets the number of each record. Records that follow
// after the pause are retries, and never the first record of their event.
func (l *ledger) add(records []sentRecord, afterPause bool) {
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
			e.first = !afterPause && !slices.Contains(event.partitions, r.Partition)
			event.partitions = append(event.partitions, r.Partition)
		}
		l.produced = append(l.produced, e)
	}
}

// unique returns how many events must be emitted, duplicates how many records must not be emitted.
func (l *ledger) unique() int     { return len(l.events) }
func (l *ledger) duplicates() int { return len(l.produced) - len(l.events) - l.bad }

// output verifies a record in the output topic of this route.
func (l *ledger) output(route string, r *kgo.Record) {
	e, ok := l.find(r)
	if !ok || e.event == badEvent {
		l.fault(&l.extra, r, "it was not produced")
		return
	}
	event := &l.events[e.event]
	if event.found++; event.found == 1 {
		l.emitted++
	}
	switch own := slices.IndexFunc(r.Headers, func(h kgo.RecordHeader) bool { return wire.IsReserved(h.Key) }); {
	case event.found > 1:
		l.fault(&l.extra, r, "another record of the event was emitted")
	case e.digest != fingerprint(r):
		l.fault(&l.altered, r, "key, value, headers or time differ from the produced record")
	case !e.first:
		l.fault(&l.altered, r, "it is not the first of its partition")
	case own >= 0:
		l.fault(&l.altered, r, fmt.Sprintf("it has the header %s, and its route asks for none", r.Headers[own].Key))
	case e.route != route:
		l.fault(&l.altered, r, "it was produced to route "+e.route)
	}
}

// deadLetter verifies a record of the dead-letter topic.
func (l *ledger) deadLetter(r *kgo.Record) {
	e, ok := l.find(r)
	if !ok || e.event != badEvent {
		l.fault(&l.extra, r, "it was produced as an event, reason "+strconv.Quote(header(r, "oncebus-reason")))
		return
	}
	e.found++
	switch {
	case e.found > 1:
		l.fault(&l.extra, r, "it is there twice")
		return
	case e.digest != fingerprint(r):
		l.fault(&l.altered, r, "key, value, headers or time differ from the produced record")
	case header(r, "oncebus-reason") == "":
		l.fault(&l.altered, r, "it has no reason")
	}
	l.invalid++
}

// close counts the events and bad records that are missing.
func (l *ledger) close() {
	for i, e := range l.events {
		if e.found == 0 {
			l.missing++
			l.note("event %d (produced to partitions %v) is missing", i, e.partitions)
		}
	}
	for i, e := range l.produced {
		if e.event == badEvent && e.found == 0 {
			l.missing++
			l.note("bad record %d (route %s) is missing", i, e.route)
		}
	}
}

// find returns the entry of a record, by the number that the record carries.
func (l *ledger) find(r *kgo.Record) (*entry, bool) {
	number, err := strconv.Atoi(header(r, headerRecord))
	if err != nil || number < 0 || number >= len(l.produced) {
		return nil, false
	}
	return &l.produced[number], true
}

// fault counts a fault of record r and keeps it for the report.
func (l *ledger) fault(count *int, r *kgo.Record, what string) {
	*count++
	l.note("%s/%d/%d (record %s): %s", r.Topic, r.Partition, r.Offset, header(r, headerRecord), what)
}

// note keeps the first faultsMax faults for the report.
func (l *ledger) note(format string, args ...any) {
	if len(l.faults) < faultsMax {
		l.faults = append(l.faults, fmt.Sprintf(format, args...))
	}
}

// header returns the value of the header with this name; "" if the record has no such header or several.
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
