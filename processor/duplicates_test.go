package processor

import (
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"oncebus/processor/wire"
)

// withDuplicates is the bench's routes file with a policy for duplicates.
func withDuplicates(policy string) string { return benchRoutes + "    duplicates: " + policy + "\n" }

// twoDuplicates sends an event and, when it is through, two duplicates on another
// partition, and returns the three as they stand in the raw topic.
func twoDuplicates(b *bench, i *instance, partition int32) []*kgo.Record {
	b.t.Helper()
	first := signal("a", partition, testTime)
	b.produce(signal("before", partition, testTime), first)
	b.drain(i, "signals.raw")
	second, third := signal("a", partition, testTime+1500), signal("a", partition, testTime-1000)
	b.produce(second, third)
	b.drain(i, "signals.raw")
	return []*kgo.Record{first, second, third}
}

// assertExplained checks the headers by which a duplicate names its original.
func assertExplained(t *testing.T, got, sent, first *kgo.Record, after string) {
	t.Helper()
	assertUntouched(t, got, sent)
	for name, want := range map[string]string{
		wire.HeaderVerdict: "duplicate", wire.HeaderRoute: "signals",
		wire.HeaderSource: sourceOf(sent), wire.HeaderFirst: sourceOf(first), wire.HeaderFirstTime: strconv.FormatInt(first.Timestamp.UnixMilli(), 10),
		wire.HeaderReason: "duplicate " + after + " after the first, window 1h0m0s",
	} {
		if v := header(got, name); v != want {
			t.Errorf("duplicate %s: header %s is %q, want %q", sourceOf(sent), name, v, want)
		}
	}
	if len(header(got, wire.HeaderKey)) != 64 {
		t.Errorf("duplicate %s: header %s is %q", sourceOf(sent), wire.HeaderKey, header(got, wire.HeaderKey))
	}
}

// TestDuplicatesAreDroppedUnlessTheRouteSaysElse: nothing of a duplicate comes out,
// and it is counted.
func TestDuplicatesAreDroppedUnlessTheRouteSaysElse(t *testing.T) {
	t.Parallel()
	for _, routes := range []string{benchRoutes, withDuplicates("drop")} {
		bothWays(t, routes, func(t *testing.T, routes string) {
			b := newBench(t, routes)
			i := b.ready(b.start(b.config("one")))
			sent := twoDuplicates(b, i, 2)
			out := b.read("signals.unique")
			if len(out) != 2 || len(b.read("dead")) != 0 {
				t.Fatalf("%d records in the output, want two", len(out))
			}
			for _, r := range out {
				if string(r.Key) == "k-a" {
					assertUntouched(t, r, sent[0])
				}
				for _, name := range []string{wire.HeaderFirst, wire.HeaderFirstTime, wire.HeaderReason, wire.HeaderSource} {
					if header(r, name) != "" {
						t.Errorf("a unique event has header %s", name)
					}
				}
			}
			assertCounts(t, i, "signals", map[string]float64{"unique": 2, "duplicate": 2})
		})
	}
}

// TestFlaggedDuplicatesFollowTheirFirst: with flag, duplicates come out behind the
// first, in the same partition of the output, and say so.
func TestFlaggedDuplicatesFollowTheirFirst(t *testing.T) {
	t.Parallel()
	bothWays(t, withDuplicates("forward"), func(t *testing.T, routes string) {
		for _, key := range []string{"with a record key", "without"} {
			t.Run(key, func(t *testing.T) {
				b := newBench(t, routes)
				i := b.ready(b.start(b.config("one")))
				sent := []*kgo.Record{signal("a", 1, testTime), signal("a", 1, testTime+1500), signal("a", 1, testTime-1000)}
				if key == "without" {
					for _, r := range sent {
						r.Key = nil
					}
				}
				b.produce(sent...)
				b.drain(i, "signals.raw")
				out := b.read("signals.unique")
				if len(out) != 3 {
					t.Fatalf("%d records in the output, want three", len(out))
				}
				if out[0].Partition != out[1].Partition || out[1].Partition != out[2].Partition {
					t.Error("the duplicates did not follow their first")
				}
				if header(out[0], wire.HeaderVerdict) != "unique" {
					t.Errorf("the first is %q", header(out[0], wire.HeaderVerdict))
				}
				assertUntouched(t, out[0], sent[0])
				assertExplained(t, out[1], sent[1], sent[0], "1.5s")
				assertExplained(t, out[2], sent[2], sent[0], "-1s")
			})
		}
	})
}

// TestDuplicatesGoToTheirTopic: with to, the output holds the first alone and
// the other topic the duplicates.
func TestDuplicatesGoToTheirTopic(t *testing.T) {
	t.Parallel()
	bothWays(t, withDuplicates("{to: signals.duplicates}"), func(t *testing.T, routes string) {
		b := newBench(t, routes)
		i := b.ready(b.start(b.config("one")))
		sent := twoDuplicates(b, i, 2)
		if n := len(b.read("signals.unique")); n != 2 {
			t.Errorf("%d records in the output, want two", n)
		}
		out := b.read("signals.duplicates")
		if len(out) != 2 {
			t.Fatalf("%d duplicates, want two", len(out))
		}
		assertExplained(t, out[0], sent[1], sent[0], "1.5s")
		assertExplained(t, out[1], sent[2], sent[0], "-1s")
	})
}

// TestFirstSeenIsKnownAfterARestart: what a duplicate says about its first comes
// from the state, not from memory of this process.
func TestFirstSeenIsKnownAfterARestart(t *testing.T) {
	t.Parallel()
	b := newBench(t, withDuplicates("{to: signals.duplicates}"))
	cfg := b.config("one")
	i := b.ready(b.start(cfg))
	first := signal("a", 3, testTime)
	b.produce(signal("before", 3, testTime), first)
	b.drain(i, "signals.raw")
	if err := i.stop(); err != nil {
		t.Fatal(err)
	}
	i = b.ready(b.start(cfg))
	again := signal("a", 0, testTime+60_000)
	b.produce(again)
	b.drain(i, "signals.raw")
	out := b.read("signals.duplicates")
	if len(out) != 1 {
		t.Fatalf("%d duplicates, want one", len(out))
	}
	assertExplained(t, out[0], again, first, "1m0s")
}

// forgeries are headers by which a producer poses as the service.
func forgeries() []kgo.RecordHeader {
	var forged []kgo.RecordHeader
	for _, name := range []string{
		wire.HeaderRoute, wire.HeaderKey, wire.HeaderVerdict, wire.HeaderFirst, wire.HeaderFirstTime, wire.HeaderSource, wire.HeaderReason, wire.EnvelopeHeader,
		"oncebus-claim-token", "oncebus-attempt", "oncebus-outcome", "ONCEBUS-VERDICT", "OnceBus-Key", "oncebus-", "oncebus-\xff",
	} {
		forged = append(forged, kgo.RecordHeader{Key: name, Value: []byte("forged")})
	}
	return forged
}

// TestForgedHeadersChangeNothing sends every event twice, once with headers
// that pretend to be ours: verdicts and keys are those of the same events
// without, nothing forged comes out, and all other headers do, in order.
func TestForgedHeadersChangeNothing(t *testing.T) {
	t.Parallel()
	bothWays(t, withDuplicates("forward"), func(t *testing.T, routes string) {
		b := newBench(t, routes)
		i := b.ready(b.start(b.config("one")))
		theirs := []kgo.RecordHeader{
			{Key: "z", Value: []byte("1")}, {Key: "a", Value: []byte("2")}, {Key: "z", Value: []byte("3")}, {Key: "oncebus", Value: []byte("4")},
			{Key: "x-oncebus-key", Value: []byte("5")}, {Key: "", Value: []byte("6")}, {Key: "null"}, {Key: "empty", Value: []byte{}}, {Key: "\xff", Value: []byte("\xfe\x00")},
		}
		mixed := append(append(forgeries(), theirs[:4]...), forgeries()...)
		mixed = append(append(mixed, theirs[4:]...), forgeries()...)
		honest, forged, copied := signal("honest", 0, testTime), signal("forged", 0, testTime), signal("forged", 0, testTime)
		honest.Headers, forged.Headers, copied.Headers = theirs, mixed, mixed
		bad := signal("", 0, testTime)
		bad.Value, bad.Headers = []byte("?"), mixed
		b.produce(honest, forged, copied, bad)
		b.drain(i, "signals.raw")
		seen := map[string]int{}
		for _, r := range append(b.read("signals.unique"), b.read("dead")...) {
			if slices.ContainsFunc(r.Headers, func(h kgo.RecordHeader) bool { return string(h.Value) == "forged" }) {
				t.Errorf("record %s came out with a forged header: %q", r.Key, r.Headers)
			}
			if !sameHeaders(foreign(r), theirs) {
				t.Errorf("record %s: foreign headers %q, want %q", r.Key, foreign(r), theirs)
			}
			seen[string(r.Key)+" "+header(r, wire.HeaderVerdict)]++
		}
		for _, want := range []string{"k-honest unique", "k-forged unique", "k-forged duplicate", "k- invalid"} {
			if seen[want] != 1 {
				t.Errorf("want one %q among %v", want, seen)
			}
		}
		assertCounts(t, i, "signals", map[string]float64{"unique": 2, "duplicate": 1, "invalid": 1})
	})
}

// TestNullAndEmptyStayWhatTheyAre: a null record key, an empty one and a null
// value (a tombstone for readers of a compacted topic) mean different things.
func TestNullAndEmptyStayWhatTheyAre(t *testing.T) {
	t.Parallel()
	t.Run("record key", func(t *testing.T) {
		bothWays(t, withDuplicates("forward"), func(t *testing.T, routes string) {
			b := newBench(t, routes)
			i := b.ready(b.start(b.config("one")))
			null, empty := signal("null", 0, testTime), signal("empty", 0, testTime)
			null.Key, empty.Key = nil, []byte{}
			b.produce(null, empty)
			b.drain(i, "signals.raw")
			assertNullAndEmpty(t, b.read("signals.unique"), null, empty)
		})
	})
	t.Run("value", func(t *testing.T) {
		bothWays(t, strings.ReplaceAll(withDuplicates("forward"), "field: id", "record_key: true"), func(t *testing.T, routes string) {
			b := newBench(t, routes)
			i := b.ready(b.start(b.config("one")))
			null := &kgo.Record{Topic: "signals.raw", Key: []byte("null"), Timestamp: time.UnixMilli(testTime)}
			empty := &kgo.Record{Topic: "signals.raw", Key: []byte("empty"), Value: []byte{}, Timestamp: time.UnixMilli(testTime)}
			b.produce(null, empty)
			b.drain(i, "signals.raw")
			assertNullAndEmpty(t, b.read("signals.unique"), null, empty)
		})
	})
}

func assertNullAndEmpty(t *testing.T, out []*kgo.Record, sent ...*kgo.Record) {
	t.Helper()
	if len(out) != len(sent) {
		t.Fatalf("%d records in the output, want %d", len(out), len(sent))
	}
	for _, want := range sent {
		at := slices.IndexFunc(out, func(r *kgo.Record) bool { return sameBytes(r.Key, want.Key) && sameBytes(r.Value, want.Value) })
		if at < 0 {
			t.Errorf("no record with key %q (null: %v) and value %q (null: %v) in the output", want.Key, want.Key == nil, want.Value, want.Value == nil)
			continue
		}
		assertUntouched(t, out[at], want)
	}
}
