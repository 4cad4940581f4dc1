package processor

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"oncebus/processor/app"
	"oncebus/processor/wire"
)

// bothWays runs a test on a routes file as it stands and with every route
// keyed: the two ways of a record must treat bad input alike.
func bothWays(t *testing.T, routes string, test func(t *testing.T, routes string)) {
	t.Helper()
	t.Run("routed", func(t *testing.T) { test(t, routes) })
	t.Run("keyed", func(t *testing.T) {
		test(t, strings.ReplaceAll(routes, "    key:\n", "    prepartitioned: true\n    key:\n"))
	})
}

// stageOf returns the worker whose transaction turns a record without a key away.
func stageOf(routes string) string {
	if strings.Contains(routes, "prepartitioned: true") {
		return stageDedup
	}
	return stageRoute
}

// sourceOf writes where a record stands as our headers do.
func sourceOf(r *kgo.Record) string { return fmt.Sprintf("%s/%d/%d", r.Topic, r.Partition, r.Offset) }

// bySource files records under their oncebus-source header.
func bySource(t *testing.T, records []*kgo.Record) map[string]*kgo.Record {
	t.Helper()
	filed := map[string]*kgo.Record{}
	for _, r := range records {
		at := header(r, wire.HeaderSource)
		if filed[at] != nil {
			t.Errorf("two records from %s", at)
		}
		filed[at] = r
	}
	return filed
}

// foreign returns a record's headers without ours.
func foreign(r *kgo.Record) []kgo.RecordHeader {
	return slices.DeleteFunc(slices.Clone(r.Headers), func(h kgo.RecordHeader) bool { return wire.IsReserved(h.Key) })
}

func sameHeaders(a, b []kgo.RecordHeader) bool {
	return slices.EqualFunc(a, b, func(x, y kgo.RecordHeader) bool { return x.Key == y.Key && sameBytes(x.Value, y.Value) })
}

// sameBytes distinguishes null from empty.
func sameBytes(a, b []byte) bool { return bytes.Equal(a, b) && (a == nil) == (b == nil) }

// assertUntouched checks that what producers wrote came through.
func assertUntouched(t *testing.T, got, want *kgo.Record) {
	t.Helper()
	if !sameBytes(got.Key, want.Key) || !sameBytes(got.Value, want.Value) || got.Timestamp.UnixMilli() != want.Timestamp.UnixMilli() {
		t.Errorf("record of %s was touched: key %q, %d bytes, %v; want key %q, %d bytes, %v",
			sourceOf(want), got.Key, len(got.Value), got.Timestamp, want.Key, len(want.Value), want.Timestamp)
	}
	if !sameHeaders(foreign(got), foreign(want)) {
		t.Errorf("record of %s: foreign headers %.300q, want %.300q", sourceOf(want), foreign(got), foreign(want))
	}
}

const badRoutes = `routes:
  - name: signals
    topics: [signals.raw]
    key:
      - field: id
    max_key_bytes: 64
    window: 1h
    output: signals.unique
    dead_letter: dead
`

// badCase is a record that cannot be judged and what its dead letter says.
type badCase struct {
	name    string
	key     []byte
	value   []byte
	headers []kgo.RecordHeader
	verdict string
	reason  string // a part of it
}

// outputMaxBytes is max.message.bytes of the output topic in these tests.
const outputMaxBytes = 2000

func badCases() []badCase {
	text := func(s string) []byte { return []byte(s) }
	many := make([]kgo.RecordHeader, 20_000)
	for n := range many {
		many[n].Key = "h"
	}
	odd := []kgo.RecordHeader{{Key: "", Value: text("empty name")}, {Key: "\xff\xfe", Value: text("\x00\xff")}, {Key: "null"}, {Key: "empty", Value: []byte{}}}
	return []badCase{
		{name: "not JSON", value: text("order 66"), verdict: "invalid", reason: "payload: "},
		{name: "JSON cut short", value: text(`{"id":"a"`), verdict: "invalid", reason: "payload: "},
		{name: "two values", value: text(`{"id":"a"}{}`), verdict: "invalid", reason: "payload: "},
		{name: "not UTF-8", value: text("{\"id\":\"\xff\"}"), verdict: "invalid", reason: "payload: "},
		{name: "nested beyond measure", value: bytes.Repeat(text("["), 100_000), verdict: "invalid", reason: "payload: "},
		{name: "empty payload", value: []byte{}, verdict: "invalid", reason: "payload: "},
		{name: "null payload", value: nil, verdict: "invalid", reason: "payload: "},
		{name: "missing field", value: text(`{"price":1}`), verdict: "missing_key", reason: "field id: absent"},
		{name: "null field", value: text(`{"id":null}`), verdict: "missing_key", reason: "field id: null"},
		{name: "empty field", value: text(`{"id":""}`), verdict: "missing_key", reason: "field id: empty"},
		{name: "object for an id", value: text(`{"id":{"a":1}}`), verdict: "invalid", reason: "field id: want a string or number, found an object"},
		{name: "array for an id", value: text(`{"id":[1]}`), verdict: "invalid", reason: "field id: want a string or number, found an array"},
		{name: "boolean for an id", value: text(`{"id":true}`), verdict: "invalid", reason: "field id: want a string or number, found a boolean"},
		{name: "key over the limit", value: text(`{"id":"` + strings.Repeat("k", 65) + `"}`), verdict: "invalid", reason: "65 bytes are over the key limit of 64"},
		{name: "value too large for the output", value: text(`{"id":"large","pad":"` + strings.Repeat("x", outputMaxBytes) + `"}`),
			verdict: "invalid", reason: "max.message.bytes is 2000"},
		{name: "a huge count of headers", value: text(`{"id":"headers"}`), headers: many, verdict: "invalid", reason: "max.message.bytes is 2000"},
		{name: "hostile headers on a bad payload", value: text("x"), headers: odd, verdict: "invalid", reason: "payload: "},
		{name: "no record key", key: nil, value: text("y"), verdict: "invalid", reason: "payload: "},
	}
}

// TestBadInputIsDeadLetteredAndTheNextRecordProcessed is the list of
// product.md section 7: every entry comes out whole in the dead-letter topic,
// with its reason and place, and a good record behind it in the output.
func TestBadInputIsDeadLetteredAndTheNextRecordProcessed(t *testing.T) {
	t.Parallel()
	bothWays(t, badRoutes, func(t *testing.T, routes string) {
		b := newBench(t, routes)
		b.createTopic("signals.unique", 4, "max.message.bytes", strconv.Itoa(outputMaxBytes))
		i := b.ready(b.start(b.config("one")))
		var bad, good []*kgo.Record
		for n, c := range badCases() {
			r := &kgo.Record{Topic: "signals.raw", Key: []byte("key of " + c.name), Value: c.value, Headers: c.headers, Timestamp: time.UnixMilli(testTime + int64(n))}
			if c.name == "no record key" {
				r.Key = nil
			}
			next := signal("after-"+strconv.Itoa(n), 0, testTime)
			bad, good = append(bad, r), append(good, next)
			b.produce(r, next)
		}
		b.drain(i, "signals.raw")
		dead := bySource(t, b.read("dead"))
		for n, c := range badCases() {
			got := dead[sourceOf(bad[n])]
			if got == nil {
				t.Errorf("%s: no dead letter", c.name)
				continue
			}
			assertUntouched(t, got, bad[n])
			if v := header(got, wire.HeaderVerdict); v != c.verdict {
				t.Errorf("%s: verdict %q, want %q", c.name, v, c.verdict)
			}
			if r := header(got, wire.HeaderReason); !strings.Contains(r, c.reason) {
				t.Errorf("%s: reason %q, want %q in it", c.name, r, c.reason)
			}
			if header(got, wire.HeaderRoute) != "signals" || header(got, wire.HeaderFirst) != sourceOf(bad[n]) ||
				header(got, wire.HeaderFirstTime) != strconv.FormatInt(bad[n].Timestamp.UnixMilli(), 10) {
				t.Errorf("%s: headers %.500q", c.name, got.Headers)
			}
			if keyed := c.reason == "max.message.bytes is 2000"; keyed != (len(header(got, wire.HeaderKey)) == 64) {
				t.Errorf("%s: header %s is %q", c.name, wire.HeaderKey, header(got, wire.HeaderKey))
			}
		}
		if len(dead) != len(bad) {
			t.Errorf("%d dead letters for %d bad records", len(dead), len(bad))
		}
		sent := map[string]*kgo.Record{}
		for n := range good {
			sent["after-"+strconv.Itoa(n)] = good[n]
		}
		assertOnce(t, b.read("signals.unique"), sent)
		assertCounts(t, i, "signals", map[string]float64{"unique": float64(len(good)), "missing_key": 3, "invalid": float64(len(bad) - 3)})
	})
}

// assertCounts checks oncebus_events_total of a route.
func assertCounts(t *testing.T, i *instance, route string, want map[string]float64) {
	t.Helper()
	for verdict, n := range want {
		series := fmt.Sprintf("oncebus_events_total{route=%q,verdict=%q}", route, verdict)
		if got := gather(t, i)[series]; got != n {
			t.Errorf("%s is %v, want %v", series, got, n)
		}
	}
}

// TestMissingKeyFollowsItsPolicy: dead letter is in the list above; pass lets the
// record through, marked; drop only counts it.
func TestMissingKeyFollowsItsPolicy(t *testing.T) {
	t.Parallel()
	for _, policy := range []string{"forward", "drop"} {
		t.Run(policy, func(t *testing.T) {
			bothWays(t, badRoutes+"    on_missing_key: "+policy+"\n", func(t *testing.T, routes string) {
				b := newBench(t, routes)
				i := b.ready(b.start(b.config("one")))
				twins := []*kgo.Record{signal("", 0, testTime), signal("", 0, testTime)}
				b.produce(append(twins, signal("next", 0, testTime))...)
				b.drain(i, "signals.raw")
				var noKey int
				for _, r := range b.read("signals.unique") {
					if header(r, wire.HeaderVerdict) == "missing_key" {
						noKey++
						assertUntouched(t, r, twins[0])
						if header(r, wire.HeaderKey) != "" {
							t.Errorf("a record without a key has %s", wire.HeaderKey)
						}
					} else if string(r.Key) != "k-next" {
						t.Errorf("output holds %q", r.Key)
					}
				}
				if want := map[string]int{"forward": 2, "drop": 0}[policy]; noKey != want {
					t.Errorf("%d records without a key forwarded, want %d", noKey, want)
				}
				if n := len(b.read("dead")); n > 0 {
					t.Errorf("%d dead letters, want none", n)
				}
				assertCounts(t, i, "signals", map[string]float64{"missing_key": 2, "unique": 1})
			})
		})
	}
}

// TestRecordTooLargeForTheDeadLetterTopicLeavesAPointer: what remains says
// where the record stands and what it was; the record itself is still there.
func TestRecordTooLargeForTheDeadLetterTopicLeavesAPointer(t *testing.T) {
	t.Parallel()
	bothWays(t, badRoutes, func(t *testing.T, routes string) {
		b := newBench(t, routes)
		b.createTopic("signals.unique", 4, "max.message.bytes", "2000")
		b.createTopic("dead", 4, "max.message.bytes", strconv.Itoa(app.DeadLetterMinBytes))
		i := b.ready(b.start(b.config("one")))
		large := signal(strings.Repeat("v", 20), 0, testTime)
		large.Value = []byte(`{"id":"large","pad":"` + strings.Repeat("x", 9000) + `"}`)
		largeKey := signal("large-key", 0, testTime)
		largeKey.Key = bytes.Repeat([]byte("k"), 9000)
		bad := signal("", 0, testTime)
		bad.Value = bytes.Repeat([]byte("?"), 9000)
		b.produce(large, largeKey, bad, signal("next", 0, testTime))
		b.drain(i, "signals.raw")
		dead := bySource(t, b.read("dead"))
		for _, r := range []*kgo.Record{large, largeKey, bad} {
			got := dead[sourceOf(r)]
			if got == nil {
				t.Fatalf("no dead letter for %s among %d", sourceOf(r), len(dead))
			}
			hash := sha256.Sum256(r.Value)
			if got.Value != nil && len(r.Value) > app.DeadLetterMinBytes || header(got, wire.HeaderValueHash) != hex.EncodeToString(hash[:]) ||
				header(got, wire.HeaderValueSize) != strconv.Itoa(len(r.Value)) || header(got, wire.HeaderTimestamp) != strconv.Itoa(testTime) {
				t.Errorf("pointer of %s: value of %d bytes, headers %q", sourceOf(r), len(got.Value), got.Headers)
			}
			if reason := header(got, wire.HeaderReason); !strings.Contains(reason, "too large for topic dead") {
				t.Errorf("pointer of %s: reason %q", sourceOf(r), reason)
			}
			if !sameBytes(got.Key, r.Key) && len(r.Key) < 1000 {
				t.Errorf("pointer of %s: key %q", sourceOf(r), got.Key)
			}
		}
		if out := b.read("signals.unique"); len(out) != 1 || string(out[0].Key) != "k-next" {
			t.Errorf("%d records in the output, want the last one alone", len(out))
		}
	})
}

// TestRecordWithoutAKeyToACompactedTopicIsDeadLettered: a compacted topic takes no
// record without a key, so it would fail its transaction for ever.
func TestRecordWithoutAKeyToACompactedTopicIsDeadLettered(t *testing.T) {
	t.Parallel()
	bothWays(t, badRoutes, func(t *testing.T, routes string) {
		b := newBench(t, routes)
		b.createTopic("signals.unique", 4, "cleanup.policy", "compact", "retention.ms", "-1")
		i := b.ready(b.start(b.config("one")))
		noKey := signal("no key", 0, testTime)
		noKey.Key = nil
		b.produce(noKey, signal("next", 0, testTime))
		b.drain(i, "signals.raw")
		dead := b.read("dead")
		if len(dead) != 1 {
			t.Fatalf("%d dead letters, want one", len(dead))
		}
		assertUntouched(t, dead[0], noKey)
		if reason := header(dead[0], wire.HeaderReason); !strings.Contains(reason, "no record key") || header(dead[0], wire.HeaderSource) != sourceOf(noKey) ||
			header(dead[0], wire.HeaderVerdict) != "invalid" {
			t.Errorf("headers %q", dead[0].Headers)
		}
		if out := b.read("signals.unique"); len(out) != 1 || string(out[0].Key) != "k-next" {
			t.Errorf("%d records in the output, want the last one alone", len(out))
		}
	})
}

// TestDeadLetterIsPartOfTheTransaction fails the end of the transaction that
// carries a dead letter: it is withdrawn with its offset and written again.
func TestDeadLetterIsPartOfTheTransaction(t *testing.T) {
	t.Parallel()
	bothWays(t, badRoutes, func(t *testing.T, routes string) {
		b := newBench(t, routes)
		i := b.ready(b.start(b.config("one")))
		fault := b.cluster.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.EndTxn}, TxnID: "app-one-" + stageOf(routes) + "-0", Err: kerr.UnknownServerError})
		bad := signal("", 0, testTime)
		bad.Value = []byte("?")
		b.produce(bad, signal("next", 0, testTime))
		b.drain(i, "signals.raw")
		if fault.Hits() != 1 {
			t.Fatalf("the fault was hit %d times, want once", fault.Hits())
		}
		if dead := b.read("dead"); len(dead) != 1 || header(dead[0], wire.HeaderSource) != sourceOf(bad) {
			t.Errorf("%d dead letters, want one", len(dead))
		}
		if n := b.uncommitted("dead"); n < 2 {
			t.Errorf("%d dead letters were ever written: the one of the failed transaction is missing, so the fault came too early to show anything", n)
		}
		if out := b.read("signals.unique"); len(out) != 1 {
			t.Errorf("%d records in the output, want one", len(out))
		}
		assertCounts(t, i, "signals", map[string]float64{"invalid": 1, "unique": 1})
	})
}
