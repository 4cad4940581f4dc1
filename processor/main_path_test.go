package processor_test

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/twmb/franz-go/pkg/kgo"

	"oncebus/processor/wire"
)

const testTime = 1_700_000_000_000 // ms; any fixed event time

// TestEveryKeyOnceInTheOutput sends duplicates to all partitions, and expects in the output the unchanged first event
// of each key and nothing else.
func TestEveryKeyOnceInTheOutput(t *testing.T) {
	t.Parallel()
	b := newBench(t, benchRoutes)
	i := b.ready(b.start(b.config("one")))
	rng := rand.New(rand.NewPCG(1, 2))
	sent := map[string]*kgo.Record{}
	var records []*kgo.Record
	for n := range 500 {
		id := fmt.Sprint("id-", n)
		for range 1 + rng.IntN(3) {
			r := signal(id, rng.Int32N(4), testTime+int64(n))
			sent[id] = r
			records = append(records, r)
		}
	}
	b.produce(records...)
	b.drain(i, "signals.raw")
	assertOnce(t, b.read("signals.unique"), sent)
}

// assertOnce checks that out holds every id of sent once, as it was sent.
func assertOnce(t *testing.T, out []*kgo.Record, sent map[string]*kgo.Record) {
	t.Helper()
	seen := map[string]int{}
	for _, r := range out {
		id := string(r.Key[2:])
		seen[id]++
		want, ok := sent[id]
		if !ok {
			t.Fatalf("output holds %q, which was not sent", id)
		}
		if !bytes.Equal(r.Value, want.Value) || !r.Timestamp.Equal(want.Timestamp) || header(r, "traceparent") != "00-abc" {
			t.Fatalf("output of %s was touched: %+v", id, r)
		}
		if slices.ContainsFunc(r.Headers, func(h kgo.RecordHeader) bool { return wire.IsReserved(h.Key) }) {
			t.Fatalf("output of %s has headers %v, and its route asks for none", id, r.Headers)
		}
	}
	missing, extra := 0, 0
	for id := range sent {
		switch n := seen[id]; {
		case n == 0:
			missing++
		case n > 1:
			extra += n - 1
		}
	}
	if missing+extra > 0 {
		t.Fatalf("%d keys sent, %d records out: %d missing, %d extra", len(sent), len(out), missing, extra)
	}
}
