package processor_test

import (
	"bytes"
	"fmt"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

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

// operation makes a raw record. The value request is the sender's name for it.
func operation(id, request string, partition int32) *kgo.Record {
	return &kgo.Record{
		Topic: "ops.raw", Partition: partition, Key: []byte("k-" + request), Timestamp: time.UnixMilli(testTime),
		Value: fmt.Appendf(nil, `{"account":"a","id":%q,"request":%q,"amount":5}`, id, request),
	}
}

// outcomeOf makes the outcome with which an executor answers an event that it was given.
func outcomeOf(event *kgo.Record, kind string, value []byte, headers ...kgo.RecordHeader) *kgo.Record {
	return &kgo.Record{
		Topic: "ops.outcomes", Key: event.Key, Value: value,
		Headers: append(headers, kgo.RecordHeader{Key: wire.HeaderClaimToken, Value: []byte(header(event, wire.HeaderClaimToken))}, kgo.RecordHeader{Key: wire.HeaderOutcome, Value: []byte(kind)}),
	}
}

// replies returns the replies by the record that each answers.
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

// TestDuplicateGetsTheOutcomeOfTheFirst follows a claim: its event is dispatched once, is in progress, and its
// outcome is recorded and replayed as recorded, also after a restart and after a rebuild from the changelog.
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
	b.promiseHeld(cfg)
}

// TestEverySenderGetsAReply protects that an event that claims no key gets a reply like all others, also after a
// restart, and so does an event whose key an operator erased while it ran.
func TestEverySenderGetsAReply(t *testing.T) {
	t.Parallel()
	b := newBench(t, fmt.Sprintf(claimRoutes, "wait")+"    limits: {live_keys: 3}\n    on_late: forward\n")
	cfg := b.onePartition("one")
	i := b.ready(b.start(cfg))
	at := func(id, request string, after time.Duration) *kgo.Record {
		r := operation(id, request, 0)
		r.Timestamp = r.Timestamp.Add(after)
		return r
	}
	b.produce(at("1", "first", 0), at("1", "waits", time.Millisecond), at("2", "erased", 0), at("3", "tick", 71*time.Minute))
	b.drainClaims(i)
	run := b.read("ops.run")
	b.produce(outcomeOf(run[0], "completed", []byte("the result")), outcomeOf(run[1], "forget", nil))
	b.drainClaims(i)
	must(t, i.stop())
	i = b.ready(b.start(cfg))
	nameless := &kgo.Record{Topic: "ops.raw", Key: []byte("k"), Timestamp: time.UnixMilli(testTime), Value: []byte(`{"account":"a","request":"nokey"}`)}
	b.produce(at("1", "retry", 0), at("4", "late", 0), at("5", "fits", 71*time.Minute), at("6", "limited", 71*time.Minute), at("7", "future", 50*365*24*time.Hour), nameless)
	b.drainClaims(i)
	replies := b.replies("ops.replies")
	for offset, want := range []string{
		"first unique completed", "waits replayed completed", "erased unique erased", "", "retry replayed completed", "late late forwarded", "",
		"limited limited ", "future invalid ", "nokey missing_key ",
	} {
		got := ""
		if r := replies[fmt.Sprint("ops.raw/0/", offset)]; r != nil {
			got = header(r, wire.HeaderRequestID) + " " + header(r, wire.HeaderVerdict) + " " + header(r, wire.HeaderClaimStatus)
		}
		if got != want {
			t.Errorf("the event at offset %d got %q, want %q", offset, got, want)
		}
	}
	if n := len(b.read("ops.run")); n != 5 {
		t.Errorf("%d events went to the executor, want 5: one for each key, and the late one", n)
	}
	b.promiseHeld(cfg)
}
