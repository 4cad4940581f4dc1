package processor

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"oncebus/dedup"
	"oncebus/processor/restore"
	"oncebus/processor/wire"
)

// openRoutes are one route that does not wait for local state and one that does.
const openRoutes = `routes:
  - name: signals
    topics: [signals.raw]
    key: [{field: id}]
    window: 1h
    output: signals.unique
    dead_letter: dead
    on_state_failure: fail_open
  - name: strict
    topics: [strict.raw]
    key: [{field: id}]
    window: 1h
    output: strict.unique
    dead_letter: dead
    on_state_failure: fail_closed
`

// outputs returns, by record key, the verdicts under which a topic's events
// stand in it, in order.
func (b *bench) outputs(topic string) map[string]string {
	b.t.Helper()
	all := map[string]string{}
	for _, r := range b.read(topic) {
		all[string(r.Key)] = strings.TrimSpace(all[string(r.Key)] + " " + header(r, wire.HeaderVerdict))
	}
	return all
}

func (b *bench) assertOutputs(topic string, want map[string]string) {
	b.t.Helper()
	if got := b.outputs(topic); fmt.Sprint(got) != fmt.Sprint(want) {
		b.t.Errorf("%s holds\n%v, want\n%v", topic, got, want)
	}
}

// strict makes an event of the route that waits.
func strict(id string, partition int32) *kgo.Record {
	r := signal(id, partition, testTime)
	r.Topic = "strict.raw"
	return r
}

// bypassed reports whether all four tasks of a topic bypass their stores.
func bypassed(i *instance, topic string) bool {
	n := 0
	for _, t := range i.State().Tasks {
		if t.ID().Topic == topic && t.State == TaskBypassing.String() {
			n++
		}
	}
	return n == 4
}

// live counts the keys of a status that the tasks show.
func live(i *instance, status dedup.Status) (n uint64) {
	for _, task := range i.State().Tasks {
		for _, k := range task.Keys {
			if k.Status == status.String() {
				n += k.Total
			}
		}
	}
	return n
}

// passesTo waits until so many records of a topic are marked bypassed.
func (b *bench) passesTo(topic string, n int) {
	b.t.Helper()
	b.wait(fmt.Sprintf("%d events marked bypassed in %s", n, topic), func() bool {
		marked := 0
		for _, r := range b.read(topic) {
			if header(r, wire.HeaderVerdict) == dedup.Bypassed.String() {
				marked++
			}
		}
		return marked >= n
	})
}

// TestEventsBypassAFullDisk: without room for local state the
// events of a fail_open route are forwarded and marked, those of a fail_closed route
// wait. With free space, checking resumes, and the forwarded events are stored.
func TestEventsBypassAFullDisk(t *testing.T) {
	t.Parallel()
	for _, restart := range []bool{false, true} {
		t.Run(fmt.Sprintf("restart %v", restart), func(t *testing.T) {
			b := newBench(t, openRoutes)
			cfg, disk, place := b.onDisk(500)
			i := b.ready(b.startWith(cfg, place))
			b.produce(signal("a", 0, testTime), strict("a", 0))
			b.drain(i, "signals.raw", "strict.raw")

			disk.free.Store(80)
			b.wait("tasks without a store", func() bool { return bypassed(i, "app-repartition") })
			if err := i.Ready(); err == nil || !strings.Contains(err.Error(), "paused") {
				t.Errorf("ready says %v", err)
			}
			b.produce(signal("a", 1, testTime+1), signal("b", 1, testTime), signal("c", 2, testTime), signal("c", 3, testTime+5), strict("a", 1), strict("b", 1), strict("b", 2))
			b.passesTo("signals.unique", 4)
			b.wait("the routing stage, which goes on", b.routed)
			b.assertOutputs("signals.unique", map[string]string{"k-a": "unique bypassed", "k-b": "bypassed", "k-c": "bypassed bypassed"})
			b.assertOutputs("strict.unique", map[string]string{"k-a": "unique"})
			if restart {
				must(t, i.stop())
				i = b.startWith(cfg, place)
				b.wait("tasks without a store again", func() bool { return bypassed(i, "app-repartition") })
				b.produce(signal("d", 0, testTime))
				b.passesTo("signals.unique", 5)
			}

			disk.free.Store(500)
			b.drain(i, "signals.raw", "strict.raw")
			b.produce(signal("b", 0, testTime+9), signal("c", 0, testTime+9), signal("d", 1, testTime+9), signal("e", 0, testTime), strict("b", 3))
			b.drain(i, "signals.raw", "strict.raw")
			want := map[string]string{"k-a": "unique bypassed", "k-b": "bypassed", "k-c": "bypassed bypassed", "k-d": "unique", "k-e": "unique"}
			if restart {
				want["k-d"] = "bypassed"
			}
			b.assertOutputs("signals.unique", want)
			b.assertOutputs("strict.unique", map[string]string{"k-a": "unique", "k-b": "unique"})
			if dead := b.read("dead"); len(dead) != 0 {
				t.Errorf("%d dead letters", len(dead))
			}
			b.wait("7 keys to count", func() bool { return live(i, dedup.Seen) == 5+2 })
			for _, r := range b.read("signals.unique") {
				if header(r, wire.HeaderVerdict) == "bypassed" && header(r, wire.HeaderReason) != "local state cannot be used: not checked for duplicates" {
					t.Errorf("a bypassed event has headers %v", r.Headers)
				}
			}
			if !restart {
				if n := testutil.ToFloat64(i.JudgeMetrics().Events.WithLabelValues("signals", "bypassed")); n != 4 {
					t.Errorf("%v events count as bypassed", n)
				}
			}
		})
	}
}

// TestPrepartitionedEventsBypass: a task that derives keys itself does so too. An
// event without a key needs no state, so it is treated at once, and once.
func TestPrepartitionedEventsBypass(t *testing.T) {
	t.Parallel()
	b := newBench(t, strings.Replace(openRoutes, "    topics: [signals.raw]\n", "    topics: [signals.raw]\n    prepartitioned: true\n", 1))
	cfg, disk, place := b.onDisk(500)
	i := b.ready(b.startWith(cfg, place))
	b.produce(signal("a", 0, testTime))
	b.drain(i, "signals.raw")
	disk.free.Store(80)
	b.wait("tasks without a store", func() bool { return bypassed(i, "signals.raw") })
	b.produce(signal("a", 0, testTime+1), signal("b", 0, testTime), &kgo.Record{Topic: "signals.raw", Partition: 0, Value: []byte(`{}`)})
	b.passesTo("signals.unique", 2)
	b.wait("the dead letter", func() bool { return len(b.read("dead")) == 1 })
	disk.free.Store(500)
	b.ready(i)
	b.produce(signal("b", 0, testTime+2), signal("c", 0, testTime))
	b.drain(i, "signals.raw")
	b.assertOutputs("signals.unique", map[string]string{"k-a": "unique bypassed", "k-b": "bypassed", "k-c": "unique"})
	if dead := b.read("dead"); len(dead) != 1 {
		t.Errorf("%d dead letters", len(dead))
	}
}

// TestBypassWithAnUnknownCommitOutcome: the broker commits while the client gets
// an unknown outcome. What was bypassed is not emitted again.
func TestBypassWithAnUnknownCommitOutcome(t *testing.T) {
	t.Parallel()
	b := newBench(t, openRoutes)
	cfg, disk, place := b.onDisk(500)
	dialer := &spoilingDialer{api: kmsg.EndTxn, match: "app-one-" + stageDedup + "-0", spoil: answerEndTxn(kerr.UnknownServerError)}
	i := b.ready(b.startWith(cfg, place, kgo.Dialer(dialer.dial)))
	disk.free.Store(80)
	b.wait("tasks without a store", func() bool { return bypassed(i, "app-repartition") })
	dialer.arm(1)
	records := batch("x", 40)
	b.produce(records...)
	b.passesTo("signals.unique", len(records))
	if dialer.left() != 0 {
		t.Fatal("no answer was spoiled")
	}
	disk.free.Store(500)
	b.drain(i, "signals.raw")
	b.produce(batch("x", 40)...)
	b.drain(i, "signals.raw")
	for key, verdicts := range b.outputs("signals.unique") {
		if verdicts != "bypassed" {
			t.Errorf("%s went out as %s", key, verdicts)
		}
	}
}

// TestBypassedOrderIsNotRunAgain: in claim mode the executor gets a bypassed
// event without a token, its sender gets the verdict bypassed, and later duplicates
// are in progress: the event's outcome cannot arrive. Outcomes wait for the store.
func TestBypassedOrderIsNotRunAgain(t *testing.T) {
	t.Parallel()
	b := newBench(t, fmt.Sprintf(claimRoutes, "wait")+"    on_state_failure: fail_open\n")
	cfg, disk, place := b.onDisk(500)
	i := b.ready(b.startWith(cfg, place))
	b.produce(operation("1", "first", 0))
	b.drainClaims(i)
	disk.free.Store(80)
	b.wait("tasks without a store", func() bool { return bypassed(i, "app-repartition") })
	first := b.read("ops.run")[0]
	b.produce(outcomeOf(first, "completed", []byte("done")))
	b.produce(operation("2", "bypassed", 1))
	b.passesTo("ops.run", 1)
	b.wait("a reply", func() bool { return len(b.replies("ops.replies")) == 1 })
	assertHeaders(t, b.replies("ops.replies")["ops.raw/1/0"], map[string]string{
		wire.HeaderVerdict: "bypassed", wire.HeaderClaimStatus: "bypassed", wire.HeaderRequestID: "bypassed", wire.HeaderAttempt: "0",
	})
	disk.free.Store(500)
	b.drainClaims(i)
	b.produce(operation("1", "second", 2), operation("2", "again", 3))
	b.drainClaims(i)
	run := b.read("ops.run")
	if len(run) != 2 || header(run[0], wire.HeaderClaimToken) == "" || header(run[1], wire.HeaderClaimToken) != "" {
		t.Fatalf("the executor got %d events", len(run))
	}
	replies := b.replies("ops.replies")
	assertHeaders(t, replies["ops.raw/0/0"], map[string]string{wire.HeaderVerdict: "unique", wire.HeaderClaimStatus: "completed"})
	assertHeaders(t, replies["ops.raw/2/0"], map[string]string{wire.HeaderVerdict: "replayed", wire.HeaderClaimStatus: "completed"})
	if r := replies["ops.raw/3/0"]; r != nil {
		t.Errorf("a duplicate that waits for an outcome is answered %v", r.Headers)
	}
	b.wait("one key to count as submitted", func() bool { return live(i, dedup.Submitted) == 1 })
}

// TestBypassedDuplicateOfAClaim: a claim stands when a duplicate is bypassed.
// Neither the end of its lease nor a failure lets a further one run; its outcome
// is recorded and sent, and forget frees it.
func TestBypassedDuplicateOfAClaim(t *testing.T) {
	t.Parallel()
	for outcome, want := range map[string]map[string]string{
		"":          {wire.HeaderVerdict: "in_progress", wire.HeaderClaimStatus: "submitted"},
		"submitted": {wire.HeaderVerdict: "in_progress", wire.HeaderClaimStatus: "submitted"},
		"failed":    {wire.HeaderVerdict: "in_progress", wire.HeaderClaimStatus: "submitted"},
		"rejected":  {wire.HeaderVerdict: "in_progress", wire.HeaderClaimStatus: "submitted"},
		"completed": {wire.HeaderVerdict: "replayed", wire.HeaderClaimStatus: "completed"},
		"forget":    nil,
	} {
		t.Run("outcome "+outcome, func(t *testing.T) {
			t.Parallel()
			b := newBench(t, strings.Replace(fmt.Sprintf(claimRoutes, "reject"), "lease: 10m", "lease: 1ms", 1)+"    on_state_failure: fail_open\n")
			cfg, disk, place := b.onDisk(500)
			i := b.ready(b.startWith(cfg, place))
			b.produce(operation("1", "first", 0))
			b.drainClaims(i)
			claimed := b.read("ops.run")[0]
			disk.free.Store(80)
			b.wait("tasks without a store", func() bool { return bypassed(i, "app-repartition") })
			b.produce(operation("1", "bypassed", 1), operation("1", "bypassed too", 1))
			b.passesTo("ops.run", 2)
			disk.free.Store(500)
			b.drainClaims(i)
			b.wait("one key to count as submitted", func() bool { return live(i, dedup.Submitted) == 1 && live(i, dedup.ClaimInProgress) == 0 })
			if outcome != "" {
				b.produce(outcomeOf(claimed, outcome, []byte("the result")))
				b.drainClaims(i)
			}
			b.produce(operation("1", "later", 2))
			b.drainClaims(i)
			runs, replies := b.read("ops.run"), b.replies("ops.replies")
			if want == nil {
				if len(runs) != 4 || !slices.ContainsFunc(runs, func(r *kgo.Record) bool { return header(r, wire.HeaderAttempt) == "2" }) {
					t.Errorf("after forget the executor got %d events", len(runs))
				}
				return
			}
			if len(runs) != 3 {
				t.Errorf("the executor got %d events, want the first and two bypassed", len(runs))
			}
			assertHeaders(t, replies["ops.raw/2/0"], want)
			if outcome != "" && outcome != "submitted" {
				assertHeaders(t, replies["ops.raw/0/0"], map[string]string{wire.HeaderVerdict: "unique", wire.HeaderClaimStatus: outcome})
			}
		})
	}
}

// TestBypassedDuplicateAfterItsWindowAtTheLimit: the key is not new, so the limit
// does not keep it from being recorded.
func TestBypassedDuplicateAfterItsWindowAtTheLimit(t *testing.T) {
	t.Parallel()
	b := newBench(t, fmt.Sprintf(claimRoutes, "reject")+"    on_state_failure: fail_open\n    limits: {live_keys: 1}\n")
	cfg, disk, place := b.onDisk(500)
	i := b.ready(b.startWith(cfg, place))
	b.produce(operation("1", "first", 0))
	b.drainClaims(i)
	disk.free.Store(80)
	b.wait("tasks without a store", func() bool { return bypassed(i, "app-repartition") })
	late := func(request string, partition int32) *kgo.Record {
		r := operation("1", request, partition)
		r.Timestamp = r.Timestamp.Add(61 * time.Minute)
		return r
	}
	b.produce(late("bypassed", 1))
	b.passesTo("ops.run", 1)
	disk.free.Store(500)
	b.drainClaims(i)
	b.produce(late("again", 2))
	b.drainClaims(i)
	if n := len(b.read("ops.run")); n != 2 {
		t.Errorf("the executor got %d events, want the first and the bypassed one", n)
	}
	assertHeaders(t, b.replies("ops.replies")["ops.raw/2/0"], map[string]string{wire.HeaderVerdict: "in_progress", wire.HeaderClaimStatus: "submitted"})
}

// TestBrokenStateDoesNotStopOpenRoutes: where rebuilds are no help, a process
// with a route that does not wait goes on without local state, until a person
// has looked.
func TestBrokenStateDoesNotStopOpenRoutes(t *testing.T) {
	t.Parallel()
	b := newBench(t, openRoutes)
	cfg := b.config("one")
	cfg.RebuildsPerHour = 1
	i := b.lived(cfg, batch("before", 40)...)
	for range 2 {
		for n := range 4 {
			dir := filepath.Join(cfg.StateDir, "app", fmt.Sprint("app-repartition-", n))
			must(t, os.WriteFile(filepath.Join(dir, "MANIFEST"), []byte("no manifest"), 0o600))
		}
		i = b.start(cfg)
		b.wait("an end to it", func() bool { return i.Ready() == nil || bypassed(i, "app-repartition") })
		if i.Ready() == nil {
			must(t, i.stop())
		}
	}
	b.produce(batch("before", 4)...)
	b.passesTo("signals.unique", 4)
	if why := i.State().Tasks[0].Reason; !strings.Contains(why, "failed 1 times") {
		t.Errorf("the reason is %q", why)
	}
	must(t, os.Remove(filepath.Join(cfg.StateDir, "app", restore.RebuildsName)))
	b.ready(i)
	b.produce(batch("before", 40)...)
	b.drain(i, "signals.raw")
	for key, verdicts := range b.outputs("signals.unique") {
		if verdicts != "unique" && verdicts != "unique bypassed" {
			t.Errorf("%s went out as %s", key, verdicts)
		}
	}
}

// TestStateThatCannotBeOpened: whatever is wrong with the directory, events of
// the open route go on, and the state comes back when it is put right.
func TestStateThatCannotBeOpened(t *testing.T) {
	t.Parallel()
	b := newBench(t, openRoutes)
	cfg := b.config("one")
	b.lived(cfg, batch("x", 40)...)
	dir := filepath.Join(cfg.StateDir, "app")
	must(t, os.Rename(dir, dir+".away"))
	must(t, os.Mkdir(dir, 0o700))
	for n := range 4 {
		must(t, os.WriteFile(filepath.Join(dir, fmt.Sprint("app-repartition-", n)), []byte("a file"), 0o600))
	}
	i := b.start(cfg)
	b.wait("tasks without a store", func() bool { return bypassed(i, "app-repartition") })
	b.produce(append(batch("x", 4), batch("y", 4)...)...)
	b.passesTo("signals.unique", 8)
	must(t, os.RemoveAll(dir))
	must(t, os.Rename(dir+".away", dir))
	b.ready(i)
	b.produce(append(batch("x", 40), batch("y", 4)...)...)
	b.drain(i, "signals.raw")
	for key, verdicts := range b.outputs("signals.unique") {
		if verdicts != "unique" && verdicts != "unique bypassed" && verdicts != "bypassed" {
			t.Errorf("%s went out as %s", key, verdicts)
		}
	}
}

// TestRandomOutagesOfLocalState: whatever the disk does and whenever processes
// die, each event goes out at most once, no key is missed, at most one duplicate of
// each is called unique, and the route that waits is not touched by any of it.
func TestRandomOutagesOfLocalState(t *testing.T) {
	t.Parallel()
	b := newBench(t, openRoutes)
	cfg, disk, place := b.onDisk(500)
	i := b.ready(b.startWith(cfg, place))
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 6))
	var sent []*kgo.Record
	for range 24 {
		var records []*kgo.Record
		for range 20 {
			id, partition := fmt.Sprint(rng.IntN(120)), rng.Int32N(4)
			if rng.IntN(2) == 0 {
				records = append(records, strict(id, partition))
			} else {
				records = append(records, signal(id, partition, testTime+rng.Int64N(1000)))
			}
		}
		b.produce(records...)
		sent = append(sent, records...)
		switch rng.IntN(6) {
		case 0, 1:
			disk.free.Store(80)
			b.wait("tasks without a store", func() bool { return bypassed(i, "app-repartition") })
		case 2:
			disk.free.Store(500)
			b.ready(i)
		case 3:
			must(t, i.stop())
			i = b.startWith(cfg, place)
		}
	}
	disk.free.Store(500)
	b.ready(i)
	b.drain(i, "signals.raw", "strict.raw")
	wantStrict, keys := map[string]string{}, map[string]bool{}
	for _, r := range sent {
		if r.Topic == "strict.raw" {
			wantStrict[string(r.Key)] = "unique"
		} else {
			keys[string(r.Key)] = true
		}
	}
	b.assertOutputs("strict.unique", wantStrict)
	outputs := b.outputs("signals.unique")
	for key := range keys {
		if outputs[key] == "" || strings.Count(outputs[key], "unique") > 1 {
			t.Errorf("%s went out as %q", key, outputs[key])
		}
	}
	sources := map[string]bool{}
	for _, r := range b.read("signals.unique") {
		if source := header(r, wire.HeaderSource); source != "" && sources[source] {
			t.Errorf("the event at %s went out twice", source)
		} else {
			sources[source] = true
		}
	}
	for _, r := range sent {
		r.Partition = 3 - r.Partition
	}
	b.produce(sent...)
	b.drain(i, "signals.raw", "strict.raw")
	b.assertOutputs("signals.unique", outputs)
	b.assertOutputs("strict.unique", wantStrict)
	if !strings.Contains(fmt.Sprint(outputs), dedup.Bypassed.String()) {
		t.Error("no event was bypassed")
	}
}

// TestFailOpenPrepartitionedTopicsStayInTheTopology: with nothing but prepartitioned topics, one of
// which does not wait, workers still know all of them when they look again.
func TestFailOpenPrepartitionedTopicsStayInTheTopology(t *testing.T) {
	t.Parallel()
	keyed := strings.NewReplacer("[signals.raw]\n", "[signals.raw]\n    prepartitioned: true\n", "[strict.raw]\n", "[strict.raw]\n    prepartitioned: true\n")
	b := newBench(t, keyed.Replace(openRoutes))
	cfg, disk, place := b.onDisk(500)
	cfg.Workers = 2
	i := b.ready(b.startWith(cfg, place))
	disk.free.Store(80)
	b.wait("tasks without a store", func() bool { return bypassed(i, "signals.raw") })
	b.produce(signal("a", 0, testTime), strict("a", 0))
	b.passesTo("signals.unique", 1)
	disk.free.Store(500)
	b.ready(i)
	if got := i.App().Topology.TaskTopics(); !slices.Equal(got, []string{"signals.raw", "strict.raw"}) {
		t.Errorf("the topics of tasks are %q", got)
	}
	b.drain(i, "signals.raw", "strict.raw")
	b.assertOutputs("signals.unique", map[string]string{"k-a": "bypassed"})
	b.assertOutputs("strict.unique", map[string]string{"k-a": "unique"})
}

// TestDeadLetterOfAnOutageIsNotStored: what was too large for the output, or
// of the future, during the outage was not emitted. So a corrected duplicate of it
// is emitted.
func TestDeadLetterOfAnOutageIsNotStored(t *testing.T) {
	t.Parallel()
	const pass = "    on_state_failure: fail_open\n"
	claims := fmt.Sprintf(claimRoutes, "reject") + pass
	large := func(r *kgo.Record) *kgo.Record {
		r.Headers = append(r.Headers, kgo.RecordHeader{Key: "pad", Value: make([]byte, 3000)})
		return r
	}
	ahead := func(r *kgo.Record) *kgo.Record {
		r.Timestamp = time.Now().Add(time.Hour)
		return r
	}
	as := func(r *kgo.Record) *kgo.Record { return r }
	plain := func(n int32) *kgo.Record { return signal("x", n%2, testTime) }
	claim := func(n int32) *kgo.Record { return operation("1", fmt.Sprint(n), n) }
	keyed := strings.Replace(openRoutes, "    topics: [signals.raw]\n", "    topics: [signals.raw]\n    prepartitioned: true\n", 1)
	for name, c := range map[string]struct {
		routes, topic, output, partitioned string
		event                              func(n int32) *kgo.Record
		spoil, mend                        func(*kgo.Record) *kgo.Record
		later                              string // the routes after the outage
	}{
		"too large":         {openRoutes, "signals.raw", "signals.unique", "app-repartition", plain, large, as, openRoutes},
		"a claim too large": {claims, "ops.raw", "ops.run", "app-repartition", claim, large, as, claims},
		"of the future": {
			strings.Replace(keyed, "    window: 1h\n", "    window: 1h\n    skew: 1s\n", 1), "signals.raw", "signals.unique", "signals.raw",
			func(int32) *kgo.Record { return signal("x", 0, testTime) }, ahead, ahead, strings.Replace(keyed, "    window: 1h\n", "    window: 1h\n    skew: 70m\n", 1),
		},
		"a claim of the future": {claims + "    skew: 1s\n", "ops.raw", "ops.run", "app-repartition", claim, ahead, ahead, claims + "    skew: 70m\n"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newBench(t, c.routes)
			b.createTopic(c.output, 4, "max.message.bytes", "2000")
			cfg, disk, place := b.onDisk(500)
			i := b.ready(b.startWith(cfg, place))
			disk.free.Store(80)
			b.wait("tasks without a store", func() bool { return bypassed(i, c.partitioned) })
			b.produce(c.spoil(c.event(0)))
			b.wait("a dead letter", func() bool { return len(b.read("dead")) == 1 })
			must(t, i.stop())
			b.useRoutes(c.later)
			disk.free.Store(500)
			i = b.ready(b.startWith(cfg, place))
			b.drain(i, c.topic)
			for n := range int32(2) {
				b.produce(c.mend(c.event(n + 1)))
				b.drain(i, c.topic)
			}
			out, dead := b.read(c.output), b.read("dead")
			if len(out) != 1 || header(out[0], wire.HeaderVerdict) != "unique" || !bytes.Equal(out[0].Key, c.event(1).Key) {
				t.Errorf("%d events in %s", len(out), c.output)
			}
			if len(dead) != 1 || header(dead[0], wire.HeaderVerdict) != "invalid" {
				t.Errorf("%d dead letters", len(dead))
			}
		})
	}
}

// TestBombDuringABypass: a batch that decompresses to too much holds
// nothing up, and becomes one dead letter, however often it is met.
func TestBombDuringABypass(t *testing.T) {
	t.Parallel()
	for _, restart := range []bool{false, true} {
		t.Run(fmt.Sprintf("restart %v", restart), func(t *testing.T) {
			t.Parallel()
			b := newBench(t, strings.Replace(openRoutes, "    topics: [signals.raw]\n", "    topics: [signals.raw]\n    prepartitioned: true\n", 1))
			cfg, disk, place := b.onDisk(500)
			cfg.MaxDecompressedBatchBytes = DecompressedBatchBytesMin
			i := b.ready(b.startWith(cfg, place))
			b.produce(signal("a", 0, testTime))
			b.drain(i, "signals.raw")
			disk.free.Store(80)
			b.wait("tasks without a store", func() bool { return bypassed(i, "signals.raw") })
			first := b.produceBatch("signals.raw", 0, rawBatch(t, kgo.GzipCompression(), 3, 700_000))
			b.produce(signal("b", 0, testTime), signal("c", 1, testTime))
			b.passesTo("signals.unique", 2)
			if restart {
				must(t, i.stop())
				i = b.startWith(cfg, place)
				b.wait("tasks without a store again", func() bool { return bypassed(i, "signals.raw") })
				b.produce(signal("d", 0, testTime))
				b.passesTo("signals.unique", 3)
			}
			disk.free.Store(500)
			b.ready(i)
			b.produce(signal("b", 0, testTime), signal("c", 1, testTime), signal("e", 0, testTime))
			b.drain(i, "signals.raw")
			want := map[string]string{"k-a": "unique", "k-b": "bypassed", "k-c": "bypassed", "k-e": "unique"}
			if restart {
				want["k-d"] = "bypassed"
			}
			b.assertOutputs("signals.unique", want)
			assertBatches(t, b, map[string]string{fmt.Sprint("signals.raw/0/", first): fmt.Sprint("signals.raw/0/", first+2)})
		})
	}
}
