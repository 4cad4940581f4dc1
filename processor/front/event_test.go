package front

import (
	"errors"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"oncebus/dedup"
	"oncebus/dedup/rules"
	"oncebus/processor/wire"
)

// TestEventSearch: the first event is the emitted one with the row's time, else the one
// with the nearest time; a forwarded duplicate never is.
func TestEventSearch(t *testing.T) {
	routes, err := rules.ParseRoutes("routes.yaml", []byte(`routes:
  - {name: other, topics: [raw], match: {field: kind, in: [other]}, key: [{field: id}], window: 1h, output: out, dead_letter: dead}
  - {name: wanted, topics: [raw, more], key: [{field: id}], window: 1h, output: out, dead_letter: dead}
`))
	if err != nil {
		t.Fatal(err)
	}
	record := func(value string, ms int64, verdict string) *kgo.Record {
		r := &kgo.Record{Value: []byte(value), Timestamp: time.UnixMilli(ms)}
		if verdict != "" {
			r.Headers = []kgo.RecordHeader{{Key: wire.HeaderVerdict, Value: []byte(verdict)}}
		}
		return r
	}
	const first = 1_000_000
	event, late, after := record(`{"id":"a"}`, first, ""), record(`{"id":"a"}`, first-7, ""), record(`{"id":"a"}`, first+9, "after_window")
	others := []*kgo.Record{
		record(`{"id":"b"}`, first, ""), record(`{"id":"a"}`, first, "duplicate"), record(`{"id":"a"}`, first, "late"), record(`{"id":"a","kind":"other"}`, first, ""),
		record(`no JSON`, first, ""), {Timestamp: time.UnixMilli(first)},
	}
	for what, c := range map[string]struct {
		records []*kgo.Record
		want    *kgo.Record
		ends    bool
	}{
		"the event":              {append(others[:len(others):len(others)], late, event, after), event, true},
		"marked as bypassed":     {[]*kgo.Record{record(`{"id":"a"}`, first, "bypassed")}, nil, true},
		"the time was clamped":   {append(others[:len(others):len(others)], after, late), late, false},
		"none of them":           {others, nil, false},
		"the first of two times": {[]*kgo.Record{late, record(`{"id":"a"}`, first+7, "")}, late, false},
	} {
		s := eventSearch{route: routes.Routes[1], entry: &Entry{Row: dedup.Row{First: first}, First: "raw/0/7"}, deriver: routes.NewDeriver(nil)}
		derived := s.deriver.Derive(&rules.Input{Topic: "raw", Value: []byte(`{"id":"a"}`), Timestamp: first})
		s.entry.Row.Digest = derived.Digest
		err := s.look(c.records, 0)
		got, _ := s.result(err)
		if errors.Is(err, errFound) != c.ends || got != c.want && !(c.want == nil && c.ends && got == c.records[0]) {
			t.Errorf("%s: %v, %v", what, got, err)
		}
	}
	failed := errors.New("broker")
	if _, err := (&eventSearch{}).result(failed); !errors.Is(err, failed) {
		t.Errorf("a failed read: %v", err)
	}
}
