package processor_test

import (
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"oncebus/dedup"
	"oncebus/dedup/rules"
	"oncebus/processor"
	"oncebus/processor/app"
	"oncebus/processor/front"
	"oncebus/processor/kafka"
	"oncebus/processor/wire"
)

// keyCounts returns the numbers of keys that the tasks remember, as their checkpoints have them.
func (b *bench) keyCounts(cfg processor.Config) (all []app.KeyCount) {
	b.t.Helper()
	inspector, err := front.NewInspector(b.t.Context(), cfg.Config, b.routes, slog.New(slog.DiscardHandler))
	must(b.t, err)
	tasks, err := inspector.Stats(b.t.Context())
	must(b.t, err)
	inspector.Close()
	for _, task := range tasks {
		all = append(all, task.Keys...)
	}
	return all
}

// waitingRequests returns how many requests wait.
func (b *bench) waitingRequests(cfg processor.Config) (n uint64) {
	b.t.Helper()
	for _, k := range b.keyCounts(cfg) {
		n += k.Waiting
	}
	return n
}

// TestKeysAreCounted protects that the key counts of the metrics and of the checkpoints equal the counts of a scan of
// the rows, also after a restart and a rebuild.
func TestKeysAreCounted(t *testing.T) {
	t.Parallel()
	b := newBench(t, fmt.Sprintf(claimRoutes, "reject"))
	cfg := b.config("one")
	i := b.ready(b.startWith(cfg, often))
	const minute = 60_000
	var records, later []*kgo.Record
	for n := range 40 {
		records = append(records, operation(fmt.Sprint(n), fmt.Sprint(n), int32(n%4)))
		records[n].Timestamp = time.UnixMilli(testTime + int64(n%2)*30*minute)
	}
	// The number is so large that each partition gets an event, because the secret of the hash is random.
	for n := range 60 {
		later = append(later, operation(fmt.Sprint("later-", n), fmt.Sprint("later-", n), int32(n%4)))
		later[n].Timestamp = time.UnixMilli(testTime + 100*minute)
	}
	// The window is 1 h: a row is dropped once it is two windows and the grace old.
	var last []*kgo.Record // three, as a partition may hold none of the old keys
	for n := range 3 {
		last = append(last, operation(fmt.Sprint("last-", n), fmt.Sprint("last-", n), 0))
		last[n].Timestamp = time.UnixMilli(testTime + 150*minute)
	}
	b.produce(records...)
	b.drainClaims(i)
	outcomes := []string{"submitted", "completed", "failed", "forget"}
	for n, event := range b.read("ops.run") {
		if n%5 < len(outcomes) {
			b.produce(outcomeOf(event, outcomes[n%5], nil))
		}
	}
	b.produce(records[:7]...)
	b.drainClaims(i)
	for _, more := range [][]*kgo.Record{later, last} {
		b.produce(more...)
		b.drainClaims(i)
		b.upToDate()
	}
	for n, restart := range []string{"running", "restarted", "rebuilt"} {
		if n > 0 {
			must(t, i.stop())
			if restart == "rebuilt" {
				cfg.StateDir = t.TempDir()
			}
			i = b.ready(b.start(cfg))
		}
		seen := map[string]keySums{}
		var judged, duplicates uint64
		for _, k := range b.keyCounts(cfg) {
			seen[k.Status] = seen[k.Status].plus(keySums{k.Total, k.Active, k.Expired})
			judged += k.Judged
			duplicates += k.Duplicates
			if k.Namespace != "ops" || !slices.Equal(k.Routes, []string{"ops"}) {
				t.Errorf("%s: namespace %s of routes %v", restart, k.Namespace, k.Routes)
			}
		}
		rows := b.scanKeys()
		if !maps.Equal(seen, rows) {
			t.Errorf("%s: the counts say %v, the rows %v", restart, seen, rows)
		}
		all := rows["in_progress"].plus(rows["submitted"]).plus(rows["completed"])
		if active := uint64(len(later) + len(last)); all.active != active || all.expired == 0 || all.total >= active+40*3/5 {
			t.Errorf("%s: the scan found %+v, want %d active ones, and of the others some expired and some evicted", restart, all, active)
		}
		if want := uint64(len(records) + 7 + len(later) + len(last)); judged != want || duplicates == 0 || duplicates > 7 {
			t.Errorf("%s: %d events and %d duplicates, want %d and up to 7", restart, judged, duplicates, want)
		}
		for status, n := range rows {
			b.wait("the counts to be published", func() bool {
				metrics := gather(t, i)
				labels := fmt.Sprintf("{namespace=%q,status=%q}", "ops", status)
				return metrics["oncebus_keys"+labels] == float64(n.total) && metrics["oncebus_keys_active"+labels] == float64(n.active)
			})
		}
	}
}

// keySums are numbers of keys by state.
type keySums struct{ total, active, expired uint64 }

func (s keySums) plus(more keySums) keySums {
	return keySums{s.total + more.total, s.active + more.active, s.expired + more.expired}
}

// newestRows reads the changelog of the repartition topic. It returns the newest row of each key, by task and digest,
// and the stream time of the first namespace, by task.
func (b *bench) newestRows() (rows map[rowPlace]dedup.Row, times map[int32]int64) {
	b.t.Helper()
	rows, times = map[rowPlace]dedup.Row{}, map[int32]int64{}
	for _, r := range b.read("app-repartition-changelog") {
		if wire.IsCheckpoint(r.Key) {
			continue
		}
		for row, err := range wire.RowsOf(r) {
			must(b.t, err)
			rows[rowPlace{r.Partition, row.Digest}] = *row
		}
	}
	for partition, fold := range b.folds("app-repartition-changelog") {
		c := fold.Newest()
		times[partition] = c.StreamTimes.Of(0)
	}
	return rows, times
}

// rowPlace says in which task and under which digest a row stands.
type rowPlace struct {
	partition int32
	digest    dedup.Digest
}

// scanKeys counts the keys of the first route by status, from all rows of the changelog.
func (b *bench) scanKeys() map[string]keySums {
	b.t.Helper()
	rows, times := b.newestRows()
	window := b.routes.Routes[0].Span()
	sums := map[string]keySums{}
	for _, status := range []dedup.Status{dedup.ClaimInProgress, dedup.Submitted, dedup.Completed} {
		sums[status.String()] = keySums{}
	}
	for at, row := range rows {
		switch now, status := times[at.partition], row.Status.String(); {
		case !window.Decides(&row, now):
		case window.Over(row.First, now):
			sums[status] = sums[status].plus(keySums{1, 0, 1})
		default:
			sums[status] = sums[status].plus(keySums{1, 1, 0})
		}
	}
	return sums
}

// TestInspectorFindsAndForgets protects that the inspector finds and erases keys from the topics alone, without the
// state of a process.
func TestInspectorFindsAndForgets(t *testing.T) {
	t.Parallel()
	b := newBench(t, fmt.Sprintf(claimRoutes, "reject"))
	cfg := b.config("one")
	i := b.ready(b.start(cfg))
	event := operation("1", "first", 2)
	b.produce(event)
	b.drainClaims(i)
	b.produce(outcomeOf(b.read("ops.run")[0], "completed", []byte("done")))
	b.drainClaims(i)
	derived := b.routes.NewDeriver(nil).Derive(&rules.Input{Topic: "ops.raw", Value: event.Value})
	inspector, err := front.NewInspector(t.Context(), cfg.Config, b.routes, slog.New(slog.DiscardHandler))
	must(t, err)
	defer func() { inspector.Close() }()
	entry, found, err := inspector.Lookup(t.Context(), &derived)
	must(t, err)
	if !found || entry.Row.Status != dedup.Completed || entry.First != "ops.raw/2/0" || string(entry.Claim.Result) != "done" || !entry.Held() {
		t.Errorf("found %v: %+v", found, entry)
	}
	b.forget(inspector, derived)
	if entry, _, err = inspector.Lookup(t.Context(), &derived); err != nil || entry.Row.Status != dedup.Freed {
		t.Errorf("after forget: %+v, %v", entry.Row, err)
	}
	b.produce(operation("1", "again", 3))
	b.drainClaims(i)
	if n := len(b.read("ops.run")); n != 2 {
		t.Errorf("%d events went to the executor, want 2", n)
	}
	other := b.routes.NewDeriver(nil).Derive(&rules.Input{Topic: "ops.raw", Value: operation("2", "x", 0).Value})
	if _, found, err := inspector.Lookup(t.Context(), &other); found || err != nil {
		t.Errorf("found a key that was never sent: %v", err)
	}
}

// TestForgetThatIsReadAgainErasesNoLaterAttempt lets the app read the record of the command forget again, for example
// after a reset of offsets. The key was claimed and completed since, and this later claim stays.
func TestForgetThatIsReadAgainErasesNoLaterAttempt(t *testing.T) {
	t.Parallel()
	b := newBench(t, fmt.Sprintf(claimRoutes, "reject"))
	cfg := b.config("one")
	i := b.ready(b.start(cfg))
	event := operation("1", "first", 0)
	complete := func(n int) {
		t.Helper()
		runs := b.read("ops.run")
		if len(runs) != n {
			t.Fatalf("%d attempts went to the executor, want %d", len(runs), n)
		}
		for _, run := range runs {
			if header(run, wire.HeaderAttempt) == fmt.Sprint(n) {
				b.produce(outcomeOf(run, "completed", fmt.Appendf(nil, "result %d", n)))
			}
		}
		b.drainClaims(i)
	}
	b.produce(event)
	b.drainClaims(i)
	complete(1)
	derived := b.routes.NewDeriver(nil).Derive(&rules.Input{Topic: "ops.raw", Value: event.Value})
	inspector, err := front.NewInspector(t.Context(), cfg.Config, b.routes, slog.New(slog.DiscardHandler))
	must(t, err)
	b.forget(inspector, derived)
	inspector.Close()
	b.produce(operation("1", "second", 1))
	b.drainClaims(i)
	complete(2)
	b.repeatErasures()
	b.produce(operation("1", "third", 2))
	b.drainClaims(i)
	reply := b.replies("ops.replies")["ops.raw/2/0"]
	assertHeaders(t, reply, map[string]string{wire.HeaderVerdict: "replayed", wire.HeaderAttempt: "2"})
	if string(reply.Value) != "result 2" || len(b.read("ops.run")) != 2 {
		t.Errorf("the duplicate got %q, %d attempts went to the executor", reply.Value, len(b.read("ops.run")))
	}
}

// TestForgetOfAFreeKeyProducesNothing protects that forget writes no erasure request for a free key, because such a
// request could only erase a later row.
func TestForgetOfAFreeKeyProducesNothing(t *testing.T) {
	t.Parallel()
	b := newBench(t, fmt.Sprintf(claimRoutes, "reject"))
	cfg := b.config("one")
	i := b.ready(b.start(cfg))
	event := operation("1", "first", 0)
	b.produce(event)
	b.drainClaims(i)
	b.produce(outcomeOf(b.read("ops.run")[0], "failed", nil))
	b.drainClaims(i)
	inspector, err := front.NewInspector(t.Context(), cfg.Config, b.routes, slog.New(slog.DiscardHandler))
	must(t, err)
	defer inspector.Close()
	for _, value := range [][]byte{event.Value, operation("2", "never sent", 0).Value} {
		derived := b.routes.NewDeriver(nil).Derive(&rules.Input{Topic: "ops.raw", Value: value})
		if erased := b.forget(inspector, derived); len(erased.Rows) > 0 {
			t.Errorf("%s: %+v", value, erased)
		}
	}
	if n := len(b.erasures()); n != 0 {
		t.Errorf("%d requests, want none", n)
	}
}

// TestForgetWithoutAnAttemptIsRefused covers an erasure request without an attempt, as builds before this one
// produced it.
func TestForgetWithoutAnAttemptIsRefused(t *testing.T) {
	t.Parallel()
	b := newBench(t, fmt.Sprintf(claimRoutes, "reject"))
	i := b.ready(b.start(b.config("one")))
	b.produce(operation("1", "first", 0))
	b.drainClaims(i)
	run := b.read("ops.run")[0]
	token, err := dedup.ParseToken([]byte(header(run, wire.HeaderClaimToken)))
	must(t, err)
	token.Attempt, token.At = 0, dedup.Position{}
	b.produce(&kgo.Record{Topic: "ops.outcomes", Headers: []kgo.RecordHeader{
		{Key: wire.HeaderClaimToken, Value: token.Append(nil)}, {Key: wire.HeaderOutcome, Value: []byte("forget")},
	}})
	b.drainClaims(i)
	dead := b.read("dead")
	if len(dead) != 1 {
		t.Fatalf("%d dead letters, want 1", len(dead))
	}
	assertHeaders(t, dead[0], map[string]string{wire.HeaderReason: "outcome refused: header oncebus-claim-token: names no attempt: copy the header from the event, or repeat the command 'oncebus forget' of this build"})
	b.produce(operation("1", "second", 1))
	b.drainClaims(i)
	assertHeaders(t, b.replies("ops.replies")["ops.raw/1/0"], map[string]string{wire.HeaderVerdict: "in_progress", wire.HeaderAttempt: "1"})
}

// TestInspectorRefusesWhatTheAppNeverRanWith protects that the inspector refuses routes that the app never ran with.
// It can say nothing of their keys, which differs from saying that no key is kept.
func TestInspectorRefusesWhatTheAppNeverRanWith(t *testing.T) {
	t.Parallel()
	b := newBench(t, benchRoutes)
	cfg := b.config("one")
	b.ready(b.start(cfg))
	other := cfg
	other.AppID = "unknown"
	_, err := front.NewInspector(t.Context(), other.Config, b.routes, slog.New(slog.DiscardHandler))
	if !kafka.IsOperatorError(err) || !strings.Contains(err.Error(), "no app unknown has run on this cluster") {
		t.Errorf("another app: %v", err)
	}
	ran := b.routes.Routes[0]
	b.useRoutes(benchRoutes + strings.TrimPrefix(fmt.Sprintf(claimRoutes, "reject"), "routes:\n") +
		strings.TrimPrefix(strings.NewReplacer("name: signals", "name: keyed\n    prepartitioned: true", "[signals.raw]", "[keyed.raw]").Replace(benchRoutes), "routes:\n"))
	inspector, err := front.NewInspector(t.Context(), cfg.Config, b.routes, slog.New(slog.DiscardHandler))
	must(t, err)
	defer func() { inspector.Close() }()
	if _, err := inspector.Stats(t.Context()); !kafka.IsOperatorError(err) || !strings.Contains(err.Error(), "app app has never run with these routes: ops, keyed") {
		t.Errorf("stats: %v", err)
	}
	for _, r := range b.routes.Routes {
		derived := rules.Derived{Route: r}
		if _, found, err := inspector.Lookup(t.Context(), &derived); found || kafka.IsOperatorError(err) != (r.Name != ran.Name) {
			t.Errorf("look-up of route %s: %v, %v", r.Name, found, err)
		}
		_, err := inspector.Forget(t.Context(), []front.Target{{Keys: []rules.Derived{derived}}}, front.ForgetOptions{})
		if kafka.IsOperatorError(err) != (r.Name != ran.Name) {
			t.Errorf("forget of route %s: %v", r.Name, err)
		}
	}
}
