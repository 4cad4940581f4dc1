package processor_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"oncebus/dedup"
	"oncebus/processor"
	"oncebus/processor/deadletter"
	"oncebus/processor/wire"
)

const (
	// wrongRoutes name a field that no event has. mendedRoutes have another namespace, because the key rule of the
	// first namespace is pinned.
	wrongRoutes  = benchRoutes + "    max_key_bytes: 64\n"
	mendedRoutes = `routes:
  - name: signals
    namespace: signals-2
    topics: [signals.raw]
    key:
      - field: code
    window: 1h
    grace: 10m
    output: signals.unique
    dead_letter: dead
    max_key_bytes: 64
`
)

// turnedAway makes n raw records without the field of wrongRoutes.
func turnedAway(n int) (records []*kgo.Record) {
	for i := range n {
		r := signal("", int32(i%4), time.Now().UnixMilli())
		r.Key, r.Value = fmt.Appendf(nil, "key-%d", i), fmt.Appendf(nil, `{"code":"%d"}`, i)
		r.Headers = append(r.Headers, kgo.RecordHeader{Key: "oncebus-key", Value: []byte("forged")})
		records = append(records, r)
	}
	return records
}

// deadLetters opens a client for the app's dead letters.
func (b *bench) deadLetters(cfg processor.Config, dry bool, extra ...kgo.Opt) *deadletter.Client {
	b.t.Helper()
	c, err := deadletter.New(b.t.Context(), cfg.Config, b.routes, slog.New(slog.DiscardHandler), !dry, extra...)
	must(b.t, err)
	b.t.Cleanup(c.Close)
	return c
}

// redrive runs a redrive as a process of its own would.
func (b *bench) redrive(cfg processor.Config, change func(*deadletter.RedriveOptions), extra ...kgo.Opt) (*deadletter.Report, error) {
	b.t.Helper()
	o := deadletter.RedriveOptions{AttemptsMax: 3}
	change(&o)
	return b.deadLetters(cfg, false, extra...).Redrive(b.t.Context(), &o)
}

// turnAway lets the app turn records away because of a wrong rule, and then puts the mended rule in force.
func turnAway(t *testing.T, records []*kgo.Record) (*bench, processor.Config) {
	t.Helper()
	b, cfg := turnAwayOnly(t, records)
	b.apply(mendedRoutes, "signals")
	return b, cfg
}

// turnAwayOnly lets the app turn records away, and mends the rule only in the routes file.
func turnAwayOnly(t *testing.T, records []*kgo.Record) (*bench, processor.Config) {
	t.Helper()
	b := newBench(t, wrongRoutes)
	cfg := b.config("one")
	i := b.ready(b.start(cfg))
	b.produce(records...)
	b.drain(i, "signals.raw")
	if dead := b.read("dead"); len(dead) != len(records) {
		t.Fatalf("%d dead letters, want %d", len(dead), len(records))
	}
	must(t, i.stop())
	b.useRoutes(mendedRoutes)
	return b, cfg
}

// assertRedriven checks that the raw topic has each record a second time, exactly once, unchanged, and in its
// partition and order.
func (b *bench) assertRedriven(records []*kgo.Record, attempt string) {
	b.t.Helper()
	again := map[int32][]string{}
	for _, r := range b.read("signals.raw") {
		if header(r, wire.HeaderRedriveAttempt) != attempt {
			continue
		}
		if header(r, "traceparent") != "00-abc" || header(r, "oncebus-key") != "forged" || len(r.Headers) != 3 {
			b.t.Errorf("record %s has the headers %v", r.Value, r.Headers)
		}
		again[r.Partition] = append(again[r.Partition], fmt.Sprint(string(r.Key), string(r.Value), r.Timestamp.UnixMilli()))
	}
	want := map[int32][]string{}
	for _, r := range records {
		want[r.Partition] = append(want[r.Partition], fmt.Sprint(string(r.Key), string(r.Value), r.Timestamp.UnixMilli()))
	}
	for partition := range int32(4) {
		if !slices.Equal(again[partition], want[partition]) {
			b.t.Errorf("partition %d has %d redriven records, want %d, or their order differs", partition, len(again[partition]), len(want[partition]))
		}
	}
}

// TestRedriveOfALargeEvent protects that an event which fits into its topic only compressed is sent back whole.
func TestRedriveOfALargeEvent(t *testing.T) {
	t.Parallel()
	b := newBench(t, wrongRoutes)
	cfg := b.config("one")
	i := b.ready(b.start(cfg))
	records := turnedAway(20)
	for n := range 20 {
		if n%7 == 3 {
			records[n].Value = fmt.Appendf(nil, `{"code":"%d","pad":%q}`, n, strings.Repeat("0123456789", 200_000))
		}
	}
	sender := b.newClient(kgo.ProducerBatchMaxBytes(8 << 20))
	must(t, sender.ProduceSync(t.Context(), records...).FirstErr())
	b.drain(i, "signals.raw")
	must(t, i.stop())
	b.useRoutes(mendedRoutes)
	b.apply(mendedRoutes, "signals")
	_, err := b.redrive(cfg, func(*deadletter.RedriveOptions) {})
	must(t, err)
	b.assertRedriven(records, "1")
}

// TestRedriveGoesOnWhereItStopped ends a redrive at each of its transactions, before the commit and after a commit
// whose response was lost. The next redrive goes on: no dead letter is sent twice, and none is left.
func TestRedriveGoesOnWhereItStopped(t *testing.T) {
	t.Parallel()
	for name, spoil := range map[string]func([]byte) ([]byte, error){
		"response lost": func([]byte) ([]byte, error) { return nil, io.ErrUnexpectedEOF },
		"error":         answerEndTxn(kerr.UnknownServerError),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			records := turnedAway(60)
			b, cfg := turnAway(t, records)
			i := b.ready(b.start(cfg))
			runs, sent := 0, 0
			for runs = range 40 {
				dialer := &spoilingDialer{api: kmsg.EndTxn, match: deadletter.TransactionalID("app"), spoil: spoil}
				dialer.arm(1)
				options := func(o *deadletter.RedriveOptions) { o.Limit = 7 }
				report, err := b.redrive(cfg, options, kgo.Dialer(dialer.dial))
				if err == nil && report.Selected == 0 {
					break
				}
				if err == nil {
					t.Fatalf("the redrive did not notice that its commit is unknown: %+v", report)
				}
				if sent += report.Redriven; sent != 0 {
					t.Errorf("%d records are reported as sent whose commit is unknown", sent)
				}
			}
			if runs < 8 {
				t.Errorf("%d runs redrove all in batches of 7", runs)
			}
			b.assertRedriven(records, "1")
			b.drain(i, "signals.raw")
			if out := b.read("signals.unique"); len(out) != len(records) {
				t.Errorf("%d records in the output, want %d", len(out), len(records))
			}
		})
	}
}

// TestRedriveThatIsAborted ends a redrive before its commit: nothing was sent, and all dead letters are still open.
func TestRedriveThatIsAborted(t *testing.T) {
	t.Parallel()
	records := turnedAway(20)
	b, cfg := turnAway(t, records)
	i := b.ready(b.start(cfg))
	var cut atomic.Bool
	cut.Store(true)
	b.cluster.Intercept(func(req kmsg.Request) (kmsg.Response, error, bool) {
		end, ok := req.(*kmsg.EndTxnRequest)
		return nil, io.ErrUnexpectedEOF, ok && cut.Load() && end.TransactionalID == deadletter.TransactionalID("app")
	}, kmsg.EndTxn)
	if report, err := b.redrive(cfg, func(*deadletter.RedriveOptions) {}); err == nil || report.Redriven != 0 {
		t.Fatalf("%+v, %v", report, err)
	}
	cut.Store(false)
	report, err := b.redrive(cfg, func(*deadletter.RedriveOptions) {})
	must(t, err)
	if report.Redriven != len(records) || report.Selected != len(records) {
		t.Errorf("the next redrive: %+v", report)
	}
	b.assertRedriven(records, "1")
	b.drain(i, "signals.raw")
	if n := b.uncommitted("signals.raw"); n != 3*len(records) {
		t.Errorf("%d records were ever written, want the aborted ones too", n)
	}
}

// TestRedriveLooksAtInputsOfRemovedRoutes covers an earlier redrive that wrote to the input of a route which was
// removed since. The next redrive looks for an open transaction there, too, before it registers the transactional id.
func TestRedriveLooksAtInputsOfRemovedRoutes(t *testing.T) {
	t.Parallel()
	b := newBench(t, bothRoutes)
	cfg := b.config("one")
	must(t, b.living(cfg, batch("s", 4)...).stop())
	b.deadLetters(cfg, false).Close()
	b.apply(benchRoutes)
	var mu sync.Mutex
	looked := map[string]bool{}
	b.cluster.Intercept(func(req kmsg.Request) (kmsg.Response, error, bool) {
		mu.Lock()
		defer mu.Unlock()
		switch req := req.(type) {
		case *kmsg.DescribeProducersRequest:
			for _, topic := range req.Topics {
				looked[topic.Topic] = true
			}
		case *kmsg.InitProducerIDRequest:
			if !looked["alerts.raw"] || !looked["signals.raw"] || !looked["app-manifest"] {
				t.Errorf("the id is registered when only %v were looked at", looked)
			}
		}
		return nil, nil, false
	}, kmsg.DescribeProducers, kmsg.InitProducerID)
	b.deadLetters(cfg, false)
	mu.Lock()
	defer mu.Unlock()
	if len(looked) == 0 {
		t.Error("nothing was looked at")
	}
}

// TestTwoRedrivesAtATime protects that a second redrive fences the first, and that each dead letter is sent once.
func TestTwoRedrivesAtATime(t *testing.T) {
	t.Parallel()
	records := turnedAway(40)
	b, cfg := turnAway(t, records)
	i := b.ready(b.start(cfg))
	var second *deadletter.Report
	c := b.deadLetters(cfg, false)
	_, err := c.Redrive(t.Context(), &deadletter.RedriveOptions{AttemptsMax: 3, Rate: 100, Sent: func(done, _ int64) {
		if done == 10 {
			var err error
			second, err = b.redrive(cfg, func(*deadletter.RedriveOptions) {})
			must(t, err)
		}
	}})
	if !errors.Is(err, deadletter.ErrFenced) {
		t.Errorf("the first redrive ended with %v", err)
	}
	if second == nil || second.Redriven != 30 {
		t.Errorf("the second redrive: %+v", second)
	}
	b.assertRedriven(records, "1")
	b.drain(i, "signals.raw")
}

// TestFiltersLeaveTheRestOpen redrives by one filter, then by another filter over the same partitions, then
// everything: each dead letter is sent once. The option Again sends it once more, and sends a dropped dead letter
// only then.
func TestFiltersLeaveTheRestOpen(t *testing.T) {
	t.Parallel()
	records := turnedAway(40)
	b, cfg := turnAway(t, records)
	i := b.ready(b.start(cfg))
	by := func(key string) func(*deadletter.RedriveOptions) {
		return func(o *deadletter.RedriveOptions) { o.Key = deadletter.NewKeyFilter(key, b.routes, nil) }
	}
	all := func(*deadletter.RedriveOptions) {}
	for n, step := range []struct {
		options func(*deadletter.RedriveOptions)
		want    int
	}{{by("key-17"), 1}, {by("key-3"), 1}, {by("key-17"), 0}} {
		report, err := b.redrive(cfg, step.options)
		must(t, err)
		if report.Redriven != step.want || report.Selected != step.want {
			t.Errorf("step %d redrove %d of %d, want %d", n, report.Redriven, report.Selected, step.want)
		}
	}
	c := b.deadLetters(cfg, false)
	dropped, err := c.Drop(t.Context(), &deadletter.Selection{Filter: deadletter.Filter{Key: deadletter.NewKeyFilter("key-5", b.routes, nil)}}, false, nil)
	must(t, err)
	if dropped.Dropped != 1 {
		t.Errorf("dropped %+v", dropped)
	}
	report, err := b.redrive(cfg, all)
	must(t, err)
	if report.Redriven != 37 || len(report.Fates) != 1 || report.Fates[0].Finding != "keyed" {
		t.Errorf("all: %+v", report)
	}
	b.drain(i, "signals.raw")
	if out := b.read("signals.unique"); len(out) != 39 {
		t.Errorf("%d records in the output, want all but the dropped one", len(out))
	}
	report, err = b.redrive(cfg, func(o *deadletter.RedriveOptions) { by("key-5")(o); o.Again = true })
	must(t, err)
	if report.Redriven != 1 {
		t.Errorf("again: %+v", report)
	}
	b.drain(i, "signals.raw")
	if out := b.read("signals.unique"); len(out) != 40 {
		t.Errorf("%d records in the output, want all", len(out))
	}
	b.assertDeletedWhenDone(cfg)
}

// assertDeletedWhenDone deletes the records of dead letters that are done, and expects that these are all.
func (b *bench) assertDeletedWhenDone(cfg processor.Config) {
	b.t.Helper()
	dry, err := b.deadLetters(cfg, true).Drop(b.t.Context(), &deadletter.Selection{}, true, nil)
	must(b.t, err)
	if left := b.read("dead"); len(dry.Deleted) != 4 || len(left) == 0 {
		b.t.Errorf("dry run: %+v, %d dead letters are left", dry, len(left))
	}
	report, err := b.deadLetters(cfg, false).Drop(b.t.Context(), &deadletter.Selection{}, true, nil)
	must(b.t, err)
	if left := b.read("dead"); report.Dropped != 0 || len(report.Deleted) != 4 || len(left) != 0 {
		b.t.Errorf("%+v, %d dead letters are left", report, len(left))
	}
}

// TestRedriveNeedsTheMendedRoutesInTheApp protects that a redrive is refused before the mended routes are in force,
// because the old rule would turn the records away again.
func TestRedriveNeedsTheMendedRoutesInTheApp(t *testing.T) {
	t.Parallel()
	b, cfg := turnAwayOnly(t, turnedAway(4))
	report, err := b.redrive(cfg, func(*deadletter.RedriveOptions) {})
	if err == nil || !strings.Contains(err.Error(), "signals") || report.Redriven != 0 {
		t.Errorf("%+v, %v", report, err)
	}
	if report, err = b.deadLetters(cfg, true).Redrive(t.Context(), &deadletter.RedriveOptions{AttemptsMax: 3}); err != nil || report.Redriven != 4 {
		t.Errorf("dry run: %+v, %v", report, err)
	}
}

// TestRedriveLoopEnds protects that a record which is turned away again each time is sent no more often than the
// limit says, also after its original is deleted, because the dead letter has the count.
func TestRedriveLoopEnds(t *testing.T) {
	t.Parallel()
	b := newBench(t, wrongRoutes)
	cfg := b.config("one")
	b.ready(b.start(cfg))
	b.produce(turnedAway(3)...)
	b.wait("the records to be turned away", func() bool { return len(b.read("dead")) == 3 })
	for round := range 5 {
		report, err := b.redrive(cfg, func(*deadletter.RedriveOptions) {})
		must(t, err)
		want, skipped := 3, 0
		if round >= 3 {
			want, skipped = 0, 1
		}
		if report.Redriven != want || len(report.Skipped) != skipped {
			t.Fatalf("round %d: %+v", round, report)
		}
		if skipped == 1 && (report.Skipped[0].Cause != deadletter.AtBound || report.Skipped[0].Count != 3) {
			t.Errorf("round %d skipped %+v", round, report.Skipped)
		}
		b.wait("the records to be turned away again", func() bool { return len(b.read("dead")) >= 3*min(round+2, 4) })
		b.deleteAll("signals.raw")
	}
	if dead := b.read("dead"); len(dead) != 12 {
		t.Errorf("%d dead letters, want 3 of each attempt", len(dead))
	}
}

// TestRedriveOfAnEventByHTTP covers an event by HTTP that a task turned away, which has no raw record. The redrive
// sends it to the topic of its route, where it gets the same key.
func TestRedriveOfAnEventByHTTP(t *testing.T) {
	t.Parallel()
	b := newHTTPBench(t, benchRoutes+"    fingerprint: [price]\n")
	cfg := b.config("one")
	i := b.ready(b.start(cfg))
	f := b.ingress("http")
	now := time.Now().UnixMilli()
	f.submit(submission("signals.raw", `{"id":"7","price":1}`, now))
	answer := f.submit(submission("signals.raw", `{"id":"7","price":2}`, now, dedup.Header{Key: "x", Value: []byte("1")}))
	if answer.Verdict != dedup.Collision {
		t.Fatalf("the event is %v, want a collision", answer.Verdict)
	}
	must(t, f.stop())
	must(t, i.stop())
	key := header(b.read("dead")[0], wire.HeaderKey)
	b.apply(benchRoutes + "    duplicates: forward\n")
	b.openHTTP()
	b.ready(b.start(cfg))
	report, err := b.redrive(cfg, func(*deadletter.RedriveOptions) {})
	must(t, err)
	if report.Redriven != 1 {
		t.Fatalf("%+v", report)
	}
	b.wait("the event in the output", func() bool { return len(b.read("signals.unique")) == 2 })
	for _, r := range b.read("signals.unique") {
		if header(r, "x") == "1" && (header(r, wire.HeaderKey) != key || header(r, wire.HeaderVerdict) != "duplicate" || r.Timestamp.UnixMilli() != now || r.Key != nil) {
			t.Errorf("redriven with the headers %v, want the key %s; time %v, record key %s", r.Headers, key, r.Timestamp, r.Key)
		}
	}
	if n := len(b.read("signals.raw")); n != 1 {
		t.Errorf("%d records in the raw topic, want the redriven one", n)
	}
}

// deleteAll deletes the records of a topic.
func (b *bench) deleteAll(topic string) {
	b.t.Helper()
	ends, err := b.admin.ListEndOffsets(context.Background(), topic)
	must(b.t, err)
	_, err = b.admin.DeleteRecords(context.Background(), ends.Offsets())
	must(b.t, err)
}
