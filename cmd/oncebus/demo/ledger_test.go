package demo

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

// ledgerFixture returns a ledger with an event of three records (partitions 0, 1, 0),
// another event, a bad record, and a duplicate of the first after the pause; and these
// records as oncebus would emit them, 0 to 5.
func ledgerFixture() (*ledger, []*kgo.Record) {
	var sent [2][]sentRecord
	add := func(part, event int, partition int32) {
		sent[part] = append(sent[part], sentRecord{event: event, route: "signals", Record: &kgo.Record{
			Topic: signalsRaw, Partition: partition, Key: []byte("k"), Value: fmt.Appendf(nil, "%d", event), Timestamp: baseTime,
			Headers: []kgo.RecordHeader{{Key: "oncebus-verdict", Value: []byte("forged")}},
		}})
	}
	add(0, 0, 0)
	add(0, 0, 1)
	add(0, 0, 0)
	add(0, 1, 2)
	add(0, badEvent, 3)
	add(1, 0, 4)
	l := &ledger{}
	l.add(sent[0], false)
	l.add(sent[1], true)
	var emitted []*kgo.Record
	for _, s := range slices.Concat(sent[0], sent[1]) {
		r := *s.Record
		r.Headers = []kgo.RecordHeader{s.Headers[1]}
		if s.event == badEvent {
			r.Headers = append(r.Headers, kgo.RecordHeader{Key: "oncebus-route", Value: []byte("signals")}, kgo.RecordHeader{Key: "oncebus-reason", Value: []byte("why")})
		}
		emitted = append(emitted, &r)
	}
	return l, emitted
}

func TestDemoLedgerConvicts(t *testing.T) {
	tests := []struct {
		name    string
		outputs []int // of the fixture's records
		dead    []int
		change  func(records []*kgo.Record)
		want    [3]int // missing, extra, altered
	}{
		{"all well", []int{0, 3}, []int{4}, nil, [3]int{}},
		{"the first of another partition", []int{1, 3}, []int{4}, nil, [3]int{}},
		{"a lost event", []int{0}, []int{4}, nil, [3]int{1, 0, 0}},
		{"a lost bad record", []int{0, 3}, nil, nil, [3]int{1, 0, 0}},
		{"the same record twice", []int{0, 3, 3}, []int{4}, nil, [3]int{0, 1, 0}},
		{"two duplicates", []int{0, 1, 3}, []int{4}, nil, [3]int{0, 1, 0}},
		{"a bad record twice", []int{0, 3}, []int{4, 4}, nil, [3]int{0, 1, 0}},
		{"a bad record in the output", []int{0, 3, 4}, []int{4}, nil, [3]int{0, 1, 0}},
		{"an event in the dead-letter topic", []int{0}, []int{3, 4}, nil, [3]int{1, 1, 0}},
		{"not the first of its partition", []int{2, 3}, []int{4}, nil, [3]int{0, 0, 1}},
		{"the duplicate after the pause", []int{5, 3}, []int{4}, nil, [3]int{0, 0, 1}},
		{"another value", []int{0, 3}, []int{4}, func(r []*kgo.Record) { r[3].Value = []byte("x") }, [3]int{0, 0, 1}},
		{"no record key", []int{0, 3}, []int{4}, func(r []*kgo.Record) { r[3].Key = nil }, [3]int{0, 0, 1}},
		{"another time", []int{0, 3}, []int{4}, func(r []*kgo.Record) { r[3].Timestamp = baseTime.Add(time.Millisecond) }, [3]int{0, 0, 1}},
		{"a header more", []int{0, 3}, []int{4}, func(r []*kgo.Record) { r[3].Headers = append(r[3].Headers, kgo.RecordHeader{Key: "x"}) }, [3]int{0, 0, 1}},
		{"a forged verdict left", []int{0, 3}, []int{4}, func(r []*kgo.Record) {
			r[3].Headers = append(r[3].Headers, kgo.RecordHeader{Key: "oncebus-verdict", Value: []byte("unique")})
		}, [3]int{0, 0, 1}},
		{"no reason", []int{0, 3}, []int{4}, func(r []*kgo.Record) { r[4].Headers = r[4].Headers[:1] }, [3]int{0, 0, 1}},
		{"a stranger", []int{0, 3, 1}, []int{4}, func(r []*kgo.Record) { r[1].Headers = nil }, [3]int{0, 1, 0}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			l, records := ledgerFixture()
			if l.unique() != 2 || l.bad != 1 || l.duplicates() != 3 {
				t.Fatalf("the fixture has %d events, %d bad records and %d duplicates", l.unique(), l.bad, l.duplicates())
			}
			if tt.change != nil {
				tt.change(records)
			}
			for _, i := range tt.outputs {
				l.output("signals", records[i])
			}
			for _, i := range tt.dead {
				l.deadLetter(records[i])
			}
			l.close()
			if got := [3]int{l.missing, l.extra, l.altered}; got != tt.want {
				t.Errorf("missing, extra, altered: %v, want %v; %q", got, tt.want, l.faults)
			}
			if (len(l.faults) > 0) != (tt.want != [3]int{}) {
				t.Errorf("faults: %q", l.faults)
			}
		})
	}
}
