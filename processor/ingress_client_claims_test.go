package processor_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/twmb/franz-go/pkg/kgo"

	"oncebus/dedup"
	"oncebus/processor/front"
	"oncebus/processor/kafkatest/embedded"
	"oncebus/processor/wire"
)

// request makes an operation as it arrives by HTTP.
func request(id, name string) *front.Submission {
	return submission("ops.raw", string(operation(id, name, 0).Value), testTime)
}

// conclude sends the outcome of a dispatched event through the ingress client.
func (f *runningIngress) conclude(event *kgo.Record, kind dedup.OutcomeKind, value []byte, headers ...dedup.Header) error {
	ctx, cancel := context.WithTimeout(context.Background(), embedded.WaitMax)
	defer cancel()
	return f.SubmitOutcome(ctx, f.b.routes.Routes[0], []byte(header(event, wire.HeaderClaimToken)), kind, value, headers)
}

// lastRun returns the event that was dispatched to the executor as the given attempt.
func (b *bench) lastRun(attempt string) *kgo.Record {
	b.t.Helper()
	for _, r := range b.read("ops.run") {
		if header(r, wire.HeaderAttempt) == attempt {
			return r
		}
	}
	b.t.Fatalf("no event went to the executor as attempt %s", attempt)
	return nil
}

// TestIngressClientReceivesClaimVerdicts follows a claim from the first request to the recorded result: the event
// runs, is still running, fails, runs again, another event comes under its key, and the result is replayed as
// recorded. A result that is too long is not kept, and the answer says so.
func TestIngressClientReceivesClaimVerdicts(t *testing.T) {
	t.Parallel()
	b := newHTTPBench(t, fmt.Sprintf(claimRoutes, "reject"))
	i := b.ready(b.start(b.config("one")))
	f := b.ingress("front")
	assertAnswer(t, f.submit(request("1", "first")), "unique in_progress attempt 1 forwarded")
	second := f.submit(request("1", "second"))
	assertAnswer(t, second, "in_progress in_progress attempt 1")
	if second.FirstRequest != "first" || !strings.HasPrefix(second.First, "app-repartition/") || second.FirstTime.UnixMilli() != testTime {
		t.Errorf("the first is said to be %+v", second)
	}
	must(t, f.conclude(b.lastRun("1"), dedup.OutcomeFailed, nil))
	b.drainClaims(i)
	assertAnswer(t, f.submit(request("1", "third")), "unique in_progress attempt 2 forwarded")
	other := request("1", "other")
	other.Value = []byte(strings.Replace(string(other.Value), `"amount":5`, `"amount":6`, 1))
	assertAnswer(t, f.submit(other), "collision in_progress attempt 2")

	must(t, f.conclude(b.lastRun("2"), dedup.OutcomeCompleted, []byte("done"), dedup.Header{Key: "http-status", Value: []byte("201")},
		dedup.Header{Key: wire.HeaderVerdict, Value: []byte("unique")}))
	b.drainClaims(i)
	replayed := f.submit(request("1", "fourth"))
	assertAnswer(t, replayed, "replayed completed attempt 2 outcome")
	if string(replayed.Value) != "done" || fmt.Sprint(replayed.Headers) != "[{http-status [50 48 49]}]" || replayed.FirstRequest != "third" {
		t.Errorf("the result is %q with %q: %+v", replayed.Value, replayed.Headers, replayed)
	}

	for name, result := range map[string][]byte{"null": nil, "long": make([]byte, 101), "empty": {}} {
		assertAnswer(t, f.submit(request(name, name)), "unique in_progress attempt 1 forwarded")
		for _, event := range b.read("ops.run") {
			if strings.Contains(string(event.Value), `"request":"`+name) {
				must(t, f.conclude(event, dedup.OutcomeCompleted, result))
			}
		}
		b.drainClaims(i)
		want := "replayed completed attempt 1 outcome"
		if name == "long" {
			want += " omitted"
		}
		a := f.submit(request(name, "again"))
		assertAnswer(t, a, want)
		if (a.Value == nil) != (name != "empty") || len(a.Value) != 0 {
			t.Errorf("%s: the result is %q", name, a.Value)
		}
		if (name == "long") != strings.Contains(a.Reason, "101 bytes was not kept") {
			t.Errorf("%s: the reason is %q", name, a.Reason)
		}
	}
}

// TestOutcomeByTheIngressClientIsChecked protects that the ingress client writes nothing to the outcomes topic that
// the router would refuse there.
func TestOutcomeByTheIngressClientIsChecked(t *testing.T) {
	t.Parallel()
	b := newHTTPBench(t, fmt.Sprintf(claimRoutes, "reject"))
	b.ready(b.start(b.config("one")))
	f := b.ingress("front")
	foreign := dedup.Token{NamespaceID: 9, Attempt: 1}
	for token, want := range map[string]string{
		"": "no claim token", "x": "no claim token", string(foreign.Append(nil)): "takes no outcomes from topic",
	} {
		err := f.SubmitOutcome(t.Context(), b.routes.Routes[0], []byte(token), dedup.OutcomeCompleted, nil, nil)
		if !errors.Is(err, front.ErrOutcome) || !strings.Contains(err.Error(), want) {
			t.Errorf("token %q: %v", token, err)
		}
	}
	if n := len(b.read("ops.outcomes")); n != 0 {
		t.Errorf("%d outcomes are in Kafka", n)
	}
}

// inFlight is a request that waits for its answer.
type inFlight struct {
	answer chan wire.Answer
	err    chan error
}

func (f *runningIngress) wait(ctx context.Context, s *front.Submission) inFlight {
	a := inFlight{make(chan wire.Answer, 1), make(chan error, 1)}
	go func() {
		answer, err := f.try(ctx, s)
		a.answer <- answer
		a.err <- err
	}()
	return a
}

// TestWaitingDuplicateReceivesTheOutcome protects that each waiting duplicate receives the outcome through its own
// ingress client, although another processor answers by then: a restarted one, or one that was rebuilt from the
// changelog.
func TestWaitingDuplicateReceivesTheOutcome(t *testing.T) {
	t.Parallel()
	for _, between := range []string{"running", "restarted", "rebuilt"} {
		t.Run(between, func(t *testing.T) {
			t.Parallel()
			b := newHTTPBench(t, fmt.Sprintf(claimRoutes, "wait\n    max_waiting: 1"))
			cfg := b.config("one")
			i := b.ready(b.start(cfg))
			one, two := b.ingress("one"), b.ingress("two")
			waitFor := func(n uint64) { b.wait("a request to wait", func() bool { return b.waitingRequests(cfg) == n }) }
			assertAnswer(t, one.submit(request("1", "first")), "unique in_progress attempt 1 forwarded")
			waitFor(1)
			twin := two.wait(t.Context(), request("1", "twin"))
			waitFor(2)
			assertAnswer(t, one.submit(request("1", "one too many")), "in_progress in_progress attempt 1")
			if between != "running" {
				must(t, i.stop())
				if between == "rebuilt" {
					cfg.StateDir = t.TempDir()
				}
				i = b.ready(b.start(cfg))
			}
			must(t, one.conclude(b.lastRun("1"), dedup.OutcomeSubmitted, nil))
			must(t, one.conclude(b.lastRun("1"), dedup.OutcomeCompleted, []byte("done"), dedup.Header{Key: "content-type", Value: []byte("text/plain")}))
			answer := <-twin.answer
			must(t, <-twin.err)
			assertAnswer(t, answer, "replayed completed attempt 1 outcome")
			if string(answer.Value) != "done" || len(answer.Headers) != 1 || answer.FirstRequest != "first" || len(answer.Key) != 64 {
				t.Errorf("the answer is %+v", answer)
			}
			b.drainClaims(i)
			if n := len(b.read("app-verdicts")); n != 5 {
				t.Errorf("%d verdicts were sent, want three at once and two with the outcome", n)
			}
		})
	}
}

// TestWaitingDuplicateReceivesAFailure protects that a waiting duplicate receives the failure with the key's name,
// although the key is free again.
func TestWaitingDuplicateReceivesAFailure(t *testing.T) {
	t.Parallel()
	b := newHTTPBench(t, fmt.Sprintf(claimRoutes, "wait"))
	cfg := b.config("one")
	b.ready(b.start(cfg))
	f := b.ingress("front")
	f.submit(request("1", "first"))
	twin := f.wait(t.Context(), request("1", "twin"))
	b.wait("requests to wait", func() bool { return b.waitingRequests(cfg) == 2 })
	must(t, f.conclude(b.lastRun("1"), dedup.OutcomeRejected, []byte("no money")))
	answer := <-twin.answer
	must(t, <-twin.err)
	assertAnswer(t, answer, "replayed rejected attempt 1 outcome")
	if string(answer.Value) != "no money" || answer.Key == "" || answer.Key == strings.Repeat("0", 64) || answer.FirstRequest != "first" {
		t.Errorf("the answer is %+v", answer)
	}
}

// TestRequestWithoutAnOutcomeEndsWithTheVerdict protects that a request whose outcome does not come in time gets the
// verdict that is known: the event runs, or is a duplicate.
func TestRequestWithoutAnOutcomeEndsWithTheVerdict(t *testing.T) {
	t.Parallel()
	b := newHTTPBench(t, fmt.Sprintf(claimRoutes, "wait"))
	cfg := b.config("one")
	b.ready(b.start(cfg))
	f := b.ingress("front")
	for n, want := range []string{"unique in_progress attempt 1 forwarded", "in_progress in_progress attempt 1"} {
		ctx, cancel := context.WithCancel(context.Background())
		a := f.wait(ctx, request("1", fmt.Sprint(n)))
		b.wait("a request to wait", func() bool { return b.waitingRequests(cfg) == uint64(n+1) })
		assertAnswer(t, f.submit(submission("ops.raw", `{}`, testTime)), "missing_key") // which is sent after the other verdict
		cancel()
		assertAnswer(t, <-a.answer, want)
		must(t, <-a.err)
	}
}

// TestResultTheVerdictsTopicRefuses protects that a result which the verdicts topic refuses is omitted, and that the
// answer gives the reason.
func TestResultTheVerdictsTopicRefuses(t *testing.T) {
	t.Parallel()
	b := newHTTPBench(t, strings.Replace(fmt.Sprintf(claimRoutes, "reject"), "result_limit: 100", "result_limit: 10000", 1))
	b.createTopic("app-verdicts", 4, "max.message.bytes", "2000", "message.timestamp.type", "LogAppendTime")
	i := b.ready(b.start(b.config("one")))
	f := b.ingress("front")
	assertAnswer(t, f.submit(request("1", "first")), "unique in_progress attempt 1 forwarded")
	must(t, f.conclude(b.lastRun("1"), dedup.OutcomeCompleted, large("result", 0, 4000, false).Value))
	b.drainClaims(i)
	a := f.submit(request("1", "second"))
	assertAnswer(t, a, "replayed completed attempt 1 outcome omitted")
	if a.Value != nil || !strings.Contains(a.Reason, "too large for topic app-verdicts") {
		t.Errorf("got %d bytes because of %q", len(a.Value), a.Reason)
	}
}

// TestDuplicatesOfAForwardedEventAreAnswered covers an event that was forwarded without a claim, for which no outcome
// can arrive. A waiting duplicate of an event that also has a claim gets the claim's outcome; if the claim fails, the
// duplicate learns that the key is not free, and so does a retry.
func TestDuplicatesOfAForwardedEventAreAnswered(t *testing.T) {
	t.Parallel()
	b := newHTTPBench(t, fmt.Sprintf(claimRoutes, "wait")+"    on_state_failure: fail_open\n")
	cfg, disk, place := b.onDisk(500)
	i := b.ready(b.startWith(cfg, place))
	f := b.ingress("front")
	b.produce(operation("1", "first", 0))
	b.drainClaims(i)
	claimed := b.lastRun("1")
	twin := f.wait(t.Context(), request("1", "twin"))
	b.wait("the twin to wait", func() bool { return b.waitingRequests(cfg) == 2 })
	disk.free.Store(80)
	b.wait("tasks without a store", func() bool { return bypassed(i, "app-repartition") })
	b.produce(operation("1", "bypassed", 1), operation("2", "bypassed-too", 1))
	b.passesTo("ops.run", 2)
	disk.free.Store(500)
	b.drainClaims(i)
	b.wait("two keys to count as submitted", func() bool { return live(i, dedup.Submitted) == 2 })

	b.produce(operation("2", "later", 2))
	b.drainClaims(i)
	assertHeaders(t, b.replies("ops.replies")["ops.raw/2/0"], map[string]string{
		wire.HeaderVerdict: "duplicate", wire.HeaderClaimStatus: "forwarded", wire.HeaderRequestID: "later", wire.HeaderFirstRequest: "bypassed-too",
	})
	assertAnswer(t, f.submit(request("2", "by http")), "duplicate forwarded attempt 1")

	b.produce(outcomeOf(claimed, "failed", []byte("exchange away")))
	b.drainClaims(i)
	answer := <-twin.answer
	must(t, <-twin.err)
	assertAnswer(t, answer, "replayed forwarded attempt 1 outcome")
	if !strings.Contains(answer.Reason, "the key is not free") || string(answer.Value) != "exchange away" {
		t.Errorf("the twin's answer is %+v", answer)
	}
	assertAnswer(t, f.submit(request("1", "retry")), "duplicate forwarded attempt 1")
	if n := len(b.read("ops.run")); n != 3 {
		t.Errorf("%d events went to the executor, want 3", n)
	}
}
