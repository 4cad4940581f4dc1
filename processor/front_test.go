package processor

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"oncebus/dedup"
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
		r.HTTP = &dedup.HTTP{Topic: r.Topics[0], Verdict: true}
	}
}

// runningFront is a front that runs until it is stopped or the test ends.
type runningFront struct {
	*Front
	b      *bench
	cancel context.CancelFunc
	done   chan struct{}
	err    error
}

func (b *bench) startFront(instance string, extra ...kgo.Opt) *runningFront {
	b.t.Helper()
	return b.startFrontWith(instance, func(*Front) {}, extra...)
}

// startFrontWith starts a front that was changed before it runs.
func (b *bench) startFrontWith(instance string, prepare func(*Front), extra ...kgo.Opt) *runningFront {
	b.t.Helper()
	log := slog.New(slog.NewTextHandler(b.logs, nil)).With("front", instance)
	front, err := NewFront(b.config(instance), b.routes, log, extra...)
	must(b.t, err)
	prepare(front)
	ctx, cancel := context.WithCancel(context.Background())
	f := &runningFront{Front: front, b: b, cancel: cancel, done: make(chan struct{})}
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

func submission(topic, value string, at int64, headers ...dedup.Header) *Submission {
	return &Submission{Topic: topic, Value: []byte(value), Headers: headers, Time: time.UnixMilli(at)}
}

// try asks, as a request does.
func (f *runningFront) try(ctx context.Context, s *Submission) (Answer, error) {
	d, err := f.Derive(s)
	if err != nil {
		return Answer{}, err
	}
	return f.Ask(ctx, s, &d)
}

func (f *runningFront) ask(s *Submission) Answer {
	f.b.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 60*time.Second)
	defer cancel()
	answer, err := f.try(ctx, s)
	must(f.b.t, err)
	return answer
}

// summary is what most tests want to know of an answer.
func summary(a Answer) string {
	s := a.Verdict.String()
	for _, part := range []struct {
		text string
		set  bool
	}{
		{" " + a.Status, a.Status != ""},
		{fmt.Sprintf(" attempt %d", a.Attempt), a.Attempt != 0},
		{" settled", a.Settled},
		{" passed", a.Passed},
		{" omitted", a.Omitted},
	} {
		if part.set {
			s += part.text
		}
	}
	return s
}

func assertAnswer(t *testing.T, a Answer, want string) {
	t.Helper()
	if got := summary(a); got != want {
		t.Errorf("the answer is %q, want %q; all: %+v", got, want, a)
	}
}

// TestFrontIsToldTheVerdict: every one of plain deduplication, of routed and of
// keyed topics, with the first copy where there is one.
func TestFrontIsToldTheVerdict(t *testing.T) {
	const hour = int64(time.Hour / time.Millisecond)
	routes := strings.Replace(benchRoutes, "    output:", "    fingerprint: [price]\n    output:", 1)
	bothWays(t, routes, func(t *testing.T, routes string) {
		b := newHTTPBench(t, routes)
		b.ready(b.start(b.config("one")))
		f := b.front("front")
		const event = `{"id":"a","price":1}`
		var first Answer
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
			{event, testTime + 2*hour, "expired passed", false, ""},
			{event, testTime, "late", false, "cannot be judged"},
			{event, testTime + 100*365*24*hour, "invalid", false, "ahead of the broker's"},
			{`{"price":1}`, testTime, "unkeyed", false, "field id: absent"},
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
	bothWays(t, strings.Replace(benchRoutes, "    output:", "    on_state_failure: pass\n    output:", 1), func(t *testing.T, routes string) {
		b := newHTTPBench(t, routes)
		cfg, disk, room := b.onDisk(500)
		i := b.ready(b.startWith(cfg, room))
		f := b.front("front")
		disk.free.Store(80)
		b.wait("tasks without a store", func() bool { return bypassed(i, i.rt.topology.taskTopics()[0]) })
		a := f.ask(submission("signals.raw", `{"id":"a"}`, testTime))
		assertAnswer(t, a, "unchecked passed")
		if a.Reason != uncheckedReason {
			t.Errorf("the reason is %q", a.Reason)
		}
		disk.free.Store(500)
		b.ready(i)
		assertAnswer(t, f.ask(submission("signals.raw", `{"id":"a"}`, testTime)), "duplicate")
	})
}

// TestPassedEventsAreToldSo: without a key, and beyond the limit.
func TestPassedEventsAreToldSo(t *testing.T) {
	routes := strings.Replace(benchRoutes, "    output:", "    missing_key: pass\n    limits: {live_keys: 1, over: pass}\n    output:", 1)
	bothWays(t, routes, func(t *testing.T, routes string) {
		b := newHTTPBench(t, routes)
		b.ready(b.start(b.config("one")))
		f := b.front("front")
		assertAnswer(t, f.ask(submission("signals.raw", `{}`, testTime)), "unkeyed passed")
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
			dedup.Header{Key: "Oncebus-Verdict", Value: []byte("x")}, dedup.Header{Key: headerReturn, Value: []byte("x")},
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
					a, err := f.Ask(ctx, s, &d)
					if err != nil || a.Key != keyText(&d.Key) {
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
	if err := <-failed; !errors.Is(err, ErrNoVerdict) && !errors.Is(err, ErrBusAway) { // the latter before it is acknowledged
		t.Errorf("the request ended with %v", err)
	}
	b.ready(b.start(cfg))
	assertAnswer(t, f.ask(event), "duplicate")
}

// TestGarbageReturnAddress of whoever may write to a keyed topic disturbs
// nothing and comes out nowhere.
func TestGarbageReturnAddress(t *testing.T) {
	b := newHTTPBench(t, keyedRoutes)
	i := b.ready(b.start(b.config("one")))
	addresses := []string{"", "x", strings.Repeat("0", 40), strings.Repeat("f", 40), strings.Repeat("é", 20), strings.Repeat("1", 41)}
	addresses = append(addresses, string(dedup.Address{Partition: 4, Front: 1, Ask: 1}.AppendText(nil)), // no such partition
		string(dedup.Address{Partition: 3, Front: 1, Ask: 1}.AppendText(nil))) // nobody
	var sent []*kgo.Record
	for n, address := range addresses {
		r := signal(fmt.Sprint(n), int32(n%4), testTime)
		r.Headers = append(r.Headers, kgo.RecordHeader{Key: headerReturn, Value: []byte(address)})
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
		if header(r, headerReturn) != "" {
			t.Errorf("a return address came out: %v", r.Headers)
		}
	}
	if told := b.read("app-verdicts"); len(told) != 2 {
		t.Errorf("%d verdicts were told, want that of the front and that for nobody", len(told))
	}
}

// TestTooLargeIsNotSent: said before anything goes on the bus.
func TestTooLargeIsNotSent(t *testing.T) {
	b := newHTTPBench(t, keyedRoutes)
	b.createTopic("signals.raw", 4, "max.message.bytes", "2000")
	b.ready(b.start(b.config("one")))
	f := b.front("front")
	if _, err := f.try(t.Context(), submission("signals.raw", `{"id":"a","x":"`+strings.Repeat("x", 2000)+`"}`, testTime)); !errors.Is(err, ErrTooLarge) {
		t.Errorf("got %v", err)
	}
	assertAnswer(t, f.ask(submission("signals.raw", `{"id":"a"}`, testTime)), "unique passed")
}

// switchDialer is a network that can be taken away.
type switchDialer struct {
	mu    sync.Mutex
	off   bool
	conns map[net.Conn]bool
}

func (d *switchDialer) dial(ctx context.Context, network, addr string) (net.Conn, error) {
	conn, err := (&net.Dialer{}).DialContext(ctx, network, addr)
	if err != nil {
		return nil, err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.off {
		_ = conn.Close()
		return nil, errors.New("the network is away")
	}
	d.conns[conn] = true
	return conn, nil
}

func (d *switchDialer) turn(off bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.off = off
	if off {
		for conn := range d.conns {
			_ = conn.Close()
		}
		clear(d.conns)
	}
}

// TestFrontWithoutABroker refuses at once or holds, as asked, and recovers by
// itself, with everything it held on the bus once.
func TestFrontWithoutABroker(t *testing.T) {
	b := newHTTPBench(t, benchRoutes)
	i := b.ready(b.start(b.config("one")))
	dialer := &switchDialer{conns: map[net.Conn]bool{}}
	f := b.front("front", kgo.Dialer(dialer.dial))
	assertAnswer(t, f.ask(submission("signals.raw", `{"id":"before"}`, testTime)), "unique passed")
	dialer.turn(true)
	// Some are on their way when the bus goes, and are refused when that shows.
	for n := range 10 {
		if _, err := f.try(t.Context(), submission("signals.raw", fmt.Sprintf(`{"id":"early-%d"}`, n), testTime)); !errors.Is(err, ErrBusAway) {
			t.Fatalf("got %v", err)
		}
	}
	if err := f.Ready(); err == nil {
		t.Error("a front without a broker says it is ready")
	}
	if _, err := f.try(t.Context(), submission("signals.raw", `{"id":"refused"}`, testTime)); !errors.Is(err, ErrBusAway) {
		t.Errorf("got %v", err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	held := make(chan string, 20)
	for n := range 20 {
		s := submission("signals.raw", fmt.Sprintf(`{"id":"held-%d"}`, n), testTime)
		s.Hold = true
		go func() {
			a, err := f.try(ctx, s)
			held <- summary(a) + " " + fmt.Sprint(err)
		}()
	}
	given, giveUp := context.WithCancel(context.Background())
	giveUp()
	s := submission("signals.raw", `{"id":"given up"}`, testTime)
	s.Hold = true
	if _, err := f.try(given, s); !errors.Is(err, ErrBusAway) {
		t.Errorf("got %v", err)
	}
	dialer.turn(false)
	for range 20 {
		if got := <-held; got != "unique passed <nil>" {
			t.Errorf("a held event is answered %q", got)
		}
	}
	cancel()
	b.drain(i, "signals.raw")
	if out := b.read("signals.unique"); len(out) < 21 || len(out) > 31 {
		t.Errorf("%d events in the output, want the 21 that were answered and perhaps some of 10", len(out))
	}
}

// TestFullFrontRefuses: what waits for the bus is bounded.
func TestFullFrontRefuses(t *testing.T) {
	b := newHTTPBench(t, benchRoutes)
	b.ready(b.start(b.config("one")))
	f := b.frontReady(b.startFrontWith("front", func(f *Front) { f.recordsMax = 3 }))
	fault := b.cluster.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.Produce}, Topic: "app-repartition", Err: kerr.NotLeaderForPartition, Count: -1})
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 10)
	for n := range 10 {
		go func() {
			s := submission("signals.raw", fmt.Sprintf(`{"id":"%d"}`, n), testTime)
			_, err := f.try(ctx, s)
			ended <- err
		}()
	}
	for range 7 {
		if err := <-ended; !errors.Is(err, ErrBusAway) || !errors.Is(err, kgo.ErrMaxBuffered) {
			t.Errorf("got %v", err)
		}
	}
	cancel()
	for range 3 {
		if err := <-ended; !errors.Is(err, ErrBusAway) || errors.Is(err, kgo.ErrMaxBuffered) {
			t.Errorf("got %v", err)
		}
	}
	fault.Remove()
	b.wait("what was buffered to get through", func() bool { return len(b.read("signals.unique")) == 3 })
	assertAnswer(t, f.ask(submission("signals.raw", `{"id":"next"}`, testTime)), "unique passed")
}

// TestRefusedProducerIsReplaced: one that got no producer id would never send
// again.
func TestRefusedProducerIsReplaced(t *testing.T) {
	b := newHTTPBench(t, benchRoutes)
	b.ready(b.start(b.config("one")))
	f := b.front("front")
	b.cluster.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.InitProducerID}, Err: kerr.ClusterAuthorizationFailed, When: func(req kmsg.Request) bool {
		init, ok := req.(*kmsg.InitProducerIDRequest)
		return ok && init.TransactionalID == nil
	}})
	event := submission("signals.raw", `{"id":"a"}`, testTime)
	if _, err := f.try(t.Context(), event); !errors.Is(err, ErrBusAway) {
		t.Fatalf("got %v", err)
	}
	b.wait("another producer", func() bool {
		a, err := f.try(t.Context(), event)
		return err == nil && (a.Verdict == dedup.Unique || a.Verdict == dedup.Duplicate)
	})
}

// TestFrontWaitsForItsApp: for topics and manifest, and for a processor that
// knows its routes.
func TestFrontWaitsForItsApp(t *testing.T) {
	b := newBench(t, benchRoutes)
	cfg := b.config("one")
	i := b.ready(b.start(cfg)) // of an app without HTTP
	b.openHTTP()
	f := b.startFront("front")
	b.wait("the front to say what it waits for", func() bool {
		return strings.Contains(f.Ready().Error(), "topic app-verdicts of app app is not there yet")
	})
	if _, err := f.Derive(submission("signals.raw", `{"id":"a"}`, testTime)); !errors.Is(err, ErrBusAway) {
		t.Errorf("got %v", err)
	}
	must(t, i.stop())
	b.ready(b.start(cfg))
	assertAnswer(t, b.frontReady(f).ask(submission("signals.raw", `{"id":"a"}`, testTime)), "unique passed")

	b.useRoutes(strings.Replace(benchRoutes, "window: 1h", "window: 1h\n    namespace: other", 1))
	b.openHTTP()
	other := b.startFront("other")
	b.wait("the other front to say what it waits for", func() bool { return strings.Contains(other.Ready().Error(), "is not there yet in the manifest") })
}

// TestFrontRefusesForeignRoutes: its keys would not be those of the app.
func TestFrontRefusesForeignRoutes(t *testing.T) {
	b := newHTTPBench(t, benchRoutes)
	b.ready(b.start(b.config("one")))
	b.useRoutes(strings.Replace(benchRoutes, "field: id", "field: other", 1))
	b.openHTTP()
	front, err := NewFront(b.config("front"), b.routes, slog.New(slog.DiscardHandler))
	must(t, err)
	if err := front.Run(t.Context()); !errors.Is(err, errRefused) || !strings.Contains(err.Error(), "key rule changed") {
		t.Errorf("got %v", err)
	}
	b.useRoutes(benchRoutes)
	if _, err := NewFront(b.config("front"), b.routes, slog.New(slog.DiscardHandler)); err == nil || !strings.Contains(err.Error(), "no route has an http part") {
		t.Errorf("got %v", err)
	}
}
