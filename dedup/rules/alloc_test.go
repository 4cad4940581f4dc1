package rules

import (
	"fmt"
	"strings"
	"testing"

	"oncebus/dedup"
)

// benchPayload is a signal of about the given size in bytes. No object in it has
// more than 64 names: for more, jsontext allocates a map to find duplicates.
func benchPayload(size int) []byte {
	const head = `{"traceId":"7d1f0c2a-93b4-4f6e-8a55-0c9d2e1b7f30","symbol":"AAPL","exchange":"NASDAQ","action":"buy",` +
		`"timestamp":1729636859999,"quantity":100.5,"account":"ACC123456","side":"buy","type":"limit","limit":187.25`
	var b strings.Builder
	b.WriteString(head + `,"items":[{}`)
	for i := 0; b.Len() < size-2; i++ {
		fmt.Fprintf(&b, `,{"name":"value %d","n":[%d,2.5,true]}`, i, i)
	}
	b.WriteString("]}")
	return []byte(b.String())
}

var benchSources = []struct {
	name, key string
	pooled    bool // jsontext's pools are used
	tenant    bool // the route has one
}{
	{"record_key", "[record_key]", false, false},
	{"header", "[{header: id}]", false, false},
	{"field", "[{field: traceId}]", false, false},
	{"fields", "[{fields: [account, symbol, timestamp]}]", false, false},
	{"hash", "[{field: gone}, {hash: [symbol, exchange, action, timestamp]}]", false, false},
	{"payload", "[{payload: {exclude: [timestamp, traceId, items.*.name]}}]", true, false},
	{"parts", "[{fields: [account, {header: id}, {record_key: true}, {topic: true}]}]", false, false},
	{"hash of parts", "[{hash: [account, {header: id}, {tenant: true}]}]", false, true},
	{"raw", "[raw]", false, false},
	{"field of a tenant", "[{field: traceId}]", false, true},
	{"cloudevent", "[cloudevent]", false, false},
	{"order", "[order]", false, false},
}

type benchHeaders struct{ id []byte }

func (h benchHeaders) Header(name string) ([]byte, bool) {
	switch name {
	case "id", "ce_id", "ce_source":
		return h.id, true
	}
	return nil, false
}

func benchInput(size int) *Input {
	return &Input{
		Topic: "in", Key: []byte("7d1f0c2a-93b4-4f6e-8a55-0c9d2e1b7f30"), Value: benchPayload(size),
		Headers: benchHeaders{id: []byte("7d1f0c2a-93b4")}, Timestamp: 1729636859999,
	}
}

// TestNoAllocationForManyMembers requires that a payload allocates nothing for the members of
// its objects.
func TestNoAllocationForManyMembers(t *testing.T) {
	d := oneRoute(t, "[{field: id}]").NewDeriver(nil)
	in := benchInput(0)
	in.Value = objectOf(10_000)
	if n := testing.AllocsPerRun(10, func() {
		if got := d.Derive(in); got.Finding != Keyed {
			t.Fatal(got.Reason)
		}
	}); n != 0 {
		t.Errorf("%v allocations for 10,000 members", n)
	}
}

func TestAllocations(t *testing.T) {
	for _, source := range benchSources {
		for _, secret := range []string{"secret: false", "secret: true"} {
			for _, size := range []int{200, 8 << 10} {
				more := []string{secret}
				if source.tenant {
					more = append(more, "tenant: {header: id}")
				}
				d := oneRoute(t, source.key, more...).NewDeriver([]byte(testSecret))
				in := benchInput(size)
				if got := d.Derive(in); got.Finding != Keyed {
					t.Fatalf("%s: %s", source.name, got.Reason)
				}
				if source.pooled && raceDetector {
					continue // with the race detector sync.Pool drops items at random
				}
				if n := testing.AllocsPerRun(100, func() { d.Derive(in) }); n != 0 {
					t.Errorf("%s, %s, %d bytes: %v allocations", source.name, secret, size, n)
				}
			}
		}
	}
	w := dedup.Window{Size: 1000, Grace: 10, Skew: 10}
	prior := dedup.Row{First: 500, Status: dedup.Seen}
	ev := dedup.Event{Time: 600}
	if n := testing.AllocsPerRun(100, func() {
		if v, _ := w.Admit(ev.Time, 600, 700); v != dedup.Unique {
			t.Fatal(v)
		}
		if v, _ := dedup.Decide(ev, prior, true, w, 600); v != dedup.Duplicate {
			t.Fatal(v)
		}
	}); n != 0 {
		t.Errorf("judging a duplicate: %v allocations", n)
	}
}

func BenchmarkDerive(b *testing.B) {
	for _, source := range benchSources {
		for _, size := range []int{200, 8 << 10, 64 << 10} {
			b.Run(fmt.Sprintf("%s/%d", source.name, size), func(b *testing.B) {
				var more []string
				if source.tenant {
					more = []string{"tenant: {header: id}"}
				}
				d := oneRoute(b, source.key, more...).NewDeriver(nil)
				in := benchInput(size)
				b.SetBytes(int64(len(in.Value)))
				b.ReportAllocs()
				for b.Loop() {
					if got := d.Derive(in); got.Finding != Keyed {
						b.Fatal(got.Reason)
					}
				}
			})
		}
	}
	b.Run("field with secret/200", func(b *testing.B) {
		d := oneRoute(b, "[{field: traceId}]", "secret: true").NewDeriver([]byte(testSecret))
		in := benchInput(200)
		b.ReportAllocs()
		for b.Loop() {
			d.Derive(in)
		}
	})
}

func BenchmarkDecide(b *testing.B) {
	w := dedup.Window{Size: 1000, Grace: 10, Skew: 10}
	prior, ev := dedup.Row{First: 500}, dedup.Event{Time: 600}
	b.ReportAllocs()
	for b.Loop() {
		if v, _ := dedup.Decide(ev, prior, true, w, 600); v != dedup.Duplicate {
			b.Fatal(v)
		}
	}
}
