package processor_test

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"oncebus/dedup"
	"oncebus/dedup/rules"
	"oncebus/processor"
	"oncebus/processor/app"
	"oncebus/processor/front"
	"oncebus/processor/wire"
)

// forget erases the rows of a key, and fails the test unless they are gone.
func (b *bench) forget(inspector *front.Inspector, key rules.Derived) front.Erasure {
	b.t.Helper()
	all, err := inspector.Forget(b.t.Context(), []front.Target{{Keys: []rules.Derived{key}}}, front.ForgetOptions{Timeout: 30 * time.Second, By: "test"})
	must(b.t, err)
	for _, row := range all[0].Rows {
		if row.Result != front.Erased {
			b.t.Fatalf("row %v of %s is %s, want erased", row.Digest, row.First, row.Result)
		}
	}
	return all[0]
}

func (b *bench) inspector(cfg processor.Config) *front.Inspector {
	b.t.Helper()
	inspector, err := front.NewInspector(b.t.Context(), cfg.Config, b.routes, slog.New(slog.DiscardHandler))
	must(b.t, err)
	b.t.Cleanup(inspector.Close)
	return inspector
}

// erasures returns the erasure requests in the manifest topic, including those that were removed since.
func (b *bench) erasures() (requests []*kgo.Record) {
	b.t.Helper()
	for _, rec := range b.read("app-manifest") {
		if _, is, removed, err := app.ReadErasure(rec); is && !removed {
			must(b.t, err)
			requests = append(requests, rec)
		}
	}
	return requests
}

// repeatErasures produces all erasure requests again, and waits until the tasks have applied them.
func (b *bench) repeatErasures() {
	b.t.Helper()
	requests := b.erasures()
	if len(requests) == 0 {
		b.t.Fatal("there is no request to repeat")
	}
	for _, r := range requests {
		b.produce(&kgo.Record{Topic: r.Topic, Key: r.Key, Value: r.Value})
	}
	b.erasuresApplied()
}

// erasuresApplied waits until no erasure request is pending.
func (b *bench) erasuresApplied() {
	b.t.Helper()
	b.wait("all requests to erase rows to be applied", func() bool {
		pending := map[string]bool{}
		for _, rec := range b.read("app-manifest") {
			if r, is, removed, _ := app.ReadErasure(rec); is {
				pending[r.Name] = !removed
			}
		}
		for _, open := range pending {
			if open {
				return false
			}
		}
		return true
	})
}

// plainRoutes has a routed route and a prepartitioned route, both of plain deduplication.
const plainRoutes = `routes:
  - name: signals
    topics: [signals.raw]
    key:
      - field: id
    window: 1h
    output: signals.unique
    duplicates: {to: signals.duplicates}
    dead_letter: dead
  - name: keyed
    topics: [keyed.raw]
    prepartitioned: true
    key:
      - field: id
    window: 1h
    output: keyed.unique
    duplicates: {to: keyed.duplicates}
    dead_letter: dead
`

func plainEvent(topic, id string, partition int32) *kgo.Record {
	return &kgo.Record{Topic: topic, Partition: partition, Timestamp: time.UnixMilli(testTime), Value: fmt.Appendf(nil, `{"id":%q}`, id)}
}

func (b *bench) derive(r *kgo.Record) rules.Derived {
	in := wire.InputOf(r)
	return b.routes.NewDeriver(nil).Derive(&in)
}

// TestForgetErasesPlainRows protects that the command forget erases the rows of a routed and of a prepartitioned
// route, also of an idle task. The next event of the key is unique, also after a rebuild from the changelog, and the
// key counts match the rows.
func TestForgetErasesPlainRows(t *testing.T) {
	t.Parallel()
	b := newBench(t, plainRoutes)
	cfg := b.config("one")
	i := b.ready(b.start(cfg))
	inspector := b.inspector(cfg)
	for _, route := range []string{"signals", "keyed"} {
		raw, unique := route+".raw", route+".unique"
		b.produce(plainEvent(raw, "a", 1), plainEvent(raw, "b", 1), plainEvent(raw, "a", 1))
		b.wait("the first events", func() bool { return len(b.read(unique)) == 2 && len(b.read(route+".duplicates")) == 1 })
		erased := b.forget(inspector, b.derive(plainEvent(raw, "a", 1)))
		if len(erased.Rows) != 1 || erased.Rows[0].Status != dedup.Seen {
			t.Fatalf("route %s: erased %+v", route, erased)
		}
	}
	b.erasuresApplied()
	if all := b.keyCounts(cfg); len(all) == 0 {
		t.Fatal("no key counts")
	} else {
		total := uint64(0)
		for _, k := range all {
			total += k.Total
		}
		if total != 2 {
			t.Errorf("%d keys are counted, want those of b: %+v", total, all)
		}
	}
	must(t, i.stop())
	cfg.StateDir = t.TempDir()
	i = b.ready(b.start(cfg))
	for _, route := range []string{"signals", "keyed"} {
		raw, unique := route+".raw", route+".unique"
		b.produce(plainEvent(raw, "a", 1), plainEvent(raw, "b", 1), plainEvent(raw, "a", 1))
		b.wait("the events after the erasure", func() bool { return len(b.read(route+".duplicates")) == 3 })
		if got := b.read(unique); len(got) != 3 || string(got[2].Value) != `{"id":"a"}` {
			t.Errorf("route %s: %d events in the output, want a, b and a", route, len(got))
		}
	}
	// The requests come again, as after a restore of an old backup of the topic. Both keys have rows of later events
	// now.
	b.repeatErasures()
	for _, route := range []string{"signals", "keyed"} {
		b.produce(plainEvent(route+".raw", "a", 1))
		b.wait("a duplicate of the later event", func() bool { return len(b.read(route+".duplicates")) == 4 })
		if n := len(b.read(route + ".unique")); n != 3 {
			t.Errorf("route %s: the repeated request erased a later row: %d events in the output", route, n)
		}
	}
	must(t, i.stop())
	b.promiseHeld(cfg)
}

// TestForgetWithoutAProcessIsAppliedLater protects that an erasure request stays in the topic until a task has
// applied it.
func TestForgetWithoutAProcessIsAppliedLater(t *testing.T) {
	t.Parallel()
	b := newBench(t, plainRoutes)
	cfg := b.config("one")
	i := b.ready(b.start(cfg))
	b.produce(plainEvent("keyed.raw", "a", 0))
	b.wait("the first event", func() bool { return len(b.read("keyed.unique")) == 1 })
	must(t, i.stop())
	inspector := b.inspector(cfg)
	all, err := inspector.Forget(t.Context(), []front.Target{{Keys: []rules.Derived{b.derive(plainEvent("keyed.raw", "a", 0))}}}, front.ForgetOptions{Timeout: 50 * time.Millisecond})
	must(t, err)
	if len(all[0].Rows) != 1 || all[0].Rows[0].Result != front.Requested {
		t.Fatalf("without a process: %+v", all[0].Rows)
	}
	i = b.ready(b.start(cfg))
	b.erasuresApplied()
	b.produce(plainEvent("keyed.raw", "a", 0))
	b.wait("the event after the erasure", func() bool { return len(b.read("keyed.unique")) == 2 })
	must(t, i.stop())
}

// TestForgetErasesResultsAndIdentifiers protects that, after forget, no newest record of the changelog has the result
// or the id of a request, and no row with another digest has the claim.
func TestForgetErasesResultsAndIdentifiers(t *testing.T) {
	t.Parallel()
	b := newBench(t, fmt.Sprintf(claimRoutes, "wait"))
	cfg := b.config("one")
	i := b.ready(b.start(cfg))
	event := operation("1", "request-of-mallory", 2)
	b.produce(event)
	b.drainClaims(i)
	b.produce(outcomeOf(b.read("ops.run")[0], "completed", []byte("secret result")))
	b.drainClaims(i)
	newest := func() (all string) {
		byKey := map[string][]byte{}
		for _, r := range b.read("app-repartition-changelog") {
			byKey[fmt.Sprint(r.Partition, string(r.Key))] = r.Value
		}
		for _, value := range byKey {
			all += string(value)
		}
		return all
	}
	if all := newest(); !strings.Contains(all, "secret result") || !strings.Contains(all, "request-of-mallory") {
		t.Fatal("the changelog has no result to erase")
	}
	b.forget(b.inspector(cfg), b.derive(event))
	if all := newest(); strings.Contains(all, "secret result") || strings.Contains(all, "request-of-mallory") {
		t.Error("the newest rows of the changelog have the result or the request's id")
	}
	must(t, i.stop())
}

// TestForgetIsAppliedAfterARebalance protects that the erasure request reaches the process that has the partition
// now.
func TestForgetIsAppliedAfterARebalance(t *testing.T) {
	t.Parallel()
	b := newBench(t, plainRoutes)
	one := b.config("one")
	i := b.ready(b.start(one))
	var records []*kgo.Record
	for n := range 8 {
		records = append(records, plainEvent("keyed.raw", fmt.Sprint(n), int32(n%4)))
	}
	b.produce(records...)
	b.wait("the first events", func() bool { return len(b.read("keyed.unique")) == 8 })
	two := b.start(b.config("two"))
	inspector := b.inspector(one)
	targets := make([]front.Target, len(records))
	for n, r := range records {
		targets[n].Keys = []rules.Derived{b.derive(r)}
	}
	erased := make(chan error, 1)
	go func() {
		all, err := inspector.Forget(context.WithoutCancel(t.Context()), targets, front.ForgetOptions{Timeout: time.Minute})
		for _, e := range all {
			for _, row := range e.Rows {
				if row.Result != front.Erased && err == nil {
					err = fmt.Errorf("row %v of task %s is %s", row.Digest, row.Task, row.Result)
				}
			}
		}
		erased <- err
	}()
	b.ready(two)
	must(t, i.stop())
	must(t, <-erased)
	b.produce(records...)
	b.wait("all events again", func() bool { return len(b.read("keyed.unique")) == 16 })
	must(t, two.stop())
}

// TestForgetSurvivesAnAbort fails the transaction with the erasure at each of its steps. The request stays until a
// later transaction has committed.
func TestForgetSurvivesAnAbort(t *testing.T) {
	t.Parallel()
	faults := map[string]kfake.Fault{
		"changelog": {Keys: []kmsg.Key{kmsg.Produce}, Topic: "keyed.raw-changelog", Err: kerr.InvalidRecord, Count: 2},
		"offsets":   {Keys: []kmsg.Key{kmsg.TxnOffsetCommit}, Err: kerr.UnknownMemberID, Count: 1},
		"end":       {Keys: []kmsg.Key{kmsg.EndTxn}, TxnID: app.TransactionalID("app", processor.StageDedup, 0, "one"), Err: kerr.InvalidProducerEpoch, Count: 1},
	}
	for name, fault := range faults {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newBench(t, plainRoutes)
			cfg := b.config("one")
			i := b.ready(b.start(cfg))
			if name == "changelog" {
				fault.Topic = app.ChangelogName("app", "keyed.raw")
			}
			b.produce(plainEvent("keyed.raw", "a", 0))
			b.wait("the first event", func() bool { return len(b.read("keyed.unique")) == 1 })
			handle := b.cluster.Fault(fault)
			b.forget(b.inspector(cfg), b.derive(plainEvent("keyed.raw", "a", 0)))
			if handle.Hits() == 0 {
				t.Fatal("the fault was never met")
			}
			b.erasuresApplied()
			b.produce(plainEvent("keyed.raw", "a", 0))
			b.wait("the event after the erasure", func() bool { return len(b.read("keyed.unique")) == 2 })
			must(t, i.stop())
		})
	}
}

// TestForgetIsAppliedAfterABypass protects that the erasure request waits while the store cannot be used.
func TestForgetIsAppliedAfterABypass(t *testing.T) {
	t.Parallel()
	b := newBench(t, openRoutes)
	cfg, disk, place := b.onDisk(500)
	i := b.ready(b.startWith(cfg, place))
	b.produce(signal("a", 0, testTime))
	b.drain(i, "signals.raw")
	disk.free.Store(80)
	b.wait("tasks without a store", func() bool { return bypassed(i, "app-repartition") })
	in := wire.InputOf(signal("a", 0, testTime))
	key := b.routes.NewDeriver(nil).Derive(&in)
	all, err := b.inspector(cfg).Forget(t.Context(), []front.Target{{Keys: []rules.Derived{key}}}, front.ForgetOptions{Timeout: 100 * time.Millisecond})
	must(t, err)
	if len(all[0].Rows) != 1 || all[0].Rows[0].Result != front.Requested {
		t.Fatalf("during the bypass: %+v", all[0].Rows)
	}
	b.produce(signal("b", 1, testTime+1))
	b.passesTo("signals.unique", 1)
	disk.free.Store(500)
	b.erasuresApplied()
	b.produce(signal("a", 2, testTime+2), signal("a", 3, testTime+3))
	b.drain(i, "signals.raw")
	b.assertOutputs("signals.unique", map[string]string{"k-a": "unique unique", "k-b": "bypassed"})
	must(t, i.stop())
}
