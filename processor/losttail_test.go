package processor_test

import (
	"maps"
	"os"
	"strings"
	"testing"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"oncebus/processor"
	"oncebus/processor/app"
	"oncebus/processor/wire"
)

// TestChangelogThatLostItsNewestRowsIsRefused covers an unclean leader election that took the rows of the newest
// transactions from the changelog, while the group still has their offset, which names the transaction. The local
// state is lost as well, or older. Without these rows, the task would process and emit the input a second time. After
// the operator's decision the task goes on at the group's offset: what the lost transactions emitted is not emitted
// again.
func TestChangelogThatLostItsNewestRowsIsRefused(t *testing.T) {
	t.Parallel()
	for name, local := range map[string]bool{"with older local state": true, "without local state": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newBench(t, keyedRoutes)
			b.createTopic("signals.raw", 1)
			cfg := b.config("one")
			one := func(name string, n int) []*kgo.Record {
				records := batch(name, n)
				for _, r := range records {
					r.Partition = 0
				}
				return records
			}
			b.lived(cfg, one("old", 40)...)
			if !local {
				must(t, os.RemoveAll(cfg.StateDir))
			}
			c := b.newestCheckpoint("app-signals.raw-changelog")
			b.produce(one("emitted", 30)...) // by the transactions that the broker lost
			b.commitOffset("signals.raw", c.Next+30, app.OffsetMetadata("one", app.Commit{Sequence: c.Sequence + 2}, c.Next+30))

			i := b.start(cfg)
			b.wait("the refusal", func() bool {
				if tasks := i.State().Tasks; len(tasks) == 1 && tasks[0].State == "running" {
					t.Fatal("the task goes on at its checkpoint, and emits what the lost transactions emitted")
				}
				return len(b.refusals()) > 0
			})
			refusals := b.awaitRefusals(i, 1, app.ChangelogShortened)
			if want := "at most 30, are lost"; !strings.Contains(refusals[0].Detail, want) {
				t.Errorf("the refusal says %q, want %q", refusals[0].Detail, want)
			}
			b.accept(refusals, app.BelieveChangelog, true)
			b.ready(i)
			b.produce(one("new", 20)...)
			b.drain(i, "signals.raw")
			must(t, i.stop())
			must(t, os.RemoveAll(cfg.StateDir)) // the changelog alone has the decision
			i = b.ready(b.start(cfg))
			b.produce(one("old", 40)...)
			b.drain(i, "signals.raw")
			counts := map[string]int{}
			for _, r := range b.read("signals.unique") {
				kind, _, _ := strings.Cut(strings.TrimPrefix(string(r.Key), "k-"), "-")
				counts[kind]++
			}
			if want := map[string]int{"old": 40, "new": 20}; !maps.Equal(counts, want) {
				t.Errorf("%v were emitted, want %v", counts, want)
			}
		})
	}
}

// newestCheckpoint returns the newest checkpoint in a changelog that has one partition.
func (b *bench) newestCheckpoint(changelog string) (newest wire.Checkpoint) {
	b.t.Helper()
	if fold := b.folds(changelog)[0]; fold != nil {
		newest = fold.Newest()
	}
	return newest
}

// folds returns the newest checkpoint of each partition of a changelog.
func (b *bench) folds(changelog string) map[int32]*wire.Fold {
	b.t.Helper()
	all := map[int32]*wire.Fold{}
	for _, r := range b.read(changelog) {
		if number, ok := wire.CheckpointNumber(r.Key); ok {
			if all[r.Partition] == nil {
				all[r.Partition] = &wire.Fold{}
			}
			must(b.t, all[r.Partition].Add(number, r.Value))
		}
	}
	for partition, fold := range all {
		if !fold.IsWhole() {
			b.t.Fatalf("%s/%d: a partial checkpoint is relative to a missing one", changelog, partition)
		}
	}
	return all
}

// commitOffset commits an offset of partition 0 for the dedup group, once the group has no member.
func (b *bench) commitOffset(topic string, at int64, metadata string) {
	b.t.Helper()
	offsets := kadm.Offsets{}
	offsets.Add(kadm.Offset{Topic: topic, At: at, LeaderEpoch: -1, Metadata: metadata})
	b.wait("the group to be empty", func() bool {
		resps, err := b.admin.CommitOffsets(b.t.Context(), app.GroupName("app", processor.StageDedup), offsets)
		return err == nil && resps.Error() == nil
	})
}
