package processor_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"oncebus/dedup"
	"oncebus/processor/front"
	"oncebus/processor/wire"
)

// addressed makes a record of a producer that may write to the raw topic and asks for its verdict at this address.
func addressed(id string, partition int32, to []byte) *kgo.Record {
	r := operation(id, "forged "+id, partition)
	r.Headers = append(r.Headers, kgo.RecordHeader{Key: wire.HeaderReplyTo, Value: to})
	return r
}

// TestForgedAddressGetsNoVerdict protects that a client which guesses the numbers of requests cannot have the verdict
// of another event delivered in place of the sender's own.
func TestForgedAddressGetsNoVerdict(t *testing.T) {
	t.Parallel()
	b := newHTTPBench(t, fmt.Sprintf(claimRoutes, "wait"))
	cfg := b.config("one")
	i := b.ready(b.start(cfg))
	f := b.ingress("front")
	assertAnswer(t, f.submit(request("1", "first")), "unique in_progress attempt 1 forwarded")
	twin := f.wait(t.Context(), request("1", "twin"))
	b.wait("requests to wait", func() bool { return b.waitingRequests(cfg) == 2 })
	var forged []*kgo.Record
	for ask := range uint64(8) {
		address := f.Address(ask).AppendText(nil)
		missingKey := addressed("", 1, address)
		missingKey.Value = []byte(`{}`)
		forged = append(forged, addressed(fmt.Sprintf("forged %d", ask), int32(ask%4), address), missingKey)
	}
	b.produce(forged...)
	b.drain(i, "ops.raw")
	assertAnswer(t, f.submit(request("2", "after them")), "unique in_progress attempt 1 forwarded") // whose verdict was sent after theirs
	for _, r := range b.read("ops.run") {
		if header(r, wire.HeaderKey) == f.keyOf(request("1", "first")) {
			must(t, f.conclude(r, dedup.OutcomeCompleted, []byte("done")))
		}
	}
	answer := <-twin.answer
	must(t, <-twin.err)
	assertAnswer(t, answer, "replayed completed attempt 1 outcome")
	if string(answer.Value) != "done" || answer.FirstRequest != "first" {
		t.Errorf("the answer is %+v", answer)
	}
}

// keyOf returns the dedup key of an event as text.
func (f *runningIngress) keyOf(s *front.Submission) string {
	f.b.t.Helper()
	d, err := f.Derive(s)
	must(f.b.t, err)
	return wire.KeyText(&d.Key)
}

// TestWaitingAdjacentDuplicateReceivesTheOutcome protects that a waiting duplicate in an adjacent bucket receives the
// outcome of the original event, under its own key.
func TestWaitingAdjacentDuplicateReceivesTheOutcome(t *testing.T) {
	t.Parallel()
	routes := strings.Replace(fmt.Sprintf(claimRoutes, "wait"), "      - fields: [account, id]\n", "      - order: {adjacent_buckets: true}\n    time: {field: timestamp}\n", 1)
	b := newHTTPBench(t, routes)
	cfg := b.config("one")
	b.ready(b.start(cfg))
	f := b.ingress("front")
	const edge = testTime / 60_000 * 60_000
	order := func(at int64, request string) *front.Submission {
		return &front.Submission{Topic: "ops.raw", Time: time.UnixMilli(at), Value: fmt.Appendf(nil,
			`{"account":"A","symbol":"aapl","side":"buy","quantity":"1","type":"market","amount":5,"timestamp":%d,"request":%q}`, at, request)}
	}
	first := f.submit(order(edge-1, "first"))
	assertAnswer(t, first, "unique in_progress attempt 1 forwarded")
	twin := f.wait(t.Context(), order(edge, "twin"))
	b.wait("requests to wait", func() bool { return b.waitingRequests(cfg) == 2 })
	must(t, f.conclude(b.lastRun("1"), dedup.OutcomeCompleted, []byte("done")))
	answer := <-twin.answer
	must(t, <-twin.err)
	assertAnswer(t, answer, "replayed completed attempt 1 outcome")
	after := f.submit(order(edge, "later"))
	if answer.Key == first.Key || answer.Key != after.Key || string(answer.Value) != "done" {
		t.Errorf("the first got %+v, the adjacent one %+v and later %+v", first, answer, after)
	}
}
