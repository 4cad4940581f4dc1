package processor

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"oncebus/dedup"
	"oncebus/dedup/rules"
	"oncebus/processor/wire"
)

// addressed is a record of somebody who may write to the raw topic and wants
// the verdict on it told at the address.
func addressed(id string, partition int32, to []byte) *kgo.Record {
	r := operation(id, "forged "+id, partition)
	r.Headers = append(r.Headers, kgo.RecordHeader{Key: wire.HeaderReplyTo, Value: to})
	return r
}

// TestForgedAddressAnswersNobody: who counts through the numbers of questions
// gets no verdict on another event told in place of a sender's own.
func TestForgedAddressAnswersNobody(t *testing.T) {
	b := newHTTPBench(t, fmt.Sprintf(claimRoutes, "wait"))
	cfg := b.config("one")
	i := b.ready(b.start(cfg))
	f := b.front("front")
	assertAnswer(t, f.ask(request("1", "first")), "unique in_progress attempt 1 passed")
	twin := f.wait(t.Context(), request("1", "twin"))
	b.wait("requests to wait", func() bool { return b.waitingTold(cfg) == 2 })
	var forged []*kgo.Record
	for ask := range uint64(8) {
		address := dedup.Address{Partition: f.at.Load().partition, Ingress: f.number, Request: ask}.AppendText(nil)
		unkeyed := addressed("", 1, address)
		unkeyed.Value = []byte(`{}`)
		forged = append(forged, addressed(fmt.Sprintf("forged %d", ask), int32(ask%4), address), unkeyed)
	}
	b.produce(forged...)
	b.drain(i, "ops.raw")
	assertAnswer(t, f.ask(request("2", "after them")), "unique in_progress attempt 1 passed") // whose verdict was told after theirs
	for _, r := range b.read("ops.run") {
		if header(r, wire.HeaderKey) == f.keyOf(request("1", "first")) {
			must(t, f.conclude(r, dedup.OutcomeCompleted, []byte("done")))
		}
	}
	answer := <-twin.answer
	must(t, <-twin.err)
	assertAnswer(t, answer, "replayed completed attempt 1 settled")
	if string(answer.Value) != "done" || answer.FirstRequest != "first" {
		t.Errorf("told %+v", answer)
	}
}

// keyOf is the dedup key of an event as text.
func (f *runningFront) keyOf(s *Submission) string {
	f.b.t.Helper()
	d, err := f.Derive(s)
	must(f.b.t, err)
	return wire.KeyText(&d.Key)
}

// TestAnswerOfAnotherKeyIsPassedOver, and takes no room of the right one.
func TestAnswerOfAnotherKeyIsPassedOver(t *testing.T) {
	d := rules.Derived{Finding: rules.Keyed, Key: [32]byte{1}}
	other := strings.Repeat("02", 32)
	for _, c := range []struct {
		name    string
		near    bool
		answers []wire.Answer
		want    string // the reasons of those that are told
	}{
		{"its own", false, []wire.Answer{{Key: wire.KeyText(&d.Key), Reason: "a"}}, "a"},
		{"others", false, []wire.Answer{{Key: other}, {}, {Key: other, HasOutcome: true}, {Key: wire.KeyText(&d.Key), Reason: "a"}}, "a"},
		{"outcome", false, []wire.Answer{{Key: wire.KeyText(&d.Key), OutcomeFollows: true, Reason: "a"}, {Key: other, HasOutcome: true}, {Key: wire.KeyText(&d.Key), HasOutcome: true, Reason: "b"}}, "ab"},
		{"outcome of a neighbour", true, []wire.Answer{{Key: other, HasOutcome: true}, {Key: wire.KeyText(&d.Key), OutcomeFollows: true, Reason: "a"}, {Key: other}, {Key: other, HasOutcome: true, Reason: "b"}}, "ab"},
	} {
		d.HasAdjacent = c.near
		q := questionOf(&d)
		for i := range c.answers {
			q.tell(&c.answers[i])
		}
		got := ""
		for len(q.answers) > 0 {
			a := <-q.answers
			got += a.Reason
		}
		if got != c.want {
			t.Errorf("%s: told %q, want %q", c.name, got, c.want)
		}
	}
}

// TestNumbersOfQuestions are none that is in use, and none that follows from
// those before.
func TestNumbersOfQuestions(t *testing.T) {
	a := newAsks([32]byte{1})
	first := a.begin(&question{})
	again := newAsks([32]byte{1}) // which draws the same
	again.waiting[first] = &question{}
	if second := again.begin(&question{}); second == first || second-first < 1<<32 || a.of(first) == nil || a.of(second) != nil {
		t.Errorf("drew %x, then %x", first, second)
	}
	if n := testing.AllocsPerRun(100, func() {
		q := a.waiting[first]
		a.end(first)
		first = a.begin(q)
	}); n != 0 {
		t.Errorf("a question's number takes %v allocations", n)
	}
}

// TestWaitingNeighbourIsToldTheOutcome of the original, under its own key.
func TestWaitingNeighbourIsToldTheOutcome(t *testing.T) {
	routes := strings.Replace(fmt.Sprintf(claimRoutes, "wait"), "      - fields: [account, id]\n", "      - order: {adjacent_buckets: true}\n    time: {field: timestamp}\n", 1)
	b := newHTTPBench(t, routes)
	cfg := b.config("one")
	b.ready(b.start(cfg))
	f := b.front("front")
	const edge = testTime / 60_000 * 60_000
	order := func(at int64, request string) *Submission {
		return &Submission{Topic: "ops.raw", Time: time.UnixMilli(at), Value: fmt.Appendf(nil,
			`{"account":"A","symbol":"aapl","side":"buy","quantity":"1","type":"market","amount":5,"timestamp":%d,"request":%q}`, at, request)}
	}
	first := f.ask(order(edge-1, "first"))
	assertAnswer(t, first, "unique in_progress attempt 1 passed")
	twin := f.wait(t.Context(), order(edge, "twin"))
	b.wait("requests to wait", func() bool { return b.waitingTold(cfg) == 2 })
	must(t, f.conclude(b.lastRun("1"), dedup.OutcomeCompleted, []byte("done")))
	answer := <-twin.answer
	must(t, <-twin.err)
	assertAnswer(t, answer, "replayed completed attempt 1 settled")
	after := f.ask(order(edge, "later"))
	if answer.Key == first.Key || answer.Key != after.Key || string(answer.Value) != "done" {
		t.Errorf("the first is told %+v, its neighbour %+v and later %+v", first, answer, after)
	}
}
