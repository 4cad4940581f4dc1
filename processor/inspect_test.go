package processor

import (
	"fmt"
	"log/slog"
	"maps"
	"testing"

	"github.com/twmb/franz-go/pkg/kgo"

	"oncebus/dedup"
)

// keyCounts is what the tasks remember, by their checkpoints.
func (b *bench) keyCounts(cfg Config) (all []KeyCount) {
	b.t.Helper()
	inspector, err := NewInspector(b.t.Context(), cfg, b.routes, slog.New(slog.DiscardHandler))
	must(b.t, err)
	tasks, err := inspector.Stats(b.t.Context())
	must(b.t, err)
	must(b.t, inspector.Close())
	for _, task := range tasks {
		all = append(all, task.Keys...)
	}
	return all
}

// waitingTold is how many requests wait.
func (b *bench) waitingTold(cfg Config) (n uint64) {
	b.t.Helper()
	for _, k := range b.keyCounts(cfg) {
		n += k.Waiting
	}
	return n
}

// TestKeysAreCounted: what /state, the metrics and the checkpoint say of the
// keys is what a scan of the rows finds; after a restart and a rebuild too.
func TestKeysAreCounted(t *testing.T) {
	b := newBench(t, fmt.Sprintf(claimRoutes, "reject"))
	cfg := b.config("one")
	i := b.ready(b.start(cfg))
	var records []*kgo.Record
	for n := range 40 {
		records = append(records, operation(fmt.Sprint(n), fmt.Sprint(n), int32(n%4)))
	}
	b.produce(records...)
	b.settle(i)
	outcomes := []string{"submitted", "completed", "failed", "forget"}
	for n, event := range b.read("ops.run") {
		if n%5 < len(outcomes) {
			b.produce(outcomeOf(event, outcomes[n%5], nil))
		}
	}
	b.produce(records[:7]...)
	b.settle(i)
	for n, restart := range []string{"running", "restarted", "rebuilt"} {
		if n > 0 {
			must(t, i.stop())
			if restart == "rebuilt" {
				cfg.StateDir = t.TempDir()
			}
			i = b.ready(b.start(cfg))
		}
		told, rows := map[string]uint64{}, map[string]uint64{}
		var judged, copies uint64
		for _, k := range b.keyCounts(cfg) {
			told[k.Status] += k.Live
			judged += k.Judged
			copies += k.Copies
		}
		for _, status := range b.newestRows() {
			if status != dedup.Freed {
				rows[status.String()]++
			}
		}
		if !maps.Equal(told, rows) {
			t.Errorf("%s: the counts say %v, the rows %v", restart, told, rows)
		}
		if judged != 47 || copies == 0 || copies > 7 {
			t.Errorf("%s: %d events and %d copies, want 47 and up to 7", restart, judged, copies)
		}
		metrics := gather(t, i)
		for status, n := range rows {
			b.wait("the counts to be published", func() bool {
				metrics = gather(t, i)
				return metrics[fmt.Sprintf("oncebus_keys{namespace=%q,status=%q}", "ops", status)] == float64(n)
			})
		}
	}
}

// newestRows reads the changelog of the repartition topic.
func (b *bench) newestRows() map[string]dedup.Status {
	b.t.Helper()
	rows := map[string]dedup.Status{}
	for _, r := range b.read("app-repartition-changelog") {
		if string(r.Key) == checkpointKey {
			continue
		}
		row, err := dedup.DecodeValue(dedup.Digest(r.Key), r.Value)
		must(b.t, err)
		rows[string(r.Key)] = row.Status
	}
	return rows
}

// TestInspectorFindsAndForgets: from the topics alone.
func TestInspectorFindsAndForgets(t *testing.T) {
	b := newBench(t, fmt.Sprintf(claimRoutes, "reject"))
	cfg := b.config("one")
	i := b.ready(b.start(cfg))
	event := operation("1", "first", 2)
	b.produce(event)
	b.settle(i)
	b.produce(outcomeOf(b.read("ops.run")[0], "completed", []byte("done")))
	b.settle(i)
	derived := b.routes.NewDeriver(nil).Derive(&dedup.Input{Topic: "ops.raw", Value: event.Value})
	inspector, err := NewInspector(t.Context(), cfg, b.routes, slog.New(slog.DiscardHandler))
	must(t, err)
	defer func() { must(t, inspector.Close()) }()
	entry, found, err := inspector.Lookup(t.Context(), &derived)
	must(t, err)
	if !found || entry.Row.Status != dedup.Completed || entry.First != "ops.raw/2/0" || string(entry.Claim.Result) != "done" || !entry.Held(derived.Route) {
		t.Errorf("found %v: %+v", found, entry)
	}
	_, err = inspector.Forget(t.Context(), &derived)
	must(t, err)
	b.settle(i)
	if entry, _, err = inspector.Lookup(t.Context(), &derived); err != nil || entry.Row.Status != dedup.Freed {
		t.Errorf("after forget: %+v, %v", entry.Row, err)
	}
	b.produce(operation("1", "again", 3))
	b.settle(i)
	if n := len(b.read("ops.run")); n != 2 {
		t.Errorf("%d events went to the executor, want 2", n)
	}
	other := b.routes.NewDeriver(nil).Derive(&dedup.Input{Topic: "ops.raw", Value: operation("2", "x", 0).Value})
	if _, found, err := inspector.Lookup(t.Context(), &other); found || err != nil {
		t.Errorf("found a key that was never sent: %v", err)
	}
}
