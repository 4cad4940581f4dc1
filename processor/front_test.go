package processor

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"oncebus/dedup"
	"oncebus/dedup/rules"
	"oncebus/processor/front"
	"oncebus/processor/wire"
)

// newHTTPBench is newBench with events that may come in by HTTP.
func newHTTPBench(t *testing.T, routes string) *bench {
	t.Helper()
	b := newBench(t, routes)
	b.openHTTP()
	return b
}

func (b *bench) openHTTP() {
	for _, r := range b.routes.Routes {
		r.HTTP = &rules.HTTP{Topic: r.Topics[0], Verdict: true}
	}
}

// runningFront is a front that runs until it is stopped or the test ends.
type runningFront struct {
	*front.IngressClient
	b      *bench
	cancel context.CancelFunc
	done   chan struct{}
	err    error
}

func (b *bench) startFront(instance string, extra ...kgo.Opt) *runningFront {
	b.t.Helper()
	return b.startFrontWith(instance, func(*front.IngressClient) {}, extra...)
}

// startFrontWith starts a front that was changed before it runs.
func (b *bench) startFrontWith(instance string, prepare func(*front.IngressClient), extra ...kgo.Opt) *runningFront {
	b.t.Helper()
	log := slog.New(slog.NewTextHandler(b.logs, nil)).With("front", instance)
	front, err := front.NewIngressClient(b.config(instance).Config, b.routes, log, extra...)
	must(b.t, err)
	prepare(front)
	ctx, cancel := context.WithCancel(context.Background())
	f := &runningFront{IngressClient: front, b: b, cancel: cancel, done: make(chan struct{})}
	go func() {
		defer close(f.done)
		f.err = front.Run(ctx)
	}()
	b.t.Cleanup(func() { must(b.t, f.stop()) })
	return f
}

func (f *runningFront) stop() error {
	f.cancel()
	<-f.done
	return f.err
}

func (b *bench) front(instance string, extra ...kgo.Opt) *runningFront {
	b.t.Helper()
	return b.frontReady(b.startFront(instance, extra...))
}

func (b *bench) frontReady(f *runningFront) *runningFront {
	b.t.Helper()
	b.wait("the front to be ready", func() bool { return f.Ready() == nil })
	return f
}

func submission(topic, value string, at int64, headers ...dedup.Header) *front.Submission {
	return &front.Submission{Topic: topic, Value: []byte(value), Headers: headers, Time: time.UnixMilli(at)}
}

// try asks, as a request does.
func (f *runningFront) try(ctx context.Context, s *front.Submission) (wire.Answer, error) {
	d, err := f.Derive(s)
	if err != nil {
		return wire.Answer{}, err
	}
	return f.SubmitAndWait(ctx, s, &d)
}

func (f *runningFront) ask(s *front.Submission) wire.Answer {
	f.b.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 60*time.Second)
	defer cancel()
	answer, err := f.try(ctx, s)
	must(f.b.t, err)
	return answer
}

// summary is what most tests want to know of an answer.
func summary(a wire.Answer) string {
	s := a.Verdict.String()
	for _, part := range []struct {
		text string
		set  bool
	}{
		{" " + a.Status, a.Status != ""},
		{fmt.Sprintf(" attempt %d", a.Attempt), a.Attempt != 0},
		{" settled", a.HasOutcome},
		{" passed", a.Forwarded},
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

// TestFrontIsToldTheVerdict: every one of plain deduplication, of routed and of
// prepartitioned topics, with the first copy where there is one.
func TestFrontIsToldTheVerdict(t *testing.T) {
	const hour = int64(time.Hour / time.Millisecond)
	routes := strings.Replace(benchRoutes, "    output:", "    fingerprint: [price]\n    output:", 1)
	bothWays(t, routes, func(t *testing.T, routes string) {
		b := newHTTPBench(t, routes)
		b.ready(b.start(b.config("one")))
		f := b.front("front")
		const event = `{"id":"a","price":1}`
		var first wire.Answer
		for n, step := range []struct {
			value  string
			at     int64
			want   string
			known  bool // which first copy
			reason string
		}{
			{event, testTime, "unique passed", false, ""},
			{event, testTime + 1, "duplicate", true, ""},
			{`{"id":"a","price":2}`, testTime + 1, "collision", true, "the key of another event"},
			{event, testTime + 2*hour, "after_window passed", false, ""},
			{event, testTime, "late", false, "cannot be judged"},
			{event, testTime + 100*365*24*hour, "invalid", false, "ahead of the broker's"},
			{`{"price":1}`, testTime, "missing_key", false, "field id: absent"},
			{`{"id":[]}`, testTime, "invalid", false, "found an array"},
			{`no JSON`, testTime, "invalid", false, "payload"},
		} {
			a := f.ask(submission("signals.raw", step.value, step.at))
			assertAnswer(t, a, step.want)
			if n == 0 {
				first = a
			}
			if !strings.Contains(a.Reason, step.reason) {
				t.Errorf("step %d: the reason is %q, want %q in it", n, a.Reason, step.reason)
			}
			if step.known && (a.FirstTime.UnixMilli() != testTime || !strings.HasSuffix(a.First, "/0") || a.Key != first.Key) {
				t.Errorf("step %d: the first copy is said to be %q at %v with key %s", n, a.First, a.FirstTime, a.Key)
			}
			if keyed := len(a.Key) == 64; keyed != (n < 6) {
				t.Errorf("step %d: key %q", n, a.Key)
			}
		}
	})
}

// TestFrontIsToldOfUncheckedEvents: while local state cannot be used.
func TestFrontIsToldOfUncheckedEvents(t *testing.T) {
	bothWays(t, strings.Replace(benchRoutes, "    output:", "    on_state_failure: fail_open\n    output:", 1), func(t *testing.T, routes string) {
		b := newHTTPBench(t, routes)
		cfg, disk, room := b.onDisk(500)
		i := b.ready(b.startWith(cfg, room))
		f := b.front("front")
		disk.free.Store(80)
		var event *front.Submission
		n := 0
		b.wait("an event to pass unchecked", func() bool {
			n++
			event = submission("signals.raw", fmt.Sprintf(`{"id":"%d"}`, n), testTime)
			a := f.ask(event)
			return summary(a) == "bypassed passed" && a.Reason == "local state cannot be used: not checked for duplicates"
		})
		disk.free.Store(500)
		b.ready(i)
		assertAnswer(t, f.ask(event), "duplicate")
	})
}

// TestPassedEventsAreToldSo: without a key, and beyond the limit.
func TestPassedEventsAreToldSo(t *testing.T) {
	routes := strings.Replace(benchRoutes, "    output:", "    on_missing_key: forward\n    limits: {live_keys: 1, on_limit: forward}\n    output:", 1)
	bothWays(t, routes, func(t *testing.T, routes string) {
		b := newHTTPBench(t, routes)
		b.ready(b.start(b.config("one")))
		f := b.front("front")
		assertAnswer(t, f.ask(submission("signals.raw", `{}`, testTime)), "missing_key passed")
		told := map[string]int{}
		for n := range 5 { // more keys than partitions
			told[summary(f.ask(submission("signals.raw", fmt.Sprintf(`{"id":"%d"}`, n), testTime)))]++
		}
		if told["limited passed"] == 0 || told["limited passed"]+told["unique passed"] != 5 {
			t.Errorf("told %v", told)
		}
		if out := b.read("signals.unique"); len(out) != 6 {
			t.Errorf("%d records in the output, want 6", len(out))
		}
	})
}

// TestForeignHeadersOfOurPrefixDoNotComeIn: neither by a front nor past it, and
// a return address is never emitted.
func TestForeignHeadersOfOurPrefixDoNotComeIn(t *testing.T) {
	bothWays(t, benchRoutes, func(t *testing.T, routes string) {
		b := newHTTPBench(t, routes)
		b.ready(b.start(b.config("one")))
		f := b.front("front")
		assertAnswer(t, f.ask(submission("signals.raw", `{"id":"a"}`, testTime,
			dedup.Header{Key: "Oncebus-Verdict", Value: []byte("x")}, dedup.Header{Key: wire.HeaderReplyTo, Value: []byte("x")},
			dedup.Header{Key: "content-type", Value: []byte("application/json")})), "unique passed")
		out := b.read("signals.unique")
		if len(out) != 1 {
			t.Fatalf("%d records in the output", len(out))
		}
		var names []string
		for _, h := range out[0].Headers {
			names = append(names, h.Key)
		}
		if got, want := fmt.Sprint(names), "[content-type oncebus-route oncebus-verdict oncebus-key]"; got != want {
			t.Errorf("headers %s, want %s", got, want)
		}
		if got := out[0].Timestamp.UnixMilli(); got != testTime {
			t.Errorf("timestamp %d", got)
		}
	})
}

// TestEachFrontIsToldItsOwn: two fronts send the same events at the same time.
// Each request is answered for its own event, and of every event one is unique.
func TestEachFrontIsToldItsOwn(t *testing.T) {
	bothWays(t, benchRoutes, func(t *testing.T, routes string) {
		b := newHTTPBench(t, routes)
		b.ready(b.start(b.config("one")))
		const events, copies = 40, 3
		var mu sync.Mutex
		told := map[string]map[string]int{} // by key
		var requests sync.WaitGroup
		for _, f := range []*runningFront{b.front("a"), b.front("b")} {
			for n := range events * copies {
				requests.Go(func() {
					s := submission("signals.raw", fmt.Sprintf(`{"id":"%d"}`, n%events), testTime)
					d, err := f.Derive(s)
					if err != nil {
						t.Error(err)
						return
					}
					ctx, cancel := context.WithTimeout(context.Background(), 60*time.Second)
					defer cancel()
					a, err := f.SubmitAndWait(ctx, s, &d)
					if err != nil || a.Key != wire.KeyText(&d.Key) {
						t.Errorf("asked for %x, told %+v, %v", d.Key, a, err)
						return
					}
					mu.Lock()
					defer mu.Unlock()
					if told[a.Key] == nil {
						told[a.Key] = map[string]int{}
					}
					told[a.Key][a.Verdict.String()]++
				})
			}
		}
		requests.Wait()
		for key, verdicts := range told {
			if verdicts["unique"] != 1 || verdicts["duplicate"] != 2*copies-1 {
				t.Errorf("key %s: %v", key, verdicts)
			}
		}
		if out := b.read("signals.unique"); len(told) != events || len(out) != events {
			t.Errorf("%d keys told, %d events in the output, want %d", len(told), len(out), events)
		}
	})
}

// TestVerdictIsToldByTheTransaction: that of one which failed is never read,
// the event is judged again and told once.
func TestVerdictIsToldByTheTransaction(t *testing.T) {
	bothWays(t, benchRoutes, func(t *testing.T, routes string) {
		b := newHTTPBench(t, routes)
		b.ready(b.start(b.config("one")))
		f := b.front("front")
		fault := b.cluster.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.EndTxn}, TxnID: "app-one-" + stageDedup + "-0", Err: kerr.UnknownServerError})
		assertAnswer(t, f.ask(submission("signals.raw", `{"id":"a"}`, testTime)), "unique passed")
		if fault.Hits() != 1 {
			t.Fatalf("the fault was hit %d times, want once", fault.Hits())
		}
		if n, all := len(b.read("app-verdicts")), b.uncommitted("app-verdicts"); n != 1 || all < 2 {
			t.Errorf("%d verdicts of %d are committed, want one of two or more", n, all)
		}
	})
}

// TestUnansweredEventIsOnTheBus: who gives up and sends again gets a copy's
// answer.
func TestUnansweredEventIsOnTheBus(t *testing.T) {
	b := newHTTPBench(t, benchRoutes)
	cfg := b.config("one")
	i := b.ready(b.start(cfg))
	f := b.front("front")
	must(t, i.stop())
	ctx, cancel := context.WithCancel(context.Background())
	failed := make(chan error, 1)
	event := submission("signals.raw", `{"id":"a"}`, testTime)
	go func() {
		_, err := f.try(ctx, event)
		failed <- err
	}()
	b.wait("the event to be on the bus", func() bool { return len(b.read("app-repartition")) == 1 })
	cancel()
	if err := <-failed; !errors.Is(err, front.ErrNoVerdict) && !errors.Is(err, front.ErrKafkaUnavailable) { // the latter before it is acknowledged
		t.Errorf("the request ended with %v", err)
	}
	b.ready(b.start(cfg))
	assertAnswer(t, f.ask(event), "duplicate")
}

// TestGarbageReturnAddress of whoever may write to a prepartitioned topic disturbs
// nothing and comes out nowhere.
func TestGarbageReturnAddress(t *testing.T) {
	b := newHTTPBench(t, keyedRoutes)
	i := b.ready(b.start(b.config("one")))
	addresses := []string{"", "x", strings.Repeat("0", 40), strings.Repeat("f", 40), strings.Repeat("é", 20), strings.Repeat("1", 41)}
	addresses = append(addresses, string(dedup.Address{Partition: 4, Ingress: 1, Request: 1}.AppendText(nil)), // no such partition
		string(dedup.Address{Partition: 3, Ingress: 1, Request: 1}.AppendText(nil))) // nobody
	var sent []*kgo.Record
	for n, address := range addresses {
		r := signal(fmt.Sprint(n), int32(n%4), testTime)
		r.Headers = append(r.Headers, kgo.RecordHeader{Key: wire.HeaderReplyTo, Value: []byte(address)})
		sent = append(sent, r)
	}
	f := b.front("front")
	b.produce(sent...)
	b.drain(i)
	assertAnswer(t, f.ask(submission("signals.raw", `{"id":"asked"}`, testTime)), "unique passed")
	out := b.read("signals.unique")
	if len(out) != len(sent)+1 || len(b.read("dead")) != 0 {
		t.Errorf("%d records in the output, want %d", len(out), len(sent)+1)
	}
	for _, r := range out {
		if header(r, wire.HeaderReplyTo) != "" {
			t.Errorf("a return address came out: %v", r.Headers)
		}
	}
	if told := b.read("app-verdicts"); len(told) != 2 {
		t.Errorf("%d verdicts were told, want that of the front and that for nobody", len(told))
	}
}
