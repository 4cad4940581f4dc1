//go:build unix

package main_test

import (
	"bytes"
	"encoding/hex"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"oncebus/processor/wire"

	"github.com/twmb/franz-go/pkg/kgo"
)

// The ledger verifies the real-Kafka tests: it compares the output with the sent
// records. It shares no code with the product and derives no dedup keys. Two headers
// of every record have its event and its number; oncebus does not change them.
const (
	headerTestEvent = "test-event" // the event of the record
	headerTestCopy  = "test-copy"  // the record's number among the event's records, from 0
)

// ledger has the sent records.
type ledger struct {
	copies map[string][]*kgo.Record // by event, in the order made
	events []string                 // in the order made
	asks   bool                     // the routes ask for headers on unique events
}

func newLedger() *ledger { return &ledger{copies: map[string][]*kgo.Record{}} }

// add marks r as the next record of event and adds it.
func (l *ledger) add(event string, r *kgo.Record) *kgo.Record {
	n := len(l.copies[event])
	if n == 0 {
		l.events = append(l.events, event)
	}
	r.Headers = append(r.Headers,
		kgo.RecordHeader{Key: headerTestEvent, Value: []byte(event)},
		kgo.RecordHeader{Key: headerTestCopy, Value: []byte(strconv.Itoa(n))})
	l.copies[event] = append(l.copies[event], r)
	return r
}

// records returns the number of sent records.
func (l *ledger) records() int {
	n := 0
	for _, copies := range l.copies {
		n += len(copies)
	}
	return n
}

// match returns the sent record that was emitted as out.
func (l *ledger) match(out *kgo.Record) (event string, sent *kgo.Record, err error) {
	event = headerOf(out, headerTestEvent)
	n, err := strconv.Atoi(headerOf(out, headerTestCopy))
	if err != nil || n < 0 || n >= len(l.copies[event]) {
		return event, nil, fmt.Errorf("%s: never sent (event %q, copy %q)", at(out), event, headerOf(out, headerTestCopy))
	}
	return event, l.copies[event][n], nil
}

// checkOnce fails the test with the errors of once, and returns the emission of every event.
func (l *ledger) checkOnce(t *testing.T, out []*kgo.Record) map[string]*kgo.Record {
	t.Helper()
	found, wrong := l.once(out)
	complain(t, wrong, "%d events sent in %d records, %d records emitted", len(l.events), l.records(), len(out))
	return found
}

// once returns the mistakes in out. It must contain every event once, as one of its
// records unchanged, with the verdict unique, and no two events with the same dedup
// key. once also returns the emitted record of every event.
func (l *ledger) once(out []*kgo.Record) (found map[string]*kgo.Record, wrong []string) {
	found = map[string]*kgo.Record{}
	keys := map[string]string{}
	for _, r := range out {
		event, sent, err := l.match(r)
		if err != nil {
			wrong = append(wrong, "extra: "+err.Error())
			continue
		}
		if first := found[event]; first != nil {
			wrong = append(wrong, fmt.Sprintf("extra: event %s at %s, already at %s", event, at(r), at(first)))
			continue
		}
		found[event] = r
		wrong = append(wrong, touched(sent, r)...)
		if i := slices.IndexFunc(r.Headers, func(h kgo.RecordHeader) bool { return wire.IsReserved(h.Key) }); !l.asks {
			if i >= 0 {
				wrong = append(wrong, fmt.Sprintf("event %s at %s has header %s, and its route asks for none", event, at(r), r.Headers[i].Key))
			}
			continue
		}
		if v := headerOf(r, "oncebus-verdict"); v != "unique" {
			wrong = append(wrong, fmt.Sprintf("event %s at %s has verdict %q, want unique", event, at(r), v))
		}
		key := headerOf(r, "oncebus-key")
		if b, err := hex.DecodeString(key); err != nil || len(b) != 32 || key != strings.ToLower(key) {
			wrong = append(wrong, fmt.Sprintf("event %s at %s has oncebus-key %q, want 64 lower-case hex digits", event, at(r), key))
		} else if other, taken := keys[key]; taken {
			wrong = append(wrong, fmt.Sprintf("events %s and %s have the same dedup key %s", other, event, key))
		}
		keys[key] = event
	}
	missing := slices.DeleteFunc(slices.Clone(l.events), func(e string) bool { return found[e] != nil })
	for _, event := range missing {
		wrong = append(wrong, fmt.Sprintf("missing: event %s, sent %d times", event, len(l.copies[event])))
	}
	return found, wrong
}

// checkEmitted compares outputs with numbered ids: each of prefix-0 to prefix-(sent-1) is the key of
// one record in all of them together, and no key is that of two.
func checkEmitted(t *testing.T, prefix string, sent int, outputs ...[]*kgo.Record) {
	t.Helper()
	lost, doubled, keys := emittedOnce(prefix, sent, outputs...)
	t.Logf("%s: %d ids sent: %d lost; %d keys emitted, %d twice", prefix, sent, lost, keys, doubled)
	if lost+doubled > 0 {
		t.Errorf("%s: of %d ids %d are lost; of %d keys %d are doubled", prefix, sent, lost, keys, doubled)
	}
}

func emittedOnce(prefix string, sent int, outputs ...[]*kgo.Record) (lost, doubled, keys int) {
	emitted := map[string]int{}
	for _, records := range outputs {
		for _, r := range records {
			emitted[string(r.Key)]++
		}
	}
	for i := range sent {
		if emitted[fmt.Sprintf("%s-%d", prefix, i)] == 0 {
			lost++
		}
	}
	for _, n := range emitted {
		if n > 1 {
			doubled++
		}
	}
	return lost, doubled, len(emitted)
}

// TestEmittedOnceCounts: an id that is missing, and one that two outputs have.
func TestEmittedOnceCounts(t *testing.T) {
	keyed := func(keys ...string) (records []*kgo.Record) {
		for _, key := range keys {
			records = append(records, &kgo.Record{Key: []byte(key)})
		}
		return records
	}
	lost, doubled, keys := emittedOnce("t", 4, keyed("t-0", "t-1", "other"), keyed("t-3", "t-1"))
	if lost != 1 || doubled != 1 || keys != 4 {
		t.Errorf("%d lost, %d doubled, %d keys, want 1, 1 and 4", lost, doubled, keys)
	}
}

// checkFirst checks that the first record of every event is emitted, for input with
// all records of an event on one partition.
func (l *ledger) checkFirst(t *testing.T, emitted map[string]*kgo.Record) {
	t.Helper()
	var wrong []string
	for event, r := range emitted {
		first := slices.MinFunc(l.copies[event], func(a, b *kgo.Record) int { return int(a.Offset - b.Offset) })
		if got, want := headerOf(r, headerTestCopy), headerOf(first, headerTestCopy); got != want {
			wrong = append(wrong, fmt.Sprintf("event %s was emitted as record %s, but record %s was first (at %s)", event, got, want, at(first)))
		}
	}
	complain(t, wrong, "%d events emitted", len(emitted))
}

// checkOrder checks that records with the same record key are in one partition and
// their ranks rise. out is ordered by partition and offset.
func checkOrder(t *testing.T, out []*kgo.Record, rank func(*kgo.Record) int64) {
	t.Helper()
	complain(t, disorder(out, rank), "%d records emitted", len(out))
}

func disorder(out []*kgo.Record, rank func(*kgo.Record) int64) (wrong []string) {
	last := map[string]*kgo.Record{}
	for _, r := range out {
		prior := last[string(r.Key)]
		last[string(r.Key)] = r
		switch {
		case prior == nil:
		case prior.Partition != r.Partition:
			wrong = append(wrong, fmt.Sprintf("record key %q is at %s and at %s: two partitions have no order", r.Key, at(prior), at(r)))
		case rank(prior) >= rank(r):
			wrong = append(wrong, fmt.Sprintf("record key %q: rank %d at %s, then rank %d at %s", r.Key, rank(prior), at(prior), rank(r), at(r)))
		}
	}
	return wrong
}

// touched returns the differences between sent and out: key, value, timestamp in
// milliseconds, and the headers of others, in order.
func touched(sent, out *kgo.Record) []string {
	var wrong []string
	differ := func(what string, got, want any) {
		wrong = append(wrong, fmt.Sprintf("%s: %s is %v, sent as %v", at(out), what, got, want))
	}
	if !bytes.Equal(sent.Key, out.Key) || (sent.Key == nil) != (out.Key == nil) {
		differ("record key", strconv.Quote(string(out.Key)), strconv.Quote(string(sent.Key)))
	}
	if !bytes.Equal(sent.Value, out.Value) || (sent.Value == nil) != (out.Value == nil) {
		differ("value", shorten(out.Value), shorten(sent.Value))
	}
	if got, want := out.Timestamp.UnixMilli(), sent.Timestamp.UnixMilli(); got != want {
		differ("timestamp", got, want)
	}
	if got, want := foreignHeaders(out), foreignHeaders(sent); got != want {
		differ("headers", got, want)
	}
	return wrong
}

// foreignHeaders formats the headers of a record without those of oncebus.
func foreignHeaders(r *kgo.Record) string {
	var b strings.Builder
	for _, h := range r.Headers {
		if !strings.HasPrefix(strings.ToLower(h.Key), "oncebus-") {
			fmt.Fprintf(&b, "%q=%q(%t) ", h.Key, shorten(h.Value), h.Value == nil)
		}
	}
	return b.String()
}

// headerOf returns the value of the only header of that name, "" without one, and an error text if there are more.
func headerOf(r *kgo.Record, name string) string {
	value, n := "", 0
	for _, h := range r.Headers {
		if h.Key == name {
			value = string(h.Value)
			n++
		}
	}
	if n > 1 {
		return fmt.Sprintf("(%d headers %s)", n, name)
	}
	return value
}

// at formats a record's position like the headers of oncebus.
func at(r *kgo.Record) string { return fmt.Sprintf("%s/%d/%d", r.Topic, r.Partition, r.Offset) }

// shorten formats a long value as its start, end and length.
func shorten(b []byte) string {
	const end = 60
	if len(b) <= 2*end {
		return string(b)
	}
	return fmt.Sprintf("%s...%s (%d bytes)", b[:end], b[len(b)-end:], len(b))
}

// complain fails the test if wrong is not empty, with the number of mistakes and the
// first of them.
func complain(t *testing.T, wrong []string, format string, args ...any) {
	t.Helper()
	if len(wrong) == 0 {
		return
	}
	const shown = 12
	more := ""
	if len(wrong) > shown {
		more = fmt.Sprintf("\n... and %d more", len(wrong)-shown)
	}
	t.Errorf("%s: %d mistakes:\n%s%s", fmt.Sprintf(format, args...), len(wrong), strings.Join(wrong[:min(len(wrong), shown)], "\n"), more)
}

// TestLedgerComplains: the ledger finds every kind of mistake in an output.
func TestLedgerComplains(t *testing.T) {
	l := newLedger()
	l.asks = true
	var sent []*kgo.Record
	for i := range 3 {
		r := &kgo.Record{Topic: "raw", Key: []byte("k"), Value: fmt.Appendf(nil, "v%d", i), Timestamp: time.UnixMilli(int64(i)),
			Headers: []kgo.RecordHeader{{Key: "x", Value: []byte("1")}, {Key: "x"}, {Key: "oncebus-route", Value: []byte("forged")}}}
		sent = append(sent, l.add(fmt.Sprintf("e%d", i), r))
	}
	// emissions is a correct output.
	emissions := func() []*kgo.Record {
		var out []*kgo.Record
		for i, r := range sent {
			headers := slices.Clone(r.Headers)
			headers[2] = kgo.RecordHeader{Key: "oncebus-verdict", Value: []byte("unique")}
			headers = append(headers, kgo.RecordHeader{Key: "oncebus-key", Value: fmt.Appendf(nil, "%064x", i)})
			out = append(out, &kgo.Record{Topic: "out", Offset: int64(i), Key: r.Key, Value: r.Value, Timestamp: r.Timestamp, Headers: headers})
		}
		return out
	}
	rank := func(r *kgo.Record) int64 { return r.Timestamp.UnixMilli() }
	if _, wrong := l.once(emissions()); len(wrong) > 0 {
		t.Errorf("a correct output: %v", wrong)
	}
	if wrong := disorder(emissions(), rank); len(wrong) > 0 {
		t.Errorf("an output in order: %v", wrong)
	}
	for want, spoil := range map[string]func(out []*kgo.Record) []*kgo.Record{
		"missing: event e2":   func(out []*kgo.Record) []*kgo.Record { return out[:2] },
		"extra: event e0":     func(out []*kgo.Record) []*kgo.Record { return append(out, emissions()[0]) },
		"never sent":          func(out []*kgo.Record) []*kgo.Record { return append(out, &kgo.Record{}) },
		"record key is":       func(out []*kgo.Record) []*kgo.Record { out[1].Key = nil; return out },
		"value is":            func(out []*kgo.Record) []*kgo.Record { out[1].Value = []byte{}; return out },
		"timestamp is":        func(out []*kgo.Record) []*kgo.Record { out[1].Timestamp = time.UnixMilli(9); return out },
		"headers is":          func(out []*kgo.Record) []*kgo.Record { out[1].Headers[1].Value = []byte{}; return out },
		`verdict ""`:          func(out []*kgo.Record) []*kgo.Record { out[1].Headers[2].Key = "oncebus-route"; return out },
		"64 lower-case hex":   func(out []*kgo.Record) []*kgo.Record { last(out[1].Headers).Value = []byte("FF"); return out },
		"have the same dedup": func(out []*kgo.Record) []*kgo.Record { *last(out[1].Headers) = *last(out[0].Headers); return out },
		"(2 headers oncebus-ve": func(out []*kgo.Record) []*kgo.Record {
			out[1].Headers = append(out[1].Headers, out[1].Headers[2])
			return out
		},
	} {
		if _, wrong := l.once(spoil(emissions())); !strings.Contains(strings.Join(wrong, "\n"), want) {
			t.Errorf("mistakes %q do not contain %q", wrong, want)
		}
	}
	swapped := emissions()
	swapped[0], swapped[1] = swapped[1], swapped[0]
	if len(disorder(swapped, rank)) == 0 {
		t.Error("records out of order are not found")
	}
	moved := emissions()
	moved[1].Partition = 1
	if len(disorder(moved, rank)) == 0 {
		t.Error("records of one key on two partitions are not found")
	}
}

func last(headers []kgo.RecordHeader) *kgo.RecordHeader { return &headers[len(headers)-1] }
