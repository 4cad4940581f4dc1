package processor_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"oncebus/dedup"
	"oncebus/processor/front"
	"oncebus/processor/wire"
)

// anonymous makes a request without an id of its sender.
func anonymous(id string) *front.Submission {
	s := request(id, "x")
	s.Value = []byte(strings.Replace(string(s.Value), `"request":"x",`, "", 1))
	return s
}

// addressed returns how many requests have got a verdict.
func (b *bench) addressed() int {
	addresses := map[string]bool{}
	for _, r := range b.read("app-verdicts") {
		addresses[header(r, wire.HeaderReplyTo)] = true
	}
	return len(addresses)
}

// TestRequestThatComesAgainTakesItsPlace protects that a client that waits, gives up and comes again uses one place,
// with and without a request id. The places of other requests stay free, and every client gets one reply.
func TestRequestThatComesAgainTakesItsPlace(t *testing.T) {
	t.Parallel()
	for name, poll := range map[string]func() *front.Submission{
		"with a request id":    func() *front.Submission { return request("1", "same sender") },
		"without a request id": func() *front.Submission { return anonymous("1") },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newHTTPBench(t, fmt.Sprintf(claimRoutes, "wait\n    max_waiting: 2"))
			cfg := b.config("one")
			i := b.ready(b.start(cfg))
			f := b.ingress("front")
			assertAnswer(t, f.submit(request("1", "first")), "unique in_progress attempt 1 forwarded")
			const polls = 4
			for n := range polls {
				ctx, cancel := context.WithCancel(t.Context())
				client := f.wait(ctx, poll())
				b.wait("the poll to be judged", func() bool { return b.addressed() == n+2 })
				if waiting := b.waitingRequests(cfg); waiting != 2 {
					t.Fatalf("poll %d: %d requests wait, want the first and the poll", n, waiting)
				}
				cancel()
				<-client.answer
				if err := <-client.err; err != nil && !errors.Is(err, front.ErrNoVerdict) {
					t.Fatal(err)
				}
			}
			last := f.wait(t.Context(), poll())
			b.wait("the last poll to be judged", func() bool { return b.addressed() == polls+2 })
			other := f.wait(t.Context(), request("1", "another sender"))
			b.wait("another sender to wait", func() bool { return b.waitingRequests(cfg) == 3 })
			must(t, f.conclude(b.lastRun("1"), dedup.OutcomeCompleted, []byte("done")))
			for _, client := range []inFlight{last, other} {
				answer := <-client.answer
				must(t, <-client.err)
				assertAnswer(t, answer, "replayed completed attempt 1 outcome")
			}
			b.drainClaims(i)
			statuses := map[string]int{}
			for _, r := range b.replies("ops.replies") { // which fails for a second reply to one request
				statuses[header(r, wire.HeaderVerdict)]++
			}
			if statuses["unique"] != 1 || statuses["replayed"] != 2 || statuses["in_progress"] != polls {
				t.Errorf("replies: %v", statuses)
			}
		})
	}
}

// TestRequestsThatWaitAtOnceKeepTheirPlaces protects that a client may have the same request waiting twice at a time:
// both get the outcome.
func TestRequestsThatWaitAtOnceKeepTheirPlaces(t *testing.T) {
	t.Parallel()
	b := newHTTPBench(t, fmt.Sprintf(claimRoutes, "wait\n    max_waiting: 2"))
	cfg := b.config("one")
	b.ready(b.start(cfg))
	f := b.ingress("front")
	f.submit(request("1", "first"))
	var clients []inFlight
	for n := range uint64(2) {
		clients = append(clients, f.wait(t.Context(), request("1", "same sender")))
		b.wait("a request to wait", func() bool { return b.waitingRequests(cfg) == n+2 })
	}
	must(t, f.conclude(b.lastRun("1"), dedup.OutcomeCompleted, []byte("done")))
	for _, client := range clients {
		answer := <-client.answer
		must(t, <-client.err)
		assertAnswer(t, answer, "replayed completed attempt 1 outcome")
	}
}

// TestRequestAtAnotherIngressTakesThePlaceOfItsID covers a request that comes again at another ingress, which cannot
// know whether the first client is gone. If the first client still waits, it gets its answer at once.
func TestRequestAtAnotherIngressTakesThePlaceOfItsID(t *testing.T) {
	t.Parallel()
	b := newHTTPBench(t, fmt.Sprintf(claimRoutes, "wait\n    max_waiting: 1"))
	cfg := b.config("one")
	b.ready(b.start(cfg))
	one, two := b.ingress("one"), b.ingress("two")
	one.submit(request("1", "first"))
	earlier := one.wait(t.Context(), request("1", "same sender"))
	b.wait("a request to wait", func() bool { return b.waitingRequests(cfg) == 2 })
	later := two.wait(t.Context(), request("1", "same sender"))
	answer := <-earlier.answer
	must(t, <-earlier.err)
	assertAnswer(t, answer, "in_progress in_progress attempt 1")
	must(t, one.conclude(b.lastRun("1"), dedup.OutcomeCompleted, []byte("done")))
	answer = <-later.answer
	must(t, <-later.err)
	assertAnswer(t, answer, "replayed completed attempt 1 outcome")
}

// TestReplacedRequestOfAnAdjacentBucketIsAnswered protects that a replaced request is answered although its claim is
// under the key of an adjacent bucket.
func TestReplacedRequestOfAnAdjacentBucketIsAnswered(t *testing.T) {
	t.Parallel()
	routes := strings.Replace(fmt.Sprintf(claimRoutes, "wait\n    max_waiting: 1"), "      - fields: [account, id]\n", "      - order: {adjacent_buckets: true}\n    time: {field: timestamp}\n", 1)
	b := newHTTPBench(t, routes)
	cfg := b.config("one")
	b.ready(b.start(cfg))
	one, two := b.ingress("one"), b.ingress("two")
	const edge = testTime / 60_000 * 60_000
	order := func(at int64, request string) *front.Submission {
		return &front.Submission{Topic: "ops.raw", Time: time.UnixMilli(at), Value: fmt.Appendf(nil,
			`{"account":"A","symbol":"aapl","side":"buy","quantity":"1","type":"market","amount":5,"timestamp":%d,"request":%q}`, at, request)}
	}
	assertAnswer(t, one.submit(order(edge-1, "first")), "unique in_progress attempt 1 forwarded")
	earlier := one.wait(t.Context(), order(edge, "same sender"))
	b.wait("a request to wait", func() bool { return b.waitingRequests(cfg) == 2 })
	_ = two.wait(t.Context(), order(edge, "same sender"))
	answer := <-earlier.answer
	must(t, <-earlier.err)
	assertAnswer(t, answer, "in_progress in_progress attempt 1")
}
