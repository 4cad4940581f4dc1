package judge

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/twmb/franz-go/pkg/kgo"

	"oncebus/dedup/rules"
)

func newTestKeys(t *testing.T) *Keys {
	t.Helper()
	routes, err := rules.ParseRoutes("routes.yaml", []byte("routes:\n  - {name: a, topics: [raw], key: [{field: id}], window: 1h, output: unique, dead_letter: dead}\n"))
	must(t, err)
	return NewKeys(routes.NewDeriver(nil), NewMetrics(prometheus.NewRegistry(), routes))
}

// mixedRecords returns records with a key, without a key, and malformed ones.
func mixedRecords(n int) (records []*kgo.Record) {
	for i := range n {
		value := fmt.Appendf(nil, `{"id":"event-%d"}`, i)
		switch i % 7 {
		case 3:
			value = []byte(`{}`)
		case 5:
			value = value[:len(value)-1]
		}
		records = append(records, &kgo.Record{Topic: "raw", Offset: int64(i), Timestamp: time.UnixMilli(int64(i)), Value: value})
	}
	return records
}

// TestKeysAheadAreTheSame protects that keys which are derived ahead belong to their records, in order, whether or
// not the last chunk is full.
func TestKeysAheadAreTheSame(t *testing.T) {
	t.Parallel()
	for _, n := range []int{1, chunkRecords - 1, chunkRecords, chunkRecords + 1, chunksAhead * chunkRecords, 10*chunkRecords + 7} {
		records := mixedRecords(n)
		alone, ahead := newTestKeys(t), newTestKeys(t)
		alone.AheadMin, ahead.AheadMin = n+1, 1
		var want []rules.Derived
		for rec, derived := range alone.Of(records) {
			if rec != records[len(want)] {
				t.Fatalf("%d records: number %d is another one", n, len(want))
			}
			want = append(want, *derived)
		}
		got := 0
		for rec, derived := range ahead.Of(records) {
			d := *derived
			d.Route, want[got].Route = nil, nil // of another routes file
			if rec != records[got] || d != want[got] {
				t.Fatalf("%d records: number %d has %+v, want %+v", n, got, d, want[got])
			}
			got++
		}
		if got != n || len(want) != n {
			t.Errorf("%d records: %d and %d keys", n, got, len(want))
		}
	}
}

// TestKeysAheadAfterABreak protects that, after an iteration that ended early because of an error or a panic, the
// next iteration has the keys of its own records.
func TestKeysAheadAfterABreak(t *testing.T) {
	t.Parallel()
	keys, records := newTestKeys(t), mixedRecords(3*chunksAhead*chunkRecords)
	keys.AheadMin = 1
	for stop := range 2 * chunksAhead * chunkRecords {
		if stop%97 != 0 {
			continue
		}
		n := 0
		for range keys.Of(records) {
			if n++; n > stop {
				break
			}
		}
		keys.Release()
	}
	func() {
		defer func() { _ = recover() }()
		for range keys.Of(records) {
			panic("a decision")
		}
	}()
	reversed := slices.Clone(records)
	slices.Reverse(reversed)
	n := 0
	for rec, derived := range keys.Of(reversed) {
		if keyed := !strings.HasSuffix(string(rec.Value), `"`) && len(rec.Value) > 2; rec != reversed[n] || keyed != (derived.Finding == rules.Keyed) {
			t.Fatalf("number %d: %s has %v", n, rec.Value, derived.Finding)
		}
		n++
	}
}
