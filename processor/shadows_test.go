package processor_test

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"oncebus/processor/app"
)

// shadowRoutes has a shadow that tries out the field number as the key.
const shadowRoutes = benchRoutes + "    shadow: {name: by-number, sample: 100%, key: [{field: number}]}\n"

// numbered returns an event with both keys. A negative number stands for an event without a number.
func numbered(id, number int, partition int32, at int64) *kgo.Record {
	value := fmt.Sprintf(`{"id":"i%d","number":"n%d"}`, id, number)
	if number < 0 {
		value = fmt.Sprintf(`{"id":"i%d"}`, id)
	}
	return &kgo.Record{Topic: "signals.raw", Partition: partition, Key: fmt.Appendf(nil, "k-%d-%d", id, number), Value: []byte(value), Timestamp: time.UnixMilli(at)}
}

// shadowTraffic are events with several ids for each number, and copies of them in any partition. After the first
// third there are also copies of earlier ids with a number of their own, and events without a number.
func shadowTraffic(seed uint64, n int, at int64) (records []*kgo.Record) {
	random := rand.New(rand.NewPCG(seed, 1))
	var known []int
	for i := range n {
		id := random.IntN(n / 2)
		number := id % (n / 10)
		switch kind := random.IntN(20); {
		case i < n/3:
			known = append(known, id)
		case kind == 0:
			id, number = 1_000_000+i, -1
		case kind == 1:
			id, number = known[random.IntN(len(known))], 1_000_000+i
		}
		records = append(records, numbered(id, number, random.Int32N(4), at+int64(i)))
	}
	return records
}

// foldOf returns what a shadow has to count for emitted events and copies that are all within one window. The order
// of events with different ids changes nothing.
func foldOf(emitted, copies []*kgo.Record) map[string]uint64 {
	counts := map[string]uint64{"both_emit": 0, "both_drop": 0, "would_drop": 0, "would_emit": 0, "no_key": 0}
	known := map[string]bool{}
	count := func(records []*kgo.Record, fresh, again string) {
		for _, r := range records {
			_, number, has := strings.Cut(string(r.Value), `,"number":`)
			switch {
			case !has:
				counts["no_key"]++
			case known[number]:
				counts[again]++
			default:
				counts[fresh]++
				known[number] = fresh == "both_emit"
			}
		}
	}
	count(emitted, "both_emit", "would_drop")
	count(copies, "would_emit", "both_drop")
	return counts
}

// shadows returns the states of the shadows in force.
func (b *bench) shadows() []app.ShadowState {
	b.t.Helper()
	states, err := b.inspector(b.config("operator")).Shadows(b.t.Context())
	must(b.t, err)
	return states
}

func looked(s *app.ShadowState) (n uint64) {
	for _, one := range s.Events {
		n += one
	}
	return n
}

// TestShadowCountsAsAFold protects that a shadow's counts of random traffic equal those of a plain fold, across a
// restart with and without local state. The output is the same as without a shadow.
func TestShadowCountsAsAFold(t *testing.T) {
	t.Parallel()
	const n = 3000
	b := newBench(t, shadowRoutes)
	b.createTopic("signals.raw", 4)
	cfg := b.config("one")
	i := b.ready(b.start(cfg))
	records := shadowTraffic(1, n, testTime)
	for part := range 3 {
		b.produce(records[part*n/3 : (part+1)*n/3]...)
		b.drain(i, "signals.raw")
		must(t, i.stop())
		if part == 1 {
			must(t, os.RemoveAll(cfg.StateDir))
		}
		i = b.ready(b.start(cfg))
	}
	var last app.ShadowState
	b.wait("the shadow to look at all events", func() bool {
		last = b.shadows()[0]
		return looked(&last) >= n
	})
	emitted, ids := map[string]bool{}, map[string]bool{}
	for _, r := range b.read("signals.unique") {
		id, _, _ := strings.Cut(string(r.Value), `,`)
		id = strings.TrimSuffix(id, "}")
		if ids[id] {
			t.Errorf("id %s is emitted twice", id)
		}
		ids[id], emitted[string(r.Value)] = true, true
	}
	// A value may come several times: one of these events was emitted, and the others are copies.
	seen := map[string]bool{}
	var firsts, copies []*kgo.Record
	for _, r := range records {
		if emitted[string(r.Value)] && !seen[string(r.Value)] {
			seen[string(r.Value)] = true
			firsts = append(firsts, r)
		} else {
			copies = append(copies, r)
		}
	}
	want := foldOf(firsts, copies)
	if !maps.Equal(last.Events, want) || looked(&last) != n {
		t.Errorf("counts %v, want %v", last.Events, want)
	}
	fates := map[string]int{}
	for _, s := range last.Samples {
		fates[s.Fate]++
		if !strings.HasPrefix(s.Event, "signals.raw/") || (s.Fate == "would_drop") != strings.HasPrefix(s.First, "signals.raw/") {
			t.Errorf("sample %+v", s)
		}
	}
	if fates["would_drop"] < 8 || fates["would_emit"] < 8 || fates["no_key"] < 8 {
		t.Errorf("samples %v", fates)
	}
	b.promiseHeld(cfg)
	if !last.Promotable {
		t.Errorf("the shadow began with the app, so it has seen all events: %+v", last)
	}
}
