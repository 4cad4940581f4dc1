package audit

import (
	"fmt"
	"slices"
	"testing"

	"github.com/twmb/franz-go/pkg/kgo"
)

// TestCandidatesAreWhatMayIdentifyAnEvent by the names and values of some records.
func TestCandidatesAreWhatMayIdentifyAnEvent(t *testing.T) {
	t.Parallel()
	for _, v := range []struct {
		name   string
		record func(n int) *kgo.Record
		want   []string
	}{
		{"ids", func(n int) *kgo.Record {
			return &kgo.Record{
				Key:     fmt.Appendf(nil, "c-%d", n%5),
				Value:   fmt.Appendf(nil, `{"traceId":"t-%d","symbol":"BTC","price":%d.5,"meta":{"sentAt":%d,"requestNo":"%d"},"accountId":"a-%d"}`, n, n, n*1000, n, n%3),
				Headers: []kgo.RecordHeader{{Key: "x-request-id", Value: fmt.Append(nil, n)}, {Key: "content-type", Value: []byte("json")}},
			}
		}, []string{"field:meta.requestNo", "field:traceId", "header:x-request-id", "field:price", "record_key", "payload:exclude=meta.sentAt", "raw"}},
		{"CloudEvents", func(n int) *kgo.Record {
			return &kgo.Record{Value: fmt.Appendf(nil, `{"specversion":"1.0","id":"%d","source":"/s","type":"t","time":"2025"}`, n)}
		}, []string{"cloudevent", "field:id", "payload:exclude=time", "raw"}},
		{"CloudEvents in headers", func(n int) *kgo.Record {
			return &kgo.Record{Value: []byte("x"), Headers: []kgo.RecordHeader{{Key: "ce_id", Value: fmt.Append(nil, n)}, {Key: "ce_source", Value: []byte("/s")}}}
		}, []string{"cloudevent", "raw"}},
		{"no JSON", func(n int) *kgo.Record { return &kgo.Record{Key: fmt.Append(nil, n), Value: fmt.Append(nil, "v", n)} }, []string{"record_key", "raw"}},
	} {
		t.Run(v.name, func(t *testing.T) {
			t.Parallel()
			g := glance{fields: map[string]*trait{}, headers: map[string]*trait{}}
			for n := range 200 {
				g.add(v.record(n))
			}
			if got := g.candidates(); !slices.Equal(got, v.want) {
				t.Errorf("%q, want %q", got, v.want)
			}
		})
	}
}

// TestRankPrefersAnIDToWhatGroupsEvents and to a hash of the payload that finds as much.
func TestRankPrefersAnIDToWhatGroupsEvents(t *testing.T) {
	t.Parallel()
	e := func(n uint64) Estimate { return Estimate{N: n} }
	a := &Audit{Seen: Seen{Records: 100_000}}
	for _, r := range []struct {
		text string
		c    Counted
	}{
		{"raw", Counted{Events: 100_000, Keyed: 100_000, Keys: e(98_000), Copies: e(2000)}},
		{"field:customer", Counted{Events: 100_000, Keyed: 100_000, Keys: e(40_000), Copies: e(60_000), OtherPayload: e(56_000)}},
		{"field:symbol", Counted{Events: 100_000, Keyed: 100_000, Keys: e(50), Copies: e(99_950), OtherPayload: e(90_000)}},
		{"field:id", Counted{Events: 100_000, Keyed: 100_000, Keys: e(95_900), Copies: e(4100), OtherPayload: e(60)}},
		{"payload:exclude=sentAt", Counted{Events: 100_000, Keyed: 100_000, Keys: e(95_960), Copies: e(4040)}},
		{"header:id", Counted{Events: 100_000, Keyed: 20_000, Future: 80_000, Keys: e(20_000)}},
		{"field:order", Counted{Events: 100_000, Keyed: 70_000, MissingKey: 30_000, Keys: e(69_000), Copies: e(1000)}},
	} {
		rule, err := NewRule(r.text, Source{Topics: []string{"t"}})
		if err != nil {
			t.Fatal(err)
		}
		a.Rules, a.Counts = append(a.Rules, rule), append(a.Counts, &r.c)
	}
	var got []string
	for _, r := range a.Rank() {
		name := a.Rules[r.Rule].Text
		if !r.Usable {
			name = "-" + name
		}
		got = append(got, name)
	}
	want := []string{"field:id", "payload:exclude=sentAt", "field:customer", "raw", "-field:symbol", "-field:order", "-header:id"}
	if !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
}

// TestShareOfCopiesIsThatOfEventsWithAKey: as in the lines about the rule, so that one rule has one share.
func TestShareOfCopiesIsThatOfEventsWithAKey(t *testing.T) {
	a := &Audit{Counts: []*Counted{{Events: 1000, Keyed: 995, MissingKey: 5, Keys: Estimate{N: 623}, Copies: Estimate{N: 372}}}}
	if got := a.judge(0); got.Why != "37.4 % are copies, all with the payload of the first" {
		t.Errorf("%q, want the share of 372 in 995", got.Why)
	}
}
