package processor_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"oncebus/dedup"
	"oncebus/processor"
	"oncebus/processor/app"
	"oncebus/processor/front"
	"oncebus/processor/kafkatest/embedded"
	"oncebus/processor/wire"
)

// newHTTPBench is newBench for routes whose events may arrive by HTTP.
func newHTTPBench(t *testing.T, routes string) *bench {
	t.Helper()
	b := newBench(t, routes)
	b.openHTTP()
	return b
}

// openHTTP gives each route an HTTP endpoint.
func (b *bench) openHTTP() {
	b.t.Helper()
	b.useRoutes(routeName.ReplaceAllString(string(b.routes.Text), "$0\n    http: {path: /$1, signature: {scheme: none}}"))
}

// routeName matches the line with the name of a route.
var routeName = regexp.MustCompile(`(?m)^ *- name: ([a-z0-9-]+)$`)

// runningIngress is an ingress client that runs until it is stopped or the test ends.
type runningIngress struct {
	*front.IngressClient
	b      *bench
	cancel context.CancelFunc
	done   chan struct{}
	err    error
}

func (b *bench) startIngress(instance string, extra ...kgo.Opt) *runningIngress {
	b.t.Helper()
	return b.startIngressWith(instance, func(*front.IngressClient) {}, extra...)
}

// startIngressWith starts an ingress client that prepare has changed before it runs.
func (b *bench) startIngressWith(instance string, prepare func(*front.IngressClient), extra ...kgo.Opt) *runningIngress {
	b.t.Helper()
	log := slog.New(slog.NewTextHandler(b.logs, nil)).With("ingress_client", instance)
	client, err := front.NewIngressClient(b.config(instance).Config, b.routes, prometheus.NewRegistry(), log, extra...)
	must(b.t, err)
	prepare(client)
	ctx, cancel := context.WithCancel(context.Background())
	f := &runningIngress{IngressClient: client, b: b, cancel: cancel, done: make(chan struct{})}
	go func() {
		defer close(f.done)
		f.err = client.Run(ctx)
	}()
	b.t.Cleanup(func() { must(b.t, f.stop()) })
	return f
}

func (f *runningIngress) stop() error {
	f.cancel()
	<-f.done
	return f.err
}

func (b *bench) ingress(instance string, extra ...kgo.Opt) *runningIngress {
	b.t.Helper()
	return b.ingressReady(b.startIngress(instance, extra...))
}

func (b *bench) ingressReady(f *runningIngress) *runningIngress {
	b.t.Helper()
	b.wait("the ingress client to be ready", func() bool { return f.Ready() == nil })
	return f
}

func submission(topic, value string, at int64, headers ...dedup.Header) *front.Submission {
	return &front.Submission{Topic: topic, Value: []byte(value), Headers: headers, Time: time.UnixMilli(at)}
}

// try sends an event and waits for its verdict, as an HTTP request does.
func (f *runningIngress) try(ctx context.Context, s *front.Submission) (wire.Answer, error) {
	d, err := f.Derive(s)
	if err != nil {
		return wire.Answer{}, err
	}
	return f.SubmitAndWait(ctx, s, &d)
}

func (f *runningIngress) submit(s *front.Submission) wire.Answer {
	f.b.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), embedded.WaitMax)
	defer cancel()
	answer, err := f.try(ctx, s)
	must(f.b.t, err)
	return answer
}

// summary returns the parts of an answer that most tests compare.
func summary(a wire.Answer) string {
	s := a.Verdict.String()
	for _, part := range []struct {
		text string
		set  bool
	}{
		{" " + a.Status, a.Status != ""},
		{fmt.Sprintf(" attempt %d", a.Attempt), a.Attempt != 0},
		{" outcome", a.HasOutcome},
		{" forwarded", a.Forwarded},
		{" omitted", a.Omitted},
	} {
		if part.set {
			s += part.text
		}
	}
	return s
}

func assertAnswer(t *testing.T, a wire.Answer, want string) {
	t.Helper()
	if got := summary(a); got != want {
		t.Errorf("the answer is %q, want %q; all: %+v", got, want, a)
	}
}

// TestIngressClientReceivesTheVerdict covers every verdict of plain deduplication, for routed and for prepartitioned
// topics, with the first duplicate where there is one.
func TestIngressClientReceivesTheVerdict(t *testing.T) {
	t.Parallel()
	const hour = int64(time.Hour / time.Millisecond)
	routes := strings.Replace(benchRoutes, "    output:", "    fingerprint: [price]\n    output:", 1)
	bothWays(t, routes, func(t *testing.T, routes string) {
		b := newHTTPBench(t, routes)
		b.ready(b.start(b.config("one")))
		f := b.ingress("front")
		const event = `{"id":"a","price":1}`
		var first wire.Answer
		for n, step := range []struct {
			value  string
			at     int64
			want   string
			known  bool // which first duplicate
			reason string
		}{
			{event, testTime, "unique forwarded", false, ""},
			{event, testTime + 1, "duplicate", true, ""},
			{`{"id":"a","price":2}`, testTime + 1, "collision", true, "the key of another event"},
			{event, testTime + 2*hour, "after_window forwarded", false, ""},
			{event, testTime, "late", false, "cannot be judged"},
			{event, testTime + 100*365*24*hour, "invalid", false, "ahead of the broker's"},
			{`{"price":1}`, testTime, "missing_key", false, "field id: absent"},
			{`{"id":[]}`, testTime, "invalid", false, "found an array"},
			{`no JSON`, testTime, "invalid", false, "payload"},
		} {
			a := f.submit(submission("signals.raw", step.value, step.at))
			assertAnswer(t, a, step.want)
			if n == 0 {
				first = a
			}
			if !strings.Contains(a.Reason, step.reason) {
				t.Errorf("step %d: the reason is %q, want %q in it", n, a.Reason, step.reason)
			}
			if step.known && (a.FirstTime.UnixMilli() != testTime || !strings.HasSuffix(a.First, "/0") || a.Key != first.Key) {
				t.Errorf("step %d: the first duplicate is said to be %q at %v with key %s", n, a.First, a.FirstTime, a.Key)
			}
			if keyed := len(a.Key) == 64; keyed != (n < 6) {
				t.Errorf("step %d: key %q", n, a.Key)
			}
		}
	})
}

// TestIngressClientReceivesBypassedVerdicts protects that requests get verdicts also while local state cannot be
// used.
func TestIngressClientReceivesBypassedVerdicts(t *testing.T) {
	t.Parallel()
	bothWays(t, strings.Replace(benchRoutes, "    output:", "    on_state_failure: fail_open\n    output:", 1), func(t *testing.T, routes string) {
		b := newHTTPBench(t, routes)
		cfg, disk, room := b.onDisk(500)
		i := b.ready(b.startWith(cfg, room))
		f := b.ingress("front")
		disk.free.Store(80)
		var event *front.Submission
		n := 0
		b.wait("an event to be bypassed", func() bool {
			n++
			event = submission("signals.raw", fmt.Sprintf(`{"id":"%d"}`, n), testTime)
			a := f.submit(event)
			return summary(a) == "bypassed forwarded" && a.Reason == "local state cannot be used: not checked for duplicates"
		})
		disk.free.Store(500)
		b.ready(i)
		assertAnswer(t, f.submit(event), "duplicate")
	})
}

// TestForwardedEventsAreReportedAsForwarded covers events without a key, and events beyond the limit of keys.
func TestForwardedEventsAreReportedAsForwarded(t *testing.T) {
	t.Parallel()
	routes := strings.Replace(benchRoutes, "    output:", "    on_missing_key: forward\n    limits: {live_keys: 1, on_limit: forward}\n    output:", 1)
	bothWays(t, routes, func(t *testing.T, routes string) {
		b := newHTTPBench(t, routes)
		b.ready(b.start(b.config("one")))
		f := b.ingress("front")
		assertAnswer(t, f.submit(submission("signals.raw", `{}`, testTime)), "missing_key forwarded")
		seen := map[string]int{}
		for n := range 5 { // more keys than partitions
			seen[summary(f.submit(submission("signals.raw", fmt.Sprintf(`{"id":"%d"}`, n), testTime)))]++
		}
		if seen["limited forwarded"] == 0 || seen["limited forwarded"]+seen["unique forwarded"] != 5 {
			t.Errorf("the answers are %v", seen)
		}
		if out := b.read("signals.unique"); len(out) != 6 {
			t.Errorf("%d records in the output, want 6", len(out))
		}
	})
}

// TestForeignHeadersOfOurPrefixDoNotComeIn protects that headers with our prefix enter neither through an ingress
// client nor past it, and that a return address is never emitted.
func TestForeignHeadersOfOurPrefixDoNotComeIn(t *testing.T) {
	t.Parallel()
	bothWays(t, benchRoutes, func(t *testing.T, routes string) {
		b := newHTTPBench(t, routes)
		b.ready(b.start(b.config("one")))
		f := b.ingress("front")
		assertAnswer(t, f.submit(submission("signals.raw", `{"id":"a"}`, testTime,
			dedup.Header{Key: "Oncebus-Verdict", Value: []byte("x")}, dedup.Header{Key: wire.HeaderReplyTo, Value: []byte("x")},
			dedup.Header{Key: "content-type", Value: []byte("application/json")})), "unique forwarded")
		out := b.read("signals.unique")
		if len(out) != 1 {
			t.Fatalf("%d records in the output", len(out))
		}
		var names []string
		for _, h := range out[0].Headers {
			names = append(names, h.Key)
		}
		if got, want := fmt.Sprint(names), "[content-type]"; got != want {
			t.Errorf("headers %s, want %s", got, want)
		}
		if got := out[0].Timestamp.UnixMilli(); got != testTime {
			t.Errorf("timestamp %d", got)
		}
	})
}

// TestEachIngressClientReceivesItsOwnVerdicts lets two ingress clients send the same events at the same time. Each
// request is answered for its own event, and of the copies of every event one is unique.
func TestEachIngressClientReceivesItsOwnVerdicts(t *testing.T) {
	t.Parallel()
	bothWays(t, benchRoutes, func(t *testing.T, routes string) {
		b := newHTTPBench(t, routes)
		b.ready(b.start(b.config("one")))
		const events, copies = 40, 3
		var mu sync.Mutex
		seen := map[string]map[string]int{} // by key
		var requests sync.WaitGroup
		for _, f := range []*runningIngress{b.ingress("a"), b.ingress("b")} {
			for n := range events * copies {
				requests.Go(func() {
					s := submission("signals.raw", fmt.Sprintf(`{"id":"%d"}`, n%events), testTime)
					d, err := f.Derive(s)
					if err != nil {
						t.Error(err)
						return
					}
					ctx, cancel := context.WithTimeout(context.Background(), embedded.WaitMax)
					defer cancel()
					a, err := f.SubmitAndWait(ctx, s, &d)
					if err != nil || a.Key != wire.KeyText(&d.Key) {
						t.Errorf("key %x: answer %+v, %v", d.Key, a, err)
						return
					}
					mu.Lock()
					defer mu.Unlock()
					if seen[a.Key] == nil {
						seen[a.Key] = map[string]int{}
					}
					seen[a.Key][a.Verdict.String()]++
				})
			}
		}
		requests.Wait()
		for key, verdicts := range seen {
			if verdicts["unique"] != 1 || verdicts["duplicate"] != 2*copies-1 {
				t.Errorf("key %s: %v", key, verdicts)
			}
		}
		if out := b.read("signals.unique"); len(seen) != events || len(out) != events {
			t.Errorf("%d keys in the answers, %d events in the output, want %d", len(seen), len(out), events)
		}
	})
}

// TestVerdictIsProducedByTheTransaction protects that a verdict is part of its transaction: nobody reads the verdict
// of a transaction that failed, and the event is judged again and has one verdict.
func TestVerdictIsProducedByTheTransaction(t *testing.T) {
	t.Parallel()
	bothWays(t, benchRoutes, func(t *testing.T, routes string) {
		b := newHTTPBench(t, routes)
		b.ready(b.start(b.config("one")))
		f := b.ingress("front")
		fault := b.cluster.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.EndTxn}, TxnID: app.TransactionalID("app", processor.StageDedup, 0, "one"), Err: kerr.UnknownServerError})
		assertAnswer(t, f.submit(submission("signals.raw", `{"id":"a"}`, testTime)), "unique forwarded")
		if fault.Hits() != 1 {
			t.Fatalf("the fault was hit %d times, want once", fault.Hits())
		}
		if n, all := len(b.read("app-verdicts")), b.uncommitted("app-verdicts"); n != 1 || all < 2 {
			t.Errorf("%d verdicts of %d are committed, want one of two or more", n, all)
		}
	})
}

// TestEventOfACancelledRequestIsInKafka protects that a sender that cancels a request and retries gets the answer for
// a duplicate.
func TestEventOfACancelledRequestIsInKafka(t *testing.T) {
	t.Parallel()
	b := newHTTPBench(t, benchRoutes)
	cfg := b.config("one")
	i := b.ready(b.start(cfg))
	f := b.ingress("front")
	must(t, i.stop())
	ctx, cancel := context.WithCancel(context.Background())
	failed := make(chan error, 1)
	event := submission("signals.raw", `{"id":"a"}`, testTime)
	go func() {
		_, err := f.try(ctx, event)
		failed <- err
	}()
	b.wait("the event to be in Kafka", func() bool { return len(b.routedRecords()) == 1 })
	cancel()
	if err := <-failed; !errors.Is(err, front.ErrNoVerdict) && !errors.Is(err, front.ErrKafkaUnavailable) { // the latter before it is acknowledged
		t.Errorf("the request ended with %v", err)
	}
	b.ready(b.start(cfg))
	assertAnswer(t, f.submit(event), "duplicate")
}

// TestGarbageReplyAddress protects that a garbage reply address, from a client that may write to a prepartitioned
// topic, disturbs nothing and is emitted nowhere.
func TestGarbageReplyAddress(t *testing.T) {
	t.Parallel()
	b := newHTTPBench(t, keyedRoutes)
	i := b.ready(b.start(b.config("one")))
	addresses := []string{"", "x", strings.Repeat("0", 40), strings.Repeat("f", 40), strings.Repeat("é", 20), strings.Repeat("1", 41)}
	addresses = append(addresses, string(dedup.Address{Partition: 4, Ingress: 1, Request: 1}.AppendText(nil)), // no such partition
		string(dedup.Address{Partition: 3, Ingress: 1, Request: 1}.AppendText(nil))) // no such client
	var sent []*kgo.Record
	for n, address := range addresses {
		r := signal(fmt.Sprint(n), int32(n%4), testTime)
		r.Headers = append(r.Headers, kgo.RecordHeader{Key: wire.HeaderReplyTo, Value: []byte(address)})
		sent = append(sent, r)
	}
	f := b.ingress("front")
	b.produce(sent...)
	b.drain(i)
	assertAnswer(t, f.submit(submission("signals.raw", `{"id":"asked"}`, testTime)), "unique forwarded")
	out := b.read("signals.unique")
	if len(out) != len(sent)+1 || len(b.read("dead")) != 0 {
		t.Errorf("%d records in the output, want %d", len(out), len(sent)+1)
	}
	for _, r := range out {
		if header(r, wire.HeaderReplyTo) != "" {
			t.Errorf("a return address came out: %v", r.Headers)
		}
	}
	if seen := b.read("app-verdicts"); len(seen) != 2 {
		t.Errorf("%d verdicts, want that of the ingress client and that without a client", len(seen))
	}
}
