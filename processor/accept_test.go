package processor_test

import (
	"errors"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"oncebus/processor"
	"oncebus/processor/app"
	"oncebus/processor/wire"
	"oncebus/state"
)

// refusals returns the partitions for which the app waits for an operator's decision, as 'oncebus accept' reads them.
func (b *bench) refusals() []app.Refusal {
	b.t.Helper()
	decisions, err := app.ReadDecisions(b.t.Context(), b.client, b.topology(), nil)
	must(b.t, err)
	return decisions.Sorted()
}

// topology returns what the tests need to read and write the manifest topic.
func (b *bench) topology() *app.Topology {
	b.t.Helper()
	meta, err := b.admin.Metadata(b.t.Context(), "app-manifest")
	must(b.t, err)
	return &app.Topology{App: "app", Manifest: "app-manifest", Topics: map[string]app.Topic{"app-manifest": {ID: meta.Topics["app-manifest"].ID}}}
}

// awaitRefusals waits until count partitions are refused, each with this problem.
func (b *bench) awaitRefusals(i *instance, count int, problem app.Problem) []app.Refusal {
	b.t.Helper()
	b.wait("the refusals", func() bool {
		select {
		case <-i.done:
			b.t.Fatalf("the process ended: %v", i.err)
		default:
		}
		ready := i.Ready()
		return len(b.refusals()) == count && ready != nil && strings.Contains(ready.Error(), "oncebus accept --")
	})
	all := b.refusals()
	for _, r := range all {
		if r.Problem != problem {
			b.t.Errorf("%s is refused because of %s, want %s", r.Name(), r.Problem, problem)
		}
	}
	return all
}

// accept records an operator's decision on refusals, as 'oncebus accept' does.
func (b *bench) accept(refusals []app.Refusal, way app.Way, unique bool) {
	b.t.Helper()
	for _, r := range refusals {
		if !slices.Contains(r.Ways, way) {
			b.t.Fatalf("%s has the ways %v, not %s", r.Name(), r.Ways, way)
		}
		must(b.t, app.WriteAcceptance(b.t.Context(), b.client, b.topology(), &r, app.Acceptance{Way: way, Unique: unique}))
	}
}

// deleteRecords deletes the records of a topic below the given offsets. Partitions without an offset keep all
// records.
func (b *bench) deleteRecords(offsets kadm.Offsets) {
	b.t.Helper()
	resps, err := b.admin.DeleteRecords(b.t.Context(), offsets)
	must(b.t, errors.Join(err, resps.Error()))
}

// TestStopLongerThanTheRetentionOfTheChangelog deletes everything in the changelog while the app is stopped. The
// local state is complete, so the app goes on with it, emits nothing twice, and writes the rows to the changelog
// again: the next life then needs no local state. The group's offsets may have expired during the stop, too.
func TestStopLongerThanTheRetentionOfTheChangelog(t *testing.T) {
	t.Parallel()
	for name, offsets := range map[string]bool{"with the group's offsets": true, "without the group's offsets": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newBench(t, benchRoutes)
			cfg := b.config("one")
			records, sent := traffic(50)
			b.lived(cfg, records...)
			b.deleteRecords(b.ends("app-repartition-changelog"))
			if !offsets {
				b.deleteGroup(app.GroupName("app", processor.StageDedup))
			}
			for range 2 {
				i := b.ready(b.start(cfg))
				again, _ := traffic(50)
				b.produce(again...)
				b.drain(i, "signals.raw")
				b.wait("the rows to be written again", func() bool { return b.wholeChangelogs() == 4 })
				assertOnce(t, b.read("signals.unique"), sent)
				must(t, i.stop())
				must(t, os.RemoveAll(cfg.StateDir)) // so that the second life reads the rows of the changelog
			}
		})
	}
}

// wholeChangelogs counts the partitions whose newest checkpoint says that the changelog lacks no row.
func (b *bench) wholeChangelogs() (n int) {
	b.t.Helper()
	for _, fold := range b.folds("app-repartition-changelog") {
		if !fold.Newest().Incomplete {
			n++
		}
	}
	return n
}

func (b *bench) deleteGroup(group string) {
	b.t.Helper()
	b.wait("the group to be empty", func() bool {
		_, err := b.admin.DeleteGroup(b.t.Context(), group)
		return err == nil
	})
}

// TestEmptiedChangelogWithoutLocalStateIsRefused deletes all records of the changelog and the local state with them.
// A process that went on from the group's offset would emit every duplicate as unique. The process therefore refuses
// the partitions, with and without the group's offsets, until an operator decides. By default, events from before the
// decision are then late.
func TestEmptiedChangelogWithoutLocalStateIsRefused(t *testing.T) {
	t.Parallel()
	for name, offsets := range map[string]bool{"with the group's offsets": true, "without the group's offsets": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newBench(t, benchRoutes)
			cfg := b.config("one")
			records, sent := traffic(50)
			b.lived(cfg, records...)
			must(t, os.RemoveAll(cfg.StateDir))
			b.deleteRecords(b.ends("app-repartition-changelog"))
			if !offsets {
				b.deleteGroup(app.GroupName("app", processor.StageDedup))
			}
			i := b.start(cfg)
			refusals := b.awaitRefusals(i, 4, app.StateLost)
			if want := "oncebus accept --task app-repartition/0 --believe nothing"; refusals[0].Command() != want {
				t.Errorf("the command is %q, want %q", refusals[0].Command(), want)
			}
			again, _ := traffic(50)
			b.produce(again...)
			assertOnce(t, b.read("signals.unique"), sent)

			b.accept(refusals, app.BelieveNothing, false)
			b.ready(i)
			b.drain(i, "signals.raw")
			assertOnce(t, b.read("signals.unique"), sent)
			b.wait("the removal of the refusals", func() bool { return len(b.refusals()) == 0 })
			late := len(again)
			if !offsets {
				late += len(records) // the task begins at the start of its input
			}
			if dead := b.read("dead"); len(dead) != late {
				t.Errorf("%d dead letters, want %d: duplicates of unknown events are late", len(dead), late)
			}
		})
	}
}

// TestDecisionKeepsTheRouteSet protects that a task which begins without rows belongs to the route set of its process
// even before its first transaction. Otherwise a process with an older route set could judge events of this task.
func TestDecisionKeepsTheRouteSet(t *testing.T) {
	t.Parallel()
	b := newBench(t, benchRoutes)
	cfg := b.config("one")
	i := b.living(cfg, batch("s", 100)...) // every partition has some of these events
	b.apply(strings.ReplaceAll(benchRoutes, "window: 1h", "window: 2h"))
	b.taken(2, i)
	must(t, i.stop())
	must(t, os.RemoveAll(cfg.StateDir))
	b.deleteRecords(b.ends("app-repartition-changelog"))
	i = b.start(cfg)
	b.accept(b.awaitRefusals(i, 4, app.StateLost), app.BelieveNothing, false)
	b.ready(i)
	must(t, i.stop())
	b.eachStore(i, func(p int32, _ *state.Store, stored *wire.Fold) {
		if got := stored.Newest(); got.Set != 2 {
			t.Errorf("partition %d: the stored checkpoint is of set %d, want 2", p, got.Set)
		}
	})
}

// TestCutChangelogIsRefused deletes rows of the changelog below its newest checkpoint, so a restore would succeed
// with rows missing. If no local state has these rows, the process refuses the partition and an operator decides.
func TestCutChangelogIsRefused(t *testing.T) {
	t.Parallel()
	b := newBench(t, benchRoutes)
	cfg := b.config("one")
	records, sent := traffic(50)
	b.lived(cfg, records...)
	must(t, os.RemoveAll(cfg.StateDir))
	b.cutChangelog()
	i := b.start(cfg)
	refusals := b.awaitRefusals(i, 4, app.ChangelogCut)
	b.accept(refusals, app.BelieveChangelog, false)
	b.ready(i)
	again, _ := traffic(50)
	b.produce(again...)
	b.drain(i, "signals.raw")
	assertOnce(t, b.read("signals.unique"), sent)
	must(t, i.stop())
	// The decision still holds after the local state is lost once more.
	must(t, os.RemoveAll(cfg.StateDir))
	i = b.ready(b.start(cfg))
	b.produce(again...)
	b.drain(i, "signals.raw")
	assertOnce(t, b.read("signals.unique"), sent)
}

// cutChangelog deletes all records of the changelog except the newest checkpoints.
func (b *bench) cutChangelog() {
	b.t.Helper()
	newest := kadm.Offsets{}
	for _, r := range b.read("app-repartition-changelog") {
		if string(r.Key) == "checkpoint" {
			newest.AddOffset(r.Topic, r.Partition, r.Offset, -1)
		}
	}
	b.deleteRecords(newest)
}

// TestDeletedInputIsRefused deletes input records before a task has read them. The process says which records are
// missing, and after the operator's decision the task goes on at the first record that is left. No event above the
// gap is skipped, and tasks without a gap keep running.
func TestDeletedInputIsRefused(t *testing.T) {
	t.Parallel()
	b := newBench(t, keyedRoutes)
	b.createTopic("signals.raw", 4)
	cfg := b.config("one")
	early, lost, kept := batch("early", 40), batch("lost", 40), batch("kept", 40)
	b.lived(cfg, early...)
	b.produce(lost...)
	cut := kadm.Offsets{}
	end, _ := b.ends("signals.raw").Lookup("signals.raw", 1)
	cut.Add(end)
	b.deleteRecords(cut)
	b.produce(kept...)
	i := b.start(cfg)
	refusals := b.awaitRefusals(i, 1, app.InputDeleted)
	if want := "its records at offsets 10 to 19, at most 10, were deleted before they were read"; !strings.Contains(refusals[0].Detail, want) {
		t.Errorf("the detail is %q, want %q", refusals[0].Detail, want)
	}
	if want := "oncebus accept --task signals.raw/1 --input-lost"; refusals[0].Command() != want {
		t.Errorf("the command is %q, want %q", refusals[0].Command(), want)
	}
	left := slices.DeleteFunc(slices.Clone(lost), func(r *kgo.Record) bool { return r.Partition == 1 })
	b.wait("the events of the other partitions", func() bool { return len(b.read("signals.unique")) == len(early)+len(left)+30 })
	b.accept(refusals, app.InputLost, false)
	b.ready(i)
	b.wait("all of the output", func() bool { return len(b.read("signals.unique")) >= len(early)+len(left)+len(kept) })
	assertOut(t, b, early, left, kept)
}

// TestInputDeletedWhileItIsRead lets the broker delete records that a running task has not read, while the task waits
// for its next fetch. Only that task stops.
func TestInputDeletedWhileItIsRead(t *testing.T) {
	t.Parallel()
	b := newBench(t, keyedRoutes)
	b.createTopic("signals.raw", 4)
	cfg := b.config("one")
	early, lost, kept := batch("early", 40), batch("lost", 40), batch("kept", 40)
	i := b.ready(b.start(cfg))
	b.produce(early...)
	b.drain(i, "signals.raw")
	frozen := b.cluster.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.Fetch}, Topic: "signals.raw", Err: kerr.NotLeaderForPartition, Count: -1})
	b.produce(lost...)
	b.deleteRecords(b.ends("signals.raw"))
	b.produce(kept...)
	frozen.Remove()
	b.wait("the refusals, or events from behind the gap", func() bool {
		return len(b.refusals()) == 4 || len(b.read("signals.unique")) > len(early)
	})
	if len(b.read("signals.unique")) > len(early) {
		t.Fatal("it went on behind records that it had not read")
	}
	refusals := b.awaitRefusals(i, 4, app.InputDeleted)
	b.accept(refusals, app.InputLost, false)
	b.wait("all of the output", func() bool { return len(b.read("signals.unique")) >= len(early)+len(kept) })
	assertOut(t, b, early, kept)
}

const withoutKeyRoutes = `routes:
  - name: signals
    topics: [signals.raw]
    key:
      - field: id
    on_missing_key: forward
    window: 1h
    grace: 10m
    output: signals.unique
    dead_letter: dead
`

// TestLostOffsetsOfTheRouterAfterACleanStop removes the offsets of the routing group after a clean stop. The marks of
// the stop say where the router goes on, so events without a key are emitted once.
func TestLostOffsetsOfTheRouterAfterACleanStop(t *testing.T) {
	t.Parallel()
	b := newBench(t, withoutKeyRoutes)
	cfg := b.config("one")
	b.lived(cfg, withoutKey(40)...)
	b.deleteGroup(app.GroupName("app", processor.StageRoute))
	b.lived(cfg, withoutKey(40)...)
	b.deleteGroup(app.GroupName("app", processor.StageRoute))
	b.lived(cfg, withoutKey(8)...)
	if n := len(b.read("signals.unique")); n != 88 {
		t.Errorf("%d events are in the output, want 88", n)
	}
}

// withoutKey makes n events without a key, spread over all partitions.
func withoutKey(n int) []*kgo.Record {
	var records []*kgo.Record
	for at := range n {
		r := signal("no-key", int32(at%4), testTime)
		r.Value = []byte(`{"price":"1.0"}`)
		records = append(records, r)
	}
	return records
}

// TestOffsetsOfTheRouterAfterAKill covers lost offsets of the routing group without the mark of a clean stop, and
// offsets that are lower than a mark. In both cases only an operator knows where the router has to go on.
func TestOffsetsOfTheRouterAfterAKill(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		reset   bool
		problem app.Problem
		way     app.Way
		want    int
	}{
		"gone, from the mark":      {false, app.OffsetsLost, app.FromMark, 48},
		"gone, from the start":     {false, app.OffsetsLost, app.FromStart, 88},
		"set back, from the mark":  {true, app.OffsetsReset, app.FromMark, 48},
		"set back, from the group": {true, app.OffsetsReset, app.FromGroup, 88},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newBench(t, withoutKeyRoutes)
			cfg := b.config("one")
			b.lived(cfg, withoutKey(40)...)
			for p := range int32(4) { // marks as a kill after the last transaction leaves them
				b.writeMark("signals.raw", p, 10, false)
			}
			if c.reset {
				b.resetGroup(app.GroupName("app", processor.StageRoute), "signals.raw")
			} else {
				b.deleteGroup(app.GroupName("app", processor.StageRoute))
			}
			i := b.start(cfg)
			b.awaitRefusals(i, 4, c.problem)
			must(t, i.stop()) // a stop decides nothing
			i = b.start(cfg)
			b.accept(b.awaitRefusals(i, 4, c.problem), c.way, false)
			b.ready(i)
			must(t, i.stop()) // without new events
			b.produce(withoutKey(8)...)
			i = b.ready(b.start(cfg))
			b.drain(i, "signals.raw")
			if n := len(b.read("signals.unique")); n != c.want {
				t.Errorf("%d events are in the output, want %d", n, c.want)
			}
			must(t, i.stop())
			b.lived(cfg, withoutKey(4)...)
			if n := len(b.read("signals.unique")); n != c.want+4 {
				t.Errorf("%d events are in the output after the next life, want %d", n, c.want+4)
			}
		})
	}
}

func (b *bench) writeMark(topic string, partition int32, offset int64, clean bool) {
	b.t.Helper()
	meta, err := b.admin.Metadata(b.t.Context(), topic)
	must(b.t, err)
	id := meta.Topics[topic].ID
	mark := app.Mark{TopicID: app.TopicIDText(id), Offset: offset, Clean: clean}
	b.produce(mark.Record(b.topology(), app.TaskID{Topic: topic, Partition: partition}))
}

// resetGroup sets a group's offsets to 0.
func (b *bench) resetGroup(group, topic string) {
	b.t.Helper()
	b.wait("the group to be empty", func() bool {
		zero := kadm.Offsets{}
		for p := range int32(4) {
			zero.AddOffset(topic, p, 0, -1)
		}
		resps, err := b.admin.CommitOffsets(b.t.Context(), group, zero)
		return err == nil && resps.Error() == nil
	})
}

// TestRecreatedRoutedTopicIsRefused recreates a routed topic. The group's offsets belong to the records of the
// deleted topic: a router that went on from them would skip records of the new topic, also with ONCEBUS_START=latest.
func TestRecreatedRoutedTopicIsRefused(t *testing.T) {
	t.Parallel()
	for _, start := range []string{app.StartEarliest, app.StartLatest} {
		t.Run(start, func(t *testing.T) {
			t.Parallel()
			b := newBench(t, benchRoutes)
			cfg := b.config("one")
			cfg.Start = start
			b.lived(cfg, batch("old", 40)...)
			_, err := b.admin.DeleteTopics(t.Context(), "signals.raw")
			must(t, err)
			b.createTopic("signals.raw", 4)
			b.client = b.newClient() // the former client knows the deleted topic
			b.produce(batch("new", 60)...)
			i := b.start(cfg)
			b.accept(b.awaitRefusals(i, 4, app.TopicRecreated), app.FromStart, false)
			b.ready(i)
			b.wait("the output", func() bool { return len(b.read("signals.unique")) >= 100 })
			assertOut(t, b, batch("old", 40), batch("new", 60))
		})
	}
}

// TestDeletedRawRecordsAreRefused deletes records of a routed topic before the router has read them, either between
// two lives or while the app waits for its next fetch.
func TestDeletedRawRecordsAreRefused(t *testing.T) {
	t.Parallel()
	b := newBench(t, benchRoutes)
	cfg := b.config("one")
	b.lived(cfg, batch("early", 40)...)
	b.produce(batch("lost", 40)...)
	b.deleteRecords(b.ends("signals.raw"))
	b.produce(batch("kept", 40)...)
	i := b.start(cfg)
	b.accept(b.awaitRefusals(i, 4, app.InputDeleted), app.FromStart, false)
	b.ready(i)
	b.wait("the output", func() bool { return len(b.read("signals.unique")) >= 80 })
	assertOut(t, b, batch("early", 40), batch("kept", 40))
	frozen := b.cluster.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.Fetch}, Topic: "signals.raw", Err: kerr.NotLeaderForPartition, Count: -1})
	b.produce(batch("lost too", 40)...)
	b.deleteRecords(b.ends("signals.raw"))
	b.produce(batch("kept too", 40)...)
	frozen.Remove()
	b.accept(b.awaitRefusals(i, 4, app.InputDeleted), app.FromStart, false)
	b.ready(i)
	b.wait("the output", func() bool { return len(b.read("signals.unique")) >= 120 })
	assertOut(t, b, batch("early", 40), batch("kept", 40), batch("kept too", 40))
}

// TestReplacedRawRecordsAreRefused lets the end of a leader epoch show, after a clean stop, that a broker lost
// records which were routed and now has others at their offsets.
func TestReplacedRawRecordsAreRefused(t *testing.T) {
	t.Parallel()
	b := newBench(t, benchRoutes)
	cfg := b.config("one")
	b.lived(cfg, batch("early", 40)...)
	b.lived(cfg) // its offsets come from the group, its marks are written
	b.produce(batch("other", 40)...)
	b.cluster.ControlKey(int16(kmsg.OffsetForLeaderEpoch), func(req kmsg.Request) (kmsg.Response, error, bool) {
		b.cluster.KeepControl()
		asked := req.(*kmsg.OffsetForLeaderEpochRequest)
		resp := asked.ResponseKind().(*kmsg.OffsetForLeaderEpochResponse)
		for _, topic := range asked.Topics {
			answered := kmsg.NewOffsetForLeaderEpochResponseTopic()
			answered.Topic = topic.Topic
			for _, p := range topic.Partitions {
				end := kmsg.NewOffsetForLeaderEpochResponseTopicPartition()
				end.Partition, end.LeaderEpoch, end.EndOffset = p.Partition, p.LeaderEpoch, 20
				if topic.Topic == "signals.raw" && p.Partition == 1 {
					end.LeaderEpoch, end.EndOffset = p.LeaderEpoch-1, 6 // the new leader lacks the whole epoch
				}
				answered.Partitions = append(answered.Partitions, end)
			}
			resp.Topics = append(resp.Topics, answered)
		}
		return resp, nil, true
	})
	i := b.start(cfg)
	refusals := b.awaitRefusals(i, 1, app.InputShortened)
	if want := "offsets 6 to 9, which were routed"; refusals[0].Partition != 1 || !strings.Contains(refusals[0].Detail, want) {
		t.Errorf("refused is %+v, want partition 1 with %q", refusals[0], want)
	}
	b.wait("the events of the other partitions", func() bool { return len(b.read("signals.unique")) == 40+30 })
	must(t, i.stop())
}

// TestOneRefusedRawPartition protects that one partition of a routed topic that waits for a decision holds up no
// other: the others are routed, and the group offset of the refused partition stays where it is.
func TestOneRefusedRawPartition(t *testing.T) {
	t.Parallel()
	b := newBench(t, benchRoutes)
	cfg := b.config("one")
	b.lived(cfg, batch("early", 40)...)
	b.produce(batch("lost", 40)...)
	end, _ := b.ends("signals.raw").Lookup("signals.raw", 1)
	cut := kadm.Offsets{}
	cut.Add(end)
	b.deleteRecords(cut)
	b.produce(batch("kept", 40)...)
	i := b.start(cfg)
	refusals := b.awaitRefusals(i, 1, app.InputDeleted)
	b.wait("the events of the other partitions", func() bool { return len(b.read("signals.unique")) == 40+30+30 })
	must(t, i.stop())
	committed, err := b.admin.FetchOffsets(t.Context(), app.GroupName("app", processor.StageRoute))
	must(t, err)
	if at, _ := committed.Lookup("signals.raw", 1); at.At != 10 {
		t.Errorf("the group's offset of the refused partition is %d, want 10", at.At)
	}
	b.accept(refusals, app.FromStart, false)
	b.ready(b.start(cfg))
	b.wait("the rest of the output", func() bool { return len(b.read("signals.unique")) >= 110 })
	left := slices.DeleteFunc(batch("lost", 40), func(r *kgo.Record) bool { return r.Partition == 1 })
	assertOut(t, b, batch("early", 40), left, batch("kept", 40))
}
