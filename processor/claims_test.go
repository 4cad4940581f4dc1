package processor

import (
	"bytes"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"oncebus/dedup"
	"oncebus/processor/app"
	"oncebus/processor/wire"
)

const claimRoutes = `routes:
  - name: ops
    topics: [ops.raw]
    mode: claim
    key:
      - fields: [account, id]
    window: 1h
    output: ops.run
    outcomes: ops.outcomes
    replies: ops.replies
    lease: 10m
    while_in_progress: %s
    result_limit: 100
    request: {field: request}
    fingerprint: [amount]
    dead_letter: dead
`

// operation makes a raw record whose sender calls it request.
func operation(id, request string, partition int32) *kgo.Record {
	return &kgo.Record{
		Topic: "ops.raw", Partition: partition, Key: []byte("k-" + request), Timestamp: time.UnixMilli(testTime),
		Value: fmt.Appendf(nil, `{"account":"a","id":%q,"request":%q,"amount":5}`, id, request),
	}
}

// outcomeOf makes an executor's answer to an event it was given.
func outcomeOf(event *kgo.Record, kind string, value []byte, headers ...kgo.RecordHeader) *kgo.Record {
	return &kgo.Record{
		Topic: "ops.outcomes", Key: event.Key, Value: value,
		Headers: append(headers, kgo.RecordHeader{Key: wire.HeaderClaimToken, Value: []byte(header(event, wire.HeaderClaimToken))}, kgo.RecordHeader{Key: wire.HeaderOutcome, Value: []byte(kind)}),
	}
}

// replies returns the replies by the record that they answer.
func (b *bench) replies(topic string) map[string]*kgo.Record {
	b.t.Helper()
	all := map[string]*kgo.Record{}
	for _, r := range b.read(topic) {
		source := header(r, wire.HeaderSource)
		if all[source] != nil {
			b.t.Fatalf("%s is answered twice: %v and %v", source, all[source].Headers, r.Headers)
		}
		all[source] = r
	}
	return all
}

// drainClaims waits until all events and outcomes are processed.
func (b *bench) drainClaims(i *instance) { b.t.Helper(); b.drain(i, "ops.raw", "ops.outcomes") }

func assertHeaders(t *testing.T, r *kgo.Record, want map[string]string) {
	t.Helper()
	if r == nil {
		t.Fatalf("no record, want one with %v", want)
	}
	for name, value := range want {
		if got := header(r, name); got != value {
			t.Errorf("header %s is %q, want %q; all: %v", name, got, value, r.Headers)
		}
	}
}

// TestDuplicateGetsTheOutcomeOfTheFirst follows a claim: dispatched once, in progress,
// recorded, replayed as recorded, also after a restart and after a rebuild from
// the changelog.
func TestDuplicateGetsTheOutcomeOfTheFirst(t *testing.T) {
	t.Parallel()
	b := newBench(t, fmt.Sprintf(claimRoutes, "reject"))
	cfg := b.config("one")
	i := b.ready(b.start(cfg))
	b.produce(operation("1", "first", 0))
	b.drainClaims(i)
	b.produce(operation("1", "second", 1))
	b.drainClaims(i)
	run := b.read("ops.run")
	if len(run) != 1 {
		t.Fatalf("%d events went to the executor", len(run))
	}
	assertHeaders(t, run[0], map[string]string{wire.HeaderVerdict: "unique", wire.HeaderAttempt: "1"})
	assertHeaders(t, b.replies("ops.replies")["ops.raw/1/0"], map[string]string{
		wire.HeaderVerdict: "in_progress", wire.HeaderClaimStatus: "in_progress", wire.HeaderRequestID: "second", wire.HeaderFirstRequest: "first",
		wire.HeaderFirst: "ops.raw/0/0", wire.HeaderAttempt: "1", wire.HeaderKey: header(run[0], wire.HeaderKey),
	})

	b.produce(outcomeOf(run[0], "completed", []byte("the result"), kgo.RecordHeader{Key: "content-type", Value: []byte("text/plain")}))
	b.drainClaims(i)
	first := b.replies("ops.replies")["ops.raw/0/0"]
	assertHeaders(t, first, map[string]string{wire.HeaderVerdict: "unique", wire.HeaderClaimStatus: "completed", wire.HeaderRequestID: "first", "content-type": "text/plain"})
	if string(first.Value) != "the result" || string(first.Key) != "k-first" {
		t.Errorf("the first is answered %q, %q", first.Key, first.Value)
	}

	for n, restart := range []string{"running", "restarted", "rebuilt"} {
		if n > 0 {
			must(t, i.stop())
			if restart == "rebuilt" {
				cfg.StateDir = t.TempDir()
			}
			i = b.ready(b.start(cfg))
		}
		b.produce(operation("1", restart, 2))
		b.drainClaims(i)
		again := b.replies("ops.replies")[fmt.Sprintf("ops.raw/2/%d", n)]
		assertHeaders(t, again, map[string]string{
			wire.HeaderVerdict: "replayed", wire.HeaderClaimStatus: "completed", wire.HeaderRequestID: restart, wire.HeaderFirstRequest: "first", "content-type": "text/plain",
		})
		if !bytes.Equal(again.Value, first.Value) || string(again.Key) != "k-"+restart {
			t.Errorf("%s: the duplicate is answered %q, %q", restart, again.Key, again.Value)
		}
	}
	if n := len(b.read("ops.run")); n != 1 {
		t.Errorf("%d events went to the executor", n)
	}
}

// TestThousandDuplicatesRunOnce: duplicates from everywhere at once.
func TestThousandDuplicatesRunOnce(t *testing.T) {
	t.Parallel()
	b := newBench(t, fmt.Sprintf(claimRoutes, "reject"))
	i := b.ready(b.start(b.config("one")))
	rng := rand.New(rand.NewPCG(1, 2))
	var records []*kgo.Record
	for n := range 1000 {
		records = append(records, operation("1", fmt.Sprint(n), rng.Int32N(4)))
	}
	b.produce(records...)
	b.drainClaims(i)
	run := b.read("ops.run")
	if len(run) != 1 {
		t.Fatalf("%d events went to the executor", len(run))
	}
	b.produce(outcomeOf(run[0], "completed", nil))
	b.drainClaims(i)
	pending, unique := 0, 0
	for _, r := range b.replies("ops.replies") {
		switch header(r, wire.HeaderVerdict) {
		case "in_progress":
			pending++
		case "unique":
			unique++
		}
	}
	if pending != 999 || unique != 1 {
		t.Errorf("%d duplicates got in_progress, %d were unique; want 999 and 1", pending, unique)
	}
}

// TestFailureFreesTheKey: failed and rejected let the next duplicate run, under a
// token of its own; the old one is refused.
func TestFailureFreesTheKey(t *testing.T) {
	t.Parallel()
	b := newBench(t, fmt.Sprintf(claimRoutes, "reject"))
	i := b.ready(b.start(b.config("one")))
	var run []*kgo.Record
	for attempt, kind := range []string{"failed", "rejected", "completed"} {
		b.produce(operation("1", fmt.Sprint(attempt), int32(attempt)))
		b.drainClaims(i)
		if run = b.read("ops.run"); len(run) != attempt+1 {
			t.Fatalf("attempt %d: %d events went to the executor", attempt+1, len(run))
		}
		slices.SortFunc(run, func(a, b *kgo.Record) int {
			return strings.Compare(header(a, wire.HeaderAttempt), header(b, wire.HeaderAttempt))
		})
		event := run[attempt]
		assertHeaders(t, event, map[string]string{wire.HeaderVerdict: "unique", wire.HeaderAttempt: fmt.Sprint(attempt + 1)})
		b.produce(outcomeOf(event, kind, []byte(kind)))
		b.drainClaims(i)
		assertHeaders(t, b.replies("ops.replies")[fmt.Sprintf("ops.raw/%d/0", attempt)], map[string]string{wire.HeaderClaimStatus: kind, wire.HeaderVerdict: "unique"})
	}
	b.produce(outcomeOf(run[0], "completed", []byte("zombie")), outcomeOf(run[2], "completed", []byte("completed")), outcomeOf(run[2], "failed", nil))
	b.drainClaims(i)
	b.produce(operation("1", "copy", 3))
	b.drainClaims(i)
	if r := b.replies("ops.replies")["ops.raw/3/0"]; string(r.Value) != "completed" {
		t.Errorf("the duplicate is answered %q", r.Value)
	}
	metrics := gather(t, i)
	for series, want := range map[string]float64{
		`oncebus_outcomes_total{kind="completed",result="applied",route="ops"}`:  1,
		`oncebus_outcomes_total{kind="completed",result="refused",route="ops"}`:  1,
		`oncebus_outcomes_total{kind="completed",result="repeated",route="ops"}`: 1,
		`oncebus_outcomes_total{kind="failed",result="refused",route="ops"}`:     1,
		`oncebus_events_total{route="ops",verdict="replayed"}`:                   1,
		`oncebus_events_total{route="ops",verdict="unique"}`:                     3,
	} {
		if metrics[series] != want {
			t.Errorf("%s is %v, want %v", series, metrics[series], want)
		}
	}
	var reasons []string
	for _, r := range b.read("dead") {
		reasons = append(reasons, header(r, wire.HeaderReason))
	}
	if len(reasons) != 2 || !strings.Contains(strings.Join(reasons, "\n"), "token is for attempt 1, current is 3") {
		t.Errorf("dead letters say %q", reasons)
	}
}

// TestWaitingDuplicatesAreAnsweredOnce: they wait over a restart and a rebuild.
func TestWaitingDuplicatesAreAnsweredOnce(t *testing.T) {
	t.Parallel()
	b := newBench(t, fmt.Sprintf(claimRoutes, "wait\n    max_waiting: 3"))
	cfg := b.config("one")
	i := b.ready(b.start(cfg))
	b.produce(operation("1", "first", 0))
	b.drainClaims(i)
	for n := range 4 {
		b.produce(operation("1", fmt.Sprint(n), 1))
	}
	b.drainClaims(i)
	replies := b.replies("ops.replies")
	if len(replies) != 1 {
		t.Fatalf("%d replies before the outcome, want one: that to the duplicate too many", len(replies))
	}
	assertHeaders(t, replies["ops.raw/1/3"], map[string]string{wire.HeaderVerdict: "in_progress", wire.HeaderRequestID: "3"})
	if n := b.waitingRequests(cfg); n != 4 {
		t.Errorf("%d requests wait by the checkpoint, want 4: who runs, and three duplicates", n)
	}
	must(t, i.stop())
	cfg.StateDir = t.TempDir()
	i = b.ready(b.start(cfg))
	b.produce(outcomeOf(b.read("ops.run")[0], "completed", []byte("done")))
	b.drainClaims(i)
	replies = b.replies("ops.replies")
	if len(replies) != 5 {
		t.Fatalf("%d replies, want 5", len(replies))
	}
	if n := b.waitingRequests(cfg); n != 0 {
		t.Errorf("%d requests wait by the checkpoint after the outcome", n)
	}
	assertHeaders(t, replies["ops.raw/0/0"], map[string]string{wire.HeaderVerdict: "unique", wire.HeaderRequestID: "first"})
	for n := range 3 {
		r := replies[fmt.Sprintf("ops.raw/1/%d", n)]
		assertHeaders(t, r, map[string]string{wire.HeaderVerdict: "replayed", wire.HeaderRequestID: fmt.Sprint(n), wire.HeaderFirstRequest: "first"})
		if string(r.Value) != "done" {
			t.Errorf("duplicate %d is answered %q", n, r.Value)
		}
	}
}

// TestResultOverTheLimit is not stored, and the reply has no value; null stays null.
func TestResultOverTheLimit(t *testing.T) {
	t.Parallel()
	b := newBench(t, fmt.Sprintf(claimRoutes, "reject"))
	i := b.ready(b.start(b.config("one")))
	b.produce(operation("long", "l1", 0), operation("null", "n1", 1))
	b.drainClaims(i)
	for _, event := range b.read("ops.run") {
		if bytes.Contains(event.Value, []byte("long")) {
			b.produce(outcomeOf(event, "completed", make([]byte, 101)))
		} else {
			b.produce(outcomeOf(event, "completed", nil))
		}
	}
	b.drainClaims(i)
	b.produce(operation("long", "l2", 0), operation("null", "n2", 1))
	b.drainClaims(i)
	replies := b.replies("ops.replies")
	if n := len(replies["ops.raw/0/0"].Value); n != 101 {
		t.Errorf("the first got %d bytes", n)
	}
	long, null := replies["ops.raw/0/1"], replies["ops.raw/1/1"]
	if long.Value != nil || !strings.Contains(header(long, wire.HeaderReason), "101 bytes was not kept") {
		t.Errorf("the copy got %d bytes and %v", len(long.Value), long.Headers)
	}
	if null.Value != nil || header(null, wire.HeaderReason) != "" || header(null, wire.HeaderVerdict) != "replayed" {
		t.Errorf("the duplicate of a null got %q and %v", null.Value, null.Headers)
	}
}

// TestUnreadableOutcome goes to the dead-letter topic with the field that is
// wrong, and stops nothing.
func TestUnreadableOutcome(t *testing.T) {
	t.Parallel()
	b := newBench(t, fmt.Sprintf(claimRoutes, "reject"))
	i := b.ready(b.start(b.config("one")))
	b.produce(operation("1", "first", 0))
	b.drainClaims(i)
	event := b.read("ops.run")[0]
	bare := func(headers ...string) *kgo.Record {
		r := &kgo.Record{Topic: "ops.outcomes", Value: []byte("x")}
		for n := 0; n < len(headers); n += 2 {
			r.Headers = append(r.Headers, kgo.RecordHeader{Key: headers[n], Value: []byte(headers[n+1])})
		}
		return r
	}
	foreign := dedup.Token{NamespaceID: 9, Attempt: 1}
	anyAttempt := dedup.Token{Attempt: 0}
	far := dedup.Token{Partition: 99, Attempt: 1}
	want := []string{
		"header oncebus-outcome is missing", "is unknown, want one of", "header oncebus-claim-token is missing", "no claim token",
		"takes no outcomes from topic ops.outcomes", "names no attempt", "names partition 99 of 4",
	}
	b.produce(bare(), bare(wire.HeaderOutcome, "done"), bare(wire.HeaderOutcome, "completed"), bare(wire.HeaderOutcome, "completed", wire.HeaderClaimToken, "AAAA"),
		bare(wire.HeaderOutcome, "completed", wire.HeaderClaimToken, string(foreign.Append(nil))),
		bare(wire.HeaderOutcome, "completed", wire.HeaderClaimToken, string(anyAttempt.Append(nil))),
		bare(wire.HeaderOutcome, "completed", wire.HeaderClaimToken, string(far.Append(nil))),
		outcomeOf(event, "completed", []byte("fine")))
	b.drainClaims(i)
	dead := b.read("dead")
	var reasons []string
	for _, r := range dead {
		reasons = append(reasons, header(r, wire.HeaderReason))
	}
	all := strings.Join(reasons, "\n")
	for _, reason := range want {
		if !strings.Contains(all, reason) {
			t.Errorf("no dead letter says %q:\n%s", reason, all)
		}
	}
	if len(dead) != len(want) {
		t.Errorf("%d dead letters, want %d", len(dead), len(want))
	}
	if r := b.replies("ops.replies")["ops.raw/0/0"]; string(r.Value) != "fine" {
		t.Errorf("the event is answered %q", r.Value)
	}
}

// TestRefusedOutcomeIsExplained: its dead letter has what it said, and of which
// key; what cannot be read is kept as it came, and not at any length.
func TestRefusedOutcomeIsExplained(t *testing.T) {
	t.Parallel()
	b := newBench(t, fmt.Sprintf(claimRoutes, "reject"))
	b.createTopic("dead", 4, "max.message.bytes", fmt.Sprint(app.DeadLetterMinBytes))
	i := b.ready(b.start(b.config("one")))
	b.produce(operation("1", "first", 0))
	b.drainClaims(i)
	run := b.read("ops.run")[0]
	token := header(run, wire.HeaderClaimToken)
	b.produce(outcomeOf(run, "completed", []byte("done")))
	b.drainClaims(i)
	unknown, err := dedup.ParseToken([]byte(token))
	must(t, err)
	unknown.Digest[0]++
	standing := map[string]string{wire.HeaderKey: header(run, wire.HeaderKey), wire.HeaderFirst: "ops.raw/0/0", wire.HeaderFirstTime: fmt.Sprint(testTime)}
	long := strings.Repeat("x", 20_000)
	for _, c := range []struct {
		token, kind, reason string
		want                map[string]string
	}{
		{token, "failed", "outcome refused: failed is too late: the key is completed", standing},
		{string(unknown.Append(nil)), "completed", "outcome refused: no claim: the key has no row", map[string]string{wire.HeaderKey: ""}},
		{token, "done", "is unknown, want one of", map[string]string{wire.HeaderKey: ""}},
		{token + "\n", "completed", "no claim token", nil},
		{"", "completed", "no claim token", nil},
		{long, "completed", "no claim token", map[string]string{wire.HeaderClaimToken: long[:256]}},
		{token, long, "is unknown, want one of", map[string]string{wire.HeaderOutcome: long[:256]}},
	} {
		before := len(b.read("dead"))
		o := outcomeOf(run, c.kind, fmt.Append(nil, before), kgo.RecordHeader{Key: "foreign", Value: []byte("f")}, kgo.RecordHeader{Key: "oncebus-key", Value: []byte("forged")})
		for n := range o.Headers {
			if o.Headers[n].Key == wire.HeaderClaimToken {
				o.Headers[n].Value = []byte(c.token)
			}
		}
		b.produce(o)
		b.drainClaims(i)
		var dead *kgo.Record
		for _, r := range b.read("dead") {
			if string(r.Value) == fmt.Sprint(before) {
				dead = r
			}
		}
		want := map[string]string{wire.HeaderClaimToken: c.token, wire.HeaderOutcome: c.kind, wire.HeaderKey: "", wire.HeaderVerdict: "invalid", "foreign": "f"}
		maps.Copy(want, c.want)
		assertHeaders(t, dead, want)
		if reason := header(dead, wire.HeaderReason); !strings.Contains(reason, c.reason) {
			t.Errorf("reason %q, want %q", reason, c.reason)
		}
	}
}

// TestCollisionIsNoDuplicate: the key of another event with other details.
func TestCollisionIsNoDuplicate(t *testing.T) {
	t.Parallel()
	b := newBench(t, fmt.Sprintf(claimRoutes, "reject"))
	i := b.ready(b.start(b.config("one")))
	other := operation("1", "other", 1)
	other.Value = bytes.Replace(other.Value, []byte(`"amount":5`), []byte(`"amount":6`), 1)
	b.produce(operation("1", "first", 0))
	b.drainClaims(i)
	b.produce(other)
	b.drainClaims(i)
	dead := b.read("dead")
	if len(dead) != 1 {
		t.Fatalf("%d dead letters", len(dead))
	}
	assertHeaders(t, dead[0], map[string]string{wire.HeaderVerdict: "collision", wire.HeaderFirst: "ops.raw/0/0", wire.HeaderSource: "ops.raw/1/0"})
	assertHeaders(t, b.replies("ops.replies")["ops.raw/1/0"], map[string]string{wire.HeaderVerdict: "collision", wire.HeaderFirstRequest: "first", wire.HeaderRequestID: "other"})
	if n := gather(t, i)[`oncebus_events_total{route="ops",verdict="collision"}`]; n != 1 {
		t.Errorf("%v collisions are counted", n)
	}
	if !strings.Contains(b.logs.String(), "collision: two events with one key") {
		t.Error("the log has no line about it")
	}
}

// TestAdjacentBucketIsChecked: orders on both sides of the minute's edge
// are duplicates while they are less than a step apart by their own timestamps,
// from whatever side, whether these are the events' times or not.
func TestAdjacentBucketIsChecked(t *testing.T) {
	t.Parallel()
	const routes = `routes:
  - name: orders
    topics: [ops.raw]
    key:
      - order: {adjacent_buckets: %v}
    %s
    window: 1h
    output: ops.run
    duplicates: {to: ops.duplicates}
    dead_letter: dead
`
	const edge = testTime / 60_000 * 60_000
	for _, c := range []struct {
		adjacent bool
		times    []int64 // of one order's duplicates, from the edge on
		unique   string  // which of them run
	}{
		{false, []int64{-1, 0}, "[-1 0]"},
		{true, []int64{-1, 0}, "[-1]"},
		{true, []int64{0, -1}, "[0]"},
		{true, []int64{-60_000, -1, 0}, "[-60000 0]"}, // -1 is a duplicate of the first, and a duplicate is no original
		{true, []int64{-30_000, 29_999, 30_000}, "[-30000 30000]"},
		{true, []int64{0, 59_999, 60_000, 119_999, 120_001}, "[0 60000 120001]"},
	} {
		t.Run(fmt.Sprint(c.adjacent, c.times), func(t *testing.T) {
			t.Parallel()
			timed := [...]string{"time: {field: timestamp}", "grace: 10m"}[len(c.times)%2]
			b := newBench(t, fmt.Sprintf(routes, c.adjacent, timed))
			i := b.ready(b.start(b.config("one")))
			for n, at := range c.times {
				b.produce(&kgo.Record{
					Topic: "ops.raw", Partition: int32(n % 4), Key: fmt.Append(nil, at), Timestamp: time.UnixMilli(testTime),
					Value: fmt.Appendf(nil, `{"account":"A","symbol":"aapl","side":"buy","quantity":"1","type":"market","timestamp":%d}`, edge+at),
				})
				b.drain(i, "ops.raw")
			}
			var unique []int64
			for _, r := range b.read("ops.run") {
				var at int64
				if _, err := fmt.Sscan(string(r.Key), &at); err != nil {
					t.Fatal(err)
				}
				unique = append(unique, at)
			}
			slices.Sort(unique)
			if got := fmt.Sprint(unique); got != c.unique {
				t.Errorf("%v ran, want %v", got, c.unique)
			}
			if n := len(b.read("ops.duplicates")); n != len(c.times)-len(unique) {
				t.Errorf("%d duplicates, want %d", n, len(c.times)-len(unique))
			}
		})
	}
}
