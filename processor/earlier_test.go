package processor_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"oncebus/processor/move"
)

// earlierRoutes has a route whose events may be far behind stream time.
const earlierRoutes = `routes:
  - name: signals
    topics: [signals.raw]
    key:
      - field: id
    window: 1h
    grace: 24h
    output: signals.unique
    headers: [route, key, verdict]
    duplicates: {to: signals.duplicates}
    dead_letter: dead
`

// windowEvents makes the events of n keys at this time (in their records: ms).
func windowEvents(n int, at time.Duration) (records []*kgo.Record) {
	for i := range n {
		records = append(records, signal(fmt.Sprint("key-", i), 0, testTime+at.Milliseconds()))
	}
	return records
}

// TestEarlierWindowsMoveAndAreForgotten protects the rows of a key's earlier windows: when the app moves, they go
// where the events of the key go, the command forget erases them, and an export has each key once.
func TestEarlierWindowsMoveAndAreForgotten(t *testing.T) {
	t.Parallel()
	const keys = 40
	b := newBench(t, earlierRoutes)
	cfg := b.config("one")
	i := b.ready(b.start(cfg))
	for _, at := range []time.Duration{5 * time.Hour, 0, 8 * time.Hour} {
		b.produce(windowEvents(keys, at)...)
		b.drain(i, "signals.raw")
	}
	if n := len(b.read("signals.unique")); n != 3*keys {
		t.Fatalf("%d events in the output, want %d", n, 3*keys)
	}
	b.promiseHeld(cfg)
	b.move(move.Options{Partitions: 7, Limit: time.Minute, By: "tester"})
	b.awaitGeneration(i, 2)
	for _, at := range []time.Duration{0, 5 * time.Hour, 8 * time.Hour} {
		b.produce(windowEvents(keys, at+time.Minute)...)
	}
	b.drain(i, "signals.raw")
	if unique, copies := len(b.read("signals.unique")), len(b.read("signals.duplicates")); unique != 3*keys || copies != 3*keys {
		t.Errorf("after the move: %d events in the output and %d copies, want %d of each", unique, copies, 3*keys)
	}
	if _, exported := b.export(b.transfers(cfg)); exported.Rows != keys {
		t.Errorf("the export has %d rows of %d keys", exported.Rows, keys)
	}
	total := uint64(0)
	for _, k := range b.keyCounts(cfg) {
		total += k.Total
	}
	if total != keys {
		t.Errorf("%d keys are counted, want %d", total, keys)
	}
	if erased := b.forget(b.inspector(cfg), b.derive(windowEvents(1, 0)[0])); len(erased.Rows) != 3 {
		t.Errorf("%d rows were erased, want those of 3 windows: %+v", len(erased.Rows), erased.Rows)
	}
	for _, at := range []time.Duration{0, 5 * time.Hour, 8 * time.Hour, 0} {
		b.produce(windowEvents(1, at)...)
	}
	b.drain(i, "signals.raw")
	if n := len(b.read("signals.unique")); n != 3*keys+3 {
		t.Errorf("%d events in the output after the erasure, want %d", n, 3*keys+3)
	}
}
