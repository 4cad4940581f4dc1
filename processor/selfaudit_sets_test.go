package processor_test

import (
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"oncebus/processor/move"
	"oncebus/processor/selfaudit"
)

const auditedRoutes = `routes:
  - name: signals
    topics: [signals.raw]
    key:
      - field: id
    window: 1h
    grace: 10m
    output: signals.unique
    duplicates: {to: signals.duplicates}
    dead_letter: dead
`

const auditedHooks = `  - name: hooks
    topics: [hooks.raw]
    key:
      - field: id
    window: 1h
    output: hooks.unique
    dead_letter: dead
`

// TestSelfAuditOverChangedRoutes protects which ranges are audited: a range across an added route and a longer window
// is checked, a range across another policy is not, and the next range is. What a removed route emitted is no
// finding; what it cannot have emitted is a finding.
func TestSelfAuditOverChangedRoutes(t *testing.T) {
	t.Parallel()
	b := newBench(t, auditedRoutes)
	b.createTopic("signals.raw", 4)
	b.createTopic("hooks.raw", 4)
	cfg := b.config("a")
	i := b.ready(b.start(cfg))
	set, a := int64(1), &audits{b: b, cfg: cfg}
	changed := func(routes string) {
		t.Helper()
		set++
		b.apply(routes, "hooks")
		b.taken(set, i)
	}
	sent := func(topics []string, ids string, at time.Duration) {
		t.Helper()
		for n, id := range strings.Fields(ids) {
			for _, topic := range topics {
				b.produce(event(topic, `{"id":"`+id+`"}`, int32(n%4), testTime+at.Milliseconds()))
			}
		}
		b.drain(i, topics...)
	}
	signals, both := []string{"signals.raw"}, []string{"signals.raw", "hooks.raw"}
	sent(signals, "a b c a", 0)
	a.holds()
	sent(signals, "b d", time.Minute)

	changed(auditedRoutes + auditedHooks)
	sent(both, "a e f e", time.Minute)
	if r := a.holds(); r.Report.Routes[1].Unique != 3 || r.Report.Routes[1].Duplicates != 1 {
		t.Errorf("the added route: %+v", r.Report.Routes[1])
	}

	longer := strings.Replace(auditedRoutes+auditedHooks, "window: 1h", "window: 2h", 1)
	changed(longer)
	sent(both, "e g", 100*time.Minute)
	sent(both, "e h", 170*time.Minute)
	a.holds()

	changed(strings.Replace(longer, "duplicates: {to: signals.duplicates}", "duplicates: drop", 1))
	sent(both, "g", 171*time.Minute)
	if r := a.next(); !r.Begins || !slices.Equal(r.Since, []string{"route set 4: signals: duplicates changed"}) {
		t.Fatalf("a range across another policy: %+v", r)
	}
	sent(both, "g x", 172*time.Minute)
	a.holds()

	changed(strings.Replace(strings.Replace(longer, "duplicates: {to: signals.duplicates}", "duplicates: drop", 1), auditedHooks, "", 1))
	sent(signals, "y", 173*time.Minute)
	if r := a.next(); !r.Begins || len(r.Since) != 1 || !strings.HasPrefix(r.Since[0], "route set 5: hooks: ") {
		t.Fatalf("a range across a removed route: %+v", r)
	}
	sent(signals, "y z", 174*time.Minute)
	a.holds()
	out := b.read("signals.unique")[0]
	again := &kgo.Record{Topic: out.Topic, Partition: out.Partition, Value: out.Value, Headers: out.Headers, Timestamp: out.Timestamp}
	b.produce(again)
	a.finds("K1", place(again))
}

// TestSelfAuditOverAMove protects that a range across a move is not checked, and that the next range is checked
// together with the copies of events from before it.
func TestSelfAuditOverAMove(t *testing.T) {
	t.Parallel()
	b := newBench(t, benchRoutes)
	b.createTopic("signals.raw", 4)
	cfg := b.config("a")
	i := b.ready(b.start(cfg))
	a := &audits{b: b, cfg: cfg}
	b.produce(movedEvents(1, 0, 300)...)
	b.drain(i, "signals.raw")
	a.holds()
	b.move(move.Options{Partitions: 3, Limit: time.Minute, By: "tester"})
	b.awaitGeneration(i, 2)
	b.produce(movedEvents(2, 100, 300)...)
	b.drain(i, "signals.raw")
	_, err := selfaudit.New(t.Context(), cfg.Config, b.routes, slog.New(slog.DiscardHandler))
	if err == nil || !strings.Contains(err.Error(), "run oncebus move --finish") {
		t.Errorf("an audit while the old topic is forwarded: %v", err)
	}
	_, err = b.mover().Finish(t.Context())
	must(t, err)
	want := []string{"the keys were moved to topic app-repartition-2"}
	if r := a.next(); !r.Begins || !slices.Equal(r.Since, want) {
		t.Fatalf("a range across a move: %+v", r)
	}
	b.produce(movedEvents(3, 200, 300)...)
	b.drain(i, "signals.raw")
	if r := a.holds(); r.Report.Routes[0].Unique == 0 || r.Report.Routes[0].Duplicates == 0 {
		t.Errorf("%+v", r.Report.Routes[0])
	}
	a.last = nil
	if r := a.next(); !r.Begins || !slices.Equal(r.Since, want) {
		t.Errorf("an audit from the start: %+v", r)
	}
}
