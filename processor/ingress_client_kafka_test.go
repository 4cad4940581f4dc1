package processor_test

import (
	"context"
	"crypto/rand"
	"encoding/base64"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"strings"
	"sync"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"oncebus/dedup"
	"oncebus/dedup/rules"
	"oncebus/processor/front"
	"oncebus/processor/kafka"
)

// TestEventThatTheTaskWouldSkipIsNotSent covers an event that fits compressed into its topic but decompresses to more
// than the tasks decompress. If the client accepted the event, it would stop its partition.
func TestEventThatTheTaskWouldSkipIsNotSent(t *testing.T) {
	t.Parallel()
	b := newHTTPBench(t, keyedRoutes)
	b.batchMax = 1 << 20
	b.ready(b.start(b.config("one")))
	f := b.ingress("front")
	for _, n := range []int{2 << 20, 900_000} {
		a, err := f.try(t.Context(), submission("signals.raw", string(large(fmt.Sprint(n), 0, n, true).Value), testTime))
		if n > b.batchMax && !errors.Is(err, front.ErrTooLarge) || n < b.batchMax && (err != nil || a.Verdict != dedup.Unique) {
			t.Errorf("%d bytes: %+v, %v", n, a, err)
		}
	}
}

// TestTooLargeIsNotSent protects that the client refuses an event that is too large before it sends it, and that it
// does send an event that fits compressed, among others.
func TestTooLargeIsNotSent(t *testing.T) {
	t.Parallel()
	b := newHTTPBench(t, keyedRoutes)
	b.createTopic("signals.raw", 4, "max.message.bytes", "2000")
	b.ready(b.start(b.config("one")))
	f := b.ingress("front")
	if _, err := f.try(t.Context(), submission("signals.raw", string(large("a", 0, 4000, false).Value), testTime)); !errors.Is(err, front.ErrTooLarge) {
		t.Errorf("got %v", err)
	}
	var all sync.WaitGroup
	for n := range 20 {
		all.Go(func() {
			event := string(large(fmt.Sprint("fits-", n), 0, 4000, true).Value)
			if n%3 == 0 {
				event = fmt.Sprintf(`{"id":"fits-%d"}`, n)
			}
			if a, err := f.try(t.Context(), submission("signals.raw", event, testTime)); err != nil || a.Verdict != dedup.Unique {
				t.Errorf("event %d: %+v, %v", n, a, err)
			}
		})
	}
	all.Wait()
	assertAnswer(t, f.submit(submission("signals.raw", `{"id":"a"}`, testTime)), "unique forwarded")
}

// TestLoweredLimitIsNoticed protects that a client reports an event that its topic no longer accepts as too large,
// and not as unavailable for ever. Smaller events are still accepted.
func TestLoweredLimitIsNoticed(t *testing.T) {
	t.Parallel()
	b := newHTTPBench(t, keyedRoutes)
	b.ready(b.start(b.config("one")))
	f := b.ingress("front")
	large := make([]byte, 3000)
	_, _ = rand.Read(large) // never fails
	event := submission("signals.raw", fmt.Sprintf(`{"id":"a","x":%q}`, base64.StdEncoding.EncodeToString(large)), testTime)
	assertAnswer(t, f.submit(event), "unique forwarded")
	b.alter("signals.raw", "max.message.bytes", "2000")
	if _, err := f.try(t.Context(), event); !errors.Is(err, front.ErrKafkaUnavailable) {
		t.Errorf("before it was noticed: %v", err)
	}
	b.wait("the limit to be noticed", func() bool {
		_, err := f.try(t.Context(), event)
		return errors.Is(err, front.ErrTooLarge)
	})
	b.wait("small events to go on", func() bool {
		a, err := f.try(t.Context(), submission("signals.raw", `{"id":"a"}`, testTime))
		return err == nil && a.Verdict == dedup.Duplicate
	})
}

// TestUnacknowledgedEventWithoutAKey protects that the error for an unacknowledged event without a key does not
// invite a retry, because a second copy would be emitted. The error for an event with a key does, and so does the
// error for an event that was not sent.
func TestUnacknowledgedEventWithoutAKey(t *testing.T) {
	t.Parallel()
	b := newHTTPBench(t, strings.Replace(keyedRoutes, "    output:", "    on_missing_key: forward\n    output:", 1))
	b.ready(b.start(b.config("one")))
	fronts := map[string]*runningIngress{`{"id":"a","x":%q}`: b.ingress("one"), `{"x":%q}`: b.ingress("two")}
	b.alter("signals.raw", "max.message.bytes", "2000") // which they do not know yet
	large := make([]byte, 3000)
	_, _ = rand.Read(large) // never fails
	for body, f := range fronts {
		event := submission("signals.raw", fmt.Sprintf(body, base64.StdEncoding.EncodeToString(large)), testTime)
		d, err := f.Derive(event)
		must(t, err)
		err = f.Submit(t.Context(), event, &d)
		if !errors.Is(err, front.ErrKafkaUnavailable) || errors.Is(err, front.ErrMissingKey) != (d.Finding == rules.KeyMissing) {
			t.Errorf("%.10s: %v", body, err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if _, err := f.try(ctx, event); !errors.Is(err, front.ErrKafkaUnavailable) || errors.Is(err, front.ErrMissingKey) {
			t.Errorf("%.10s, not sent: %v", body, err)
		}
	}
}

// switchDialer is a network that a test can take away.
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
		return nil, errors.New("the network is off")
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

// TestIngressClientWithoutABroker protects that the client rejects events at once or buffers them, as configured, and
// recovers by itself. Every buffered event is in Kafka once.
func TestIngressClientWithoutABroker(t *testing.T) {
	t.Parallel()
	b := newHTTPBench(t, benchRoutes)
	i := b.ready(b.start(b.config("one")))
	dialer := &switchDialer{conns: map[net.Conn]bool{}}
	f := b.ingress("front", kgo.Dialer(dialer.dial))
	assertAnswer(t, f.submit(submission("signals.raw", `{"id":"before"}`, testTime)), "unique forwarded")
	dialer.turn(true)
	// Some events are in flight when the connections close, and fail then.
	for n := range 10 {
		if _, err := f.try(t.Context(), submission("signals.raw", fmt.Sprintf(`{"id":"early-%d"}`, n), testTime)); !errors.Is(err, front.ErrKafkaUnavailable) {
			t.Fatalf("got %v", err)
		}
	}
	if err := f.Ready(); err == nil {
		t.Error("an ingress client without a broker says it is ready")
	}
	if _, err := f.try(t.Context(), submission("signals.raw", `{"id":"refused"}`, testTime)); !errors.Is(err, front.ErrKafkaUnavailable) || errors.Is(err, front.ErrUnacknowledged) {
		t.Errorf("got %v", err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	held := make(chan string, 20)
	for n := range 20 {
		s := submission("signals.raw", fmt.Sprintf(`{"id":"held-%d"}`, n), testTime)
		s.WaitForBroker = true
		go func() {
			a, err := f.try(ctx, s)
			held <- summary(a) + " " + fmt.Sprint(err)
		}()
	}
	canceled, cancelOne := context.WithCancel(context.Background())
	cancelOne()
	s := submission("signals.raw", `{"id":"canceled"}`, testTime)
	s.WaitForBroker = true
	if _, err := f.try(canceled, s); !errors.Is(err, front.ErrKafkaUnavailable) {
		t.Errorf("got %v", err)
	}
	dialer.turn(false)
	for range 20 {
		if got := <-held; got != "unique forwarded <nil>" {
			t.Errorf("a held event is answered %q", got)
		}
	}
	cancel()
	b.drain(i, "signals.raw")
	if out := b.read("signals.unique"); len(out) < 21 || len(out) > 31 {
		t.Errorf("%d events in the output, want the 21 that were answered and perhaps some of 10", len(out))
	}
}

// TestFullIngressClientRefuses protects that the events which wait for Kafka are bounded, and that refused events
// were not sent.
func TestFullIngressClientRefuses(t *testing.T) {
	t.Parallel()
	b := newHTTPBench(t, benchRoutes)
	b.ready(b.start(b.config("one")))
	f := b.ingressReady(b.startIngressWith("front", func(f *front.IngressClient) { f.RecordsMax = 3 }))
	fault := b.cluster.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.Produce}, Topic: "app-repartition", Err: kerr.NotLeaderForPartition, Count: -1})
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 10)
	for n := range cap(ended) {
		go func() {
			s := submission("signals.raw", fmt.Sprintf(`{"id":"%d"}`, n), testTime)
			s.Path = fmt.Sprint("/", n) // so that no path is at its own bound
			_, err := f.try(ctx, s)
			ended <- err
		}()
	}
	for range 7 {
		if err := <-ended; !errors.Is(err, front.ErrKafkaUnavailable) || errors.Is(err, context.Canceled) || errors.Is(err, front.ErrUnacknowledged) {
			t.Errorf("got %v", err)
		}
	}
	cancel()
	for range 3 {
		if err := <-ended; !errors.Is(err, front.ErrKafkaUnavailable) || !errors.Is(err, context.Canceled) || !errors.Is(err, front.ErrUnacknowledged) {
			t.Errorf("got %v", err)
		}
	}
	fault.Remove()
	b.wait("what was buffered to get through", func() bool { return len(b.read("signals.unique")) == 3 })
	assertAnswer(t, f.submit(submission("signals.raw", `{"id":"next"}`, testTime)), "unique forwarded")
}

// TestRefusedProducerIsReplaced covers a producer that was refused a producer id: without a replacement it would
// never send again.
func TestRefusedProducerIsReplaced(t *testing.T) {
	t.Parallel()
	b := newHTTPBench(t, benchRoutes)
	b.ready(b.start(b.config("one")))
	f := b.ingress("front")
	b.cluster.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.InitProducerID}, Err: kerr.ClusterAuthorizationFailed, When: func(req kmsg.Request) bool {
		init, ok := req.(*kmsg.InitProducerIDRequest)
		return ok && init.TransactionalID == nil
	}})
	event := submission("signals.raw", `{"id":"a"}`, testTime)
	if _, err := f.try(t.Context(), event); !errors.Is(err, front.ErrKafkaUnavailable) {
		t.Fatalf("got %v", err)
	}
	b.wait("another producer", func() bool {
		a, err := f.try(t.Context(), event)
		return err == nil && (a.Verdict == dedup.Unique || a.Verdict == dedup.Duplicate)
	})
}

// TestIngressClientWaitsForItsApp protects that a client waits for the topics and the manifest, and for a processor
// that knows its routes.
func TestIngressClientWaitsForItsApp(t *testing.T) {
	t.Parallel()
	b := newBench(t, benchRoutes)
	cfg := b.config("one")
	i := b.ready(b.start(cfg)) // of an app without HTTP
	b.openHTTP()
	f := b.startIngress("front")
	b.wait("the ingress client to say what it waits for", func() bool {
		return strings.Contains(f.Ready().Error(), "the http part of the routes is missing in app app")
	})
	if _, err := f.Derive(submission("signals.raw", `{"id":"a"}`, testTime)); !errors.Is(err, front.ErrKafkaUnavailable) {
		t.Errorf("got %v", err)
	}
	must(t, i.stop())
	b.ready(b.start(cfg))
	assertAnswer(t, b.ingressReady(f).submit(submission("signals.raw", `{"id":"a"}`, testTime)), "unique forwarded")

	b.useRoutes(strings.Replace(benchRoutes, "window: 1h", "window: 1h\n    namespace: other", 1))
	b.openHTTP()
	other := b.startIngress("other")
	b.wait("the other ingress client to say what it waits for", func() bool {
		err := other.Ready()
		return err != nil && strings.Contains(err.Error(), "is missing in app app")
	})
}

// TestIngressClientWaitsForItsRouteAtLevel1 protects that the ingress accepts no event of a route that the app has
// never run, also where the app has no route sets: no task would know the route, and its partition would wait.
func TestIngressClientWaitsForItsRouteAtLevel1(t *testing.T) {
	t.Parallel()
	b := newHTTPBench(t, benchRoutes)
	b.beginAtLevel1()
	b.ready(b.start(b.config("one")))
	b.useRoutes(benchRoutes + strings.NewReplacer("routes:\n", "", "name: signals", "name: others", "signals.", "others.").Replace(benchRoutes))
	b.createTopic("others.raw", 4)
	b.createTopic("others.unique", 4)
	b.openHTTP()
	f := b.startIngress("front")
	b.wait("the ingress client to say what it waits for", func() bool {
		err := f.Ready()
		return err != nil && strings.Contains(err.Error(), "route others is missing in app app")
	})
}

// TestIngressClientRefusesForeignRoutes protects against routes that are not those of the app, because the client
// would derive other keys than the app.
func TestIngressClientRefusesForeignRoutes(t *testing.T) {
	t.Parallel()
	b := newHTTPBench(t, benchRoutes)
	b.ready(b.start(b.config("one")))
	b.useRoutes(strings.Replace(benchRoutes, "field: id", "field: other", 1))
	b.openHTTP()
	client, err := front.NewIngressClient(b.config("front").Config, b.routes, prometheus.NewRegistry(), slog.New(slog.DiscardHandler))
	must(t, err)
	if err := client.Run(t.Context()); !errors.Is(err, kafka.ErrOperator) || !strings.Contains(err.Error(), "key rule changed") {
		t.Errorf("got %v", err)
	}
	b.useRoutes(benchRoutes)
	if _, err := front.NewIngressClient(b.config("front").Config, b.routes, prometheus.NewRegistry(), slog.New(slog.DiscardHandler)); err == nil || !strings.Contains(err.Error(), "no route has an http part") {
		t.Errorf("got %v", err)
	}
}
