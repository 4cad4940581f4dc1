//go:build unix

package main_test

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	"golang.org/x/time/rate"

	"oncebus/cmd/oncebus/cli"
	"oncebus/processor/kafkatest"
)

// loadRate is the load of tests that change a running app, in events a second:
// ONCEBUS_TEST_LOAD=20000, or what the suite has time for.
var loadRate = func() int64 {
	text, set := os.LookupEnv("ONCEBUS_TEST_LOAD")
	if !set {
		return 2000
	}
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil || n < 100 {
		panic("ONCEBUS_TEST_LOAD: " + text + " is no rate of at least 100 events a second")
	}
	return n
}()

// loadAhead is how many events the load may be ahead of the app: a slow machine lowers the rate.
var loadAhead = 3 * loadRate

// load sends events of realRoutes until its context ends, in batches at loadRate, of which a
// third are duplicates.
type load struct {
	w    *world
	sent atomic.Int64
	next int
	done chan error
}

func (w *world) startLoad(ctx context.Context) *load {
	l := &load{w: w, done: make(chan error, 1)}
	go func() { l.done <- l.run(ctx) }()
	return l
}

func (l *load) run(ctx context.Context) error {
	const batch = 1000
	limit := rate.NewLimiter(rate.Limit(loadRate), batch)
	for n := 0; limit.WaitN(ctx, batch) == nil; n++ {
		if n%20 == 0 {
			if err := kafkatest.Await(ctx, "the app to follow the load", l.followed); err != nil {
				return nil //nolint:nilerr // the test is over
			}
		}
		records := make([]*kgo.Record, batch)
		for i := range records {
			records[i] = l.record()
		}
		if err := l.w.producer.ProduceSync(context.WithoutCancel(ctx), records...).FirstErr(); err != nil {
			return err
		}
		l.sent.Add(batch)
	}
	return nil
}

// followed returns nil if the app has processed all but loadAhead of the events.
func (l *load) followed(ctx context.Context) error {
	committed, err := l.w.committed(ctx)
	if err != nil {
		return err
	}
	ahead := l.sent.Load()
	for _, topic := range l.w.topicsOf(realInputs) {
		for _, offset := range committed[topic] {
			ahead -= offset
		}
	}
	if ahead > loadAhead {
		return errNotYet
	}
	return nil
}

// record makes the next event: of two routes in turn, one of them prepartitioned, and each third
// one again, a while later.
func (l *load) record() *kgo.Record {
	n := l.next
	l.next++
	if n%3 == 2 {
		n = max(0, n-1-(n*7919)%20_000)
	}
	r := &kgo.Record{Timestamp: time.Now().Truncate(time.Millisecond)}
	if n%2 == 0 {
		r.Topic, r.Partition = l.w.topic("signals.raw"), int32(l.next%realPartitions)
		r.Value = fmt.Appendf(nil, `{"traceId":"load-%d","symbol":"BTCUSDT"}`, n)
		return r
	}
	r.Topic, r.Partition = l.w.topic("orders.raw"), int32(n/2%realPartitions)
	r.Value = fmt.Appendf(nil, `{"account":"a%d","request":%d}`, n/2%realPartitions, n)
	return r
}

// reaches waits until so many events were sent.
func (l *load) reaches(n int64) {
	l.w.t.Helper()
	eventually(l.w.t, fmt.Sprintf("%d events are sent", n), func(context.Context) error {
		select {
		case err := <-l.done:
			l.w.t.Fatalf("the load ended: %v", err)
		default:
		}
		if l.sent.Load() < n {
			return errNotYet
		}
		return nil
	})
}

// audited is what 'oncebus self-audit -o json' prints, as far as the tests read it.
type audited struct {
	Verdict string
	Records int64
	Seconds float64
	Cut     float64 `json:"cut_seconds"`
	OneIn   int64   `json:"one_in"`
	Routes  []struct {
		Route                                   string
		Inputs, Unique, Duplicates, Unexplained int64
		DeadLetters                             int64 `json:"dead_letters"`
		Forwarded, Dropped                      int64
	}
	Carried  int
	Findings []struct{ Invariant, At, Message string }
}

// selfAudit runs the command, which must end with this exit code.
func (w *world) selfAudit(want int, args ...string) audited {
	w.t.Helper()
	out, stderr, code := w.oncebus("", append([]string{"self-audit", "-o", "json"}, args...)...)
	var a audited
	if err := json.Unmarshal([]byte(out), &a); err != nil || code != want {
		w.t.Fatalf("self-audit %v: exit code %d, want %d; %v\n%.4000s%s", args, code, want, err, out, stderr)
	}
	w.t.Logf("self-audit %v: %s, cut in %.1f s, %d records in %.1f s (%.0f/s), %d carried, %+v", args, a.Verdict, a.Cut, a.Records, a.Seconds, float64(a.Records)/a.Seconds, a.Carried, a.Routes)
	return a
}

// TestRealSelfAudit audits an app under load from its start, and goes on after the kill of a
// process. Then it finds a copy that was written to the output by hand.
func TestRealSelfAudit(t *testing.T) {
	t.Parallel()
	w := newLoadedWorld(t, realRoutes)
	w.createTopics(nil, realInputs...)
	settings := []string{"TRANSACTION_TIMEOUT=30s", "SESSION_TIMEOUT=6s"} // the machine may be busy
	a, b := w.start("a", settings...), w.start("b", settings...)
	a.awaitReady()
	b.awaitReady()
	awaitSharing(t, 2*realPartitions, a, b)
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	began := time.Now()
	l := w.startLoad(ctx)
	position := filepath.Join(w.dir, "audit.position")

	l.reaches(5 * loadRate)
	w.selfAudit(cli.ExitStopped, "--from", position, "--save", position)
	for range 2 {
		l.reaches(l.sent.Load() + 2*loadRate)
		b.kill()
		l.reaches(l.sent.Load() + 2*loadRate)
		w.selfAudit(cli.ExitStopped, "--from", position, "--save", position)
		b = w.start("b", settings...)
		b.awaitReady()
	}
	l.reaches(l.sent.Load() + 2*loadRate)
	w.selfAudit(cli.ExitStopped, "--from", position, "--save", position)
	stop()
	if err := <-l.done; err != nil {
		t.Fatal(err)
	}
	t.Logf("%d events in %v, %.0f/s", l.sent.Load(), time.Since(began), float64(l.sent.Load())/time.Since(began).Seconds())
	w.drained(realInputs, realOutputs)
	w.selfAudit(cli.ExitStopped, "--from", position, "--save", position)
	w.checkAudited(l.sent.Load())

	out := w.output("signals.unique")[0]
	again := &kgo.Record{Topic: out.Topic, Partition: out.Partition, Key: out.Key, Value: out.Value, Headers: out.Headers, Timestamp: out.Timestamp}
	w.produce(again)
	found := w.selfAudit(cli.ExitBroken, "--from", position, "--save", position)
	if len(found.Findings) != 1 || found.Findings[0].At != at(again) || found.Findings[0].Invariant != "K1" {
		t.Errorf("findings %+v, want one K1 at %s", found.Findings, at(again))
	}
	line, _, code := w.oncebus("", "self-audit", "--from", position, "--quiet")
	if code != cli.ExitStopped || !strings.Contains(line, "verdict=held") || strings.Count(line, "\n") != 1 {
		t.Errorf("the next audit: %d, %s", code, line)
	}
}
