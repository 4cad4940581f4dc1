package processor_test

import (
	"bytes"
	"fmt"
	"strings"
	"testing"

	"github.com/twmb/franz-go/pkg/kgo"

	"oncebus/processor/wire"
)

// sharedRoutes has two routes in one namespace, each with an input, an output and a
// dead-letter topic of its own.
var sharedRoutes = fmt.Sprintf(claimRoutes, "wait") + "    namespace: shared\n" +
	strings.NewReplacer("routes:\n", "", "name: ops", "name: late", "ops.raw", "late.raw", "ops.run", "late.run", "dead_letter: dead", "dead_letter: late.dead\n    namespace: shared").
		Replace(fmt.Sprintf(claimRoutes, "wait"))

// lateOperation is an operation for the second route.
func lateOperation(id, request string, partition int32) *kgo.Record {
	r := operation(id, request, partition)
	r.Topic = "late.raw"
	return r
}

func (b *bench) drainShared(i *instance) {
	b.t.Helper()
	b.drain(i, "ops.raw", "late.raw", "ops.outcomes")
}

// TestOutcomeIsOfTheRouteThatClaimed runs two routes in one namespace. Replies have the route of their request; the
// metric and the dead letter of an outcome have the route whose event claimed the key.
func TestOutcomeIsOfTheRouteThatClaimed(t *testing.T) {
	t.Parallel()
	b := newBench(t, sharedRoutes)
	cfg := b.config("one")
	i := b.ready(b.start(cfg))
	b.produce(lateOperation("1", "first", 0))
	b.drainShared(i)
	b.produce(operation("1", "waits", 1))
	b.drainShared(i)
	run := b.read("late.run")[0]
	must(t, i.stop())
	cfg.StateDir = t.TempDir() // the routes are part of the changelog
	i = b.ready(b.start(cfg))
	b.produce(outcomeOf(run, "completed", []byte("done")))
	b.drainShared(i)
	replies := b.replies("ops.replies")
	assertHeaders(t, replies["late.raw/0/0"], map[string]string{wire.HeaderRoute: "late", wire.HeaderVerdict: "unique"})
	assertHeaders(t, replies["ops.raw/1/0"], map[string]string{wire.HeaderRoute: "ops", wire.HeaderVerdict: "replayed"})

	b.produce(outcomeOf(run, "completed", []byte("done"))) // repeated
	b.produce(outcomeOf(run, "failed", nil))               // too late
	unreadable := outcomeOf(run, "done", nil)
	b.produce(unreadable)
	b.drainShared(i)
	if n := len(b.read("dead")); n != 0 {
		t.Errorf("%d dead letters of the first route, want none", n)
	}
	dead := b.read("late.dead")
	if len(dead) != 2 {
		t.Fatalf("%d dead letters of the second route, want 2", len(dead))
	}
	for _, r := range dead {
		assertHeaders(t, r, map[string]string{wire.HeaderRoute: "late"})
	}
	metrics := gather(t, i)
	for _, series := range []string{
		`{kind="completed",result="applied",route="late"}`, `{kind="completed",result="repeated",route="late"}`,
		`{kind="failed",result="refused",route="late"}`, `{kind="unreadable",result="refused",route="late"}`,
	} {
		if metrics["oncebus_outcomes_total"+series] != 1 || metrics["oncebus_outcomes_total"+strings.Replace(series, "late", "ops", 1)] != 0 {
			t.Errorf("%s is %v, of the first route %v", series, metrics["oncebus_outcomes_total"+series], metrics["oncebus_outcomes_total"+strings.Replace(series, "late", "ops", 1)])
		}
	}
}

// TestReplyHasALongRecordKey protects that replies carry a long record key whole: the replies to the first event and
// to its duplicates, also to duplicates that wait.
func TestReplyHasALongRecordKey(t *testing.T) {
	t.Parallel()
	b := newBench(t, fmt.Sprintf(claimRoutes, "wait"))
	i := b.ready(b.start(b.config("one")))
	key := func(n int) []byte { return bytes.Repeat([]byte{byte('a' + n)}, 1<<10+1+n*100_000) }
	for n := range 3 {
		r := operation("1", fmt.Sprint(n), int32(n))
		r.Key = key(n)
		b.produce(r)
		b.drainClaims(i)
		if n == 1 {
			b.produce(outcomeOf(b.read("ops.run")[0], "completed", []byte("done")))
			b.drainClaims(i)
		}
	}
	replies := b.replies("ops.replies")
	for n := range 3 {
		r := replies[fmt.Sprintf("ops.raw/%d/0", n)]
		if r == nil || !bytes.Equal(r.Key, key(n)) || string(r.Value) != "done" {
			t.Errorf("reply %d has not its record key of %d bytes, or no result", n, len(key(n)))
		}
	}
}

// TestHeadersOfOutcomesInAnyLetterCase protects that the case of header names does not matter, because an executor
// may copy the names from HTTP.
func TestHeadersOfOutcomesInAnyLetterCase(t *testing.T) {
	t.Parallel()
	for _, names := range [][2]string{{"Oncebus-Claim-Token", "Oncebus-Outcome"}, {"ONCEBUS-CLAIM-TOKEN", "oncebus-Outcome"}} {
		t.Run(names[0], func(t *testing.T) {
			t.Parallel()
			b := newBench(t, fmt.Sprintf(claimRoutes, "reject"))
			i := b.ready(b.start(b.config("one")))
			b.produce(operation("1", "first", 0))
			b.drainClaims(i)
			run := b.read("ops.run")[0]
			b.produce(&kgo.Record{Topic: "ops.outcomes", Value: []byte("done"), Headers: []kgo.RecordHeader{
				{Key: names[0], Value: []byte(header(run, wire.HeaderClaimToken))}, {Key: names[1], Value: []byte("completed")}, {Key: "Case", Value: []byte("kept")},
			}})
			b.drainClaims(i)
			assertHeaders(t, b.replies("ops.replies")["ops.raw/0/0"], map[string]string{wire.HeaderClaimStatus: "completed", "Case": "kept", names[0]: "", names[1]: ""})
			b.produce(&kgo.Record{Topic: "ops.outcomes", Headers: []kgo.RecordHeader{
				{Key: names[0], Value: []byte("no token")}, {Key: names[1], Value: []byte("completed")},
			}})
			b.drainClaims(i)
			dead := b.read("dead")
			if len(dead) != 1 {
				t.Fatalf("%d dead letters, want 1", len(dead))
			}
			assertHeaders(t, dead[0], map[string]string{wire.HeaderClaimToken: "no token", wire.HeaderOutcome: "completed"})
		})
	}
}
