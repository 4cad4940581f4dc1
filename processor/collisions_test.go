package processor_test

import (
	"fmt"
	"log/slog"
	"strings"
	"testing"

	"github.com/twmb/franz-go/pkg/kgo"

	"oncebus/dedup"
	"oncebus/dedup/rules"
	"oncebus/processor/front"
	"oncebus/processor/wire"
)

// runsOf returns the records of the output with a record key.
func (s *shippedOrders) runsOf(key string) (runs []*kgo.Record) {
	s.t.Helper()
	for _, r := range s.read("orders.unique") {
		if string(r.Key) == key {
			runs = append(runs, r)
		}
	}
	return runs
}

// TestCollidingOrderRunsOnce sends an order whose key collides with another order's key six times, also past the edge
// of the bucket and through other partitions. The order runs once, with a token and a key of its own, and every
// duplicate is answered.
func TestCollidingOrderRunsOnce(t *testing.T) {
	t.Parallel()
	s := newShippedOrders(t)
	s.send(order("a", "c1", 10_000, 10_000, 0))
	for n := range int32(5) {
		s.send(order("b", "c2", 50_000, 50_000+int64(n)*1000, n%4))
	}
	s.send(order("b", "c2", 61_000, 61_000, 2))
	runs := s.runsOf("b")
	if len(runs) != 1 || len(s.runsOf("a")) != 1 {
		t.Fatalf("b ran %d times, a %d times, want once each", len(runs), len(s.runsOf("a")))
	}
	assertHeaders(t, runs[0], map[string]string{wire.HeaderVerdict: "collision", wire.HeaderAttempt: "1"})
	if a := s.runsOf("a")[0]; header(runs[0], wire.HeaderKey) == header(a, wire.HeaderKey) || header(runs[0], wire.HeaderClaimToken) == "" {
		t.Errorf("key and token of b are %v, of a %v", runs[0].Headers, a.Headers)
	}
	answered := map[string]int{}
	for _, r := range s.read("orders.replies") {
		answered[string(r.Key)+" "+header(r, wire.HeaderVerdict)]++
	}
	if answered["b in_progress"] != 5 || len(answered) != 1 {
		t.Errorf("replies %v, want five to b", answered)
	}
	s.promiseHeld(s.cfg)
}

// TestCollisionByHTTPRunsOnce protects that the senders of a colliding event get the outcome of this event, also a
// sender that waits for it. The route has no adjacent buckets.
func TestCollisionByHTTPRunsOnce(t *testing.T) {
	t.Parallel()
	b := newHTTPBench(t, fmt.Sprintf(claimRoutes, "wait")+"    collision: forward\n")
	cfg := b.config("one")
	i := b.ready(b.start(cfg))
	f := b.ingress("front")
	other := func(name string) *front.Submission {
		s := request("1", name)
		s.Value = []byte(strings.Replace(string(s.Value), `"amount":5`, `"amount":6`, 1))
		return s
	}
	b.produce(operation("1", "first", 0))
	b.drainClaims(i)
	assertAnswer(t, f.submit(other("other")), "collision in_progress attempt 1 forwarded")
	twin := f.wait(t.Context(), other("twin"))
	b.wait("the requests to wait", func() bool { return b.waitingRequests(cfg) == 3 })
	runs := b.read("ops.run")
	var run *kgo.Record
	for _, r := range runs {
		if header(r, wire.HeaderVerdict) == "collision" {
			run = r
		}
	}
	if len(runs) != 2 || run == nil {
		t.Fatalf("%d events went to the executor, want two, one of them as a collision", len(runs))
	}
	must(t, f.conclude(run, dedup.OutcomeCompleted, []byte("of six")))
	answer := <-twin.answer
	must(t, <-twin.err)
	if assertAnswer(t, answer, "replayed completed attempt 1 outcome"); string(answer.Value) != "of six" {
		t.Errorf("a sender that waits for the colliding event's outcome gets %+v", answer)
	}
	if a := f.submit(other("late")); a.Verdict != dedup.Replayed || string(a.Value) != "of six" {
		t.Errorf("a duplicate of the colliding event gets %+v", a)
	}

	inspector, err := front.NewInspector(t.Context(), cfg.Config, b.routes, slog.New(slog.DiscardHandler))
	must(t, err)
	defer inspector.Close()
	derived := b.routes.NewDeriver(nil).Derive(&rules.Input{Topic: "ops.raw", Value: other("x").Value, Timestamp: testTime})
	entry, found, err := inspector.Lookup(t.Context(), &derived)
	if err != nil || !found || string(entry.Claim.Result) != "of six" {
		t.Errorf("get of the colliding event: %+v, %v, %v", entry, found, err)
	}
	b.forget(inspector, derived)
	b.produce(operation("1", "first again", 0))
	b.drainClaims(i)
	if n := len(b.read("ops.run")); n != 2 {
		t.Errorf("after the colliding event is erased, the first one ran again: %d runs", n)
	}
}
