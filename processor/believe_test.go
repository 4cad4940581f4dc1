package processor_test

import (
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"oncebus/processor"
	"oncebus/processor/app"
)

// A loss is what one partition has lost when its app starts again: one combination of
// local state, changelog, group offset and input.
type loss struct{ local, changelog, group, input string }

// losses are all combinations for which the topics are those of before. A recreated one
// is recreated for all partitions: TestRecreatedTopicsAreRefused.
func losses() (all []loss) {
	for _, local := range []string{"whole", "behind", "absent", "of another cluster"} {
		for _, changelog := range []string{"whole", "cut below the position", "cut above the position", "emptied"} {
			for _, group := range []string{"there", "gone", "ahead", "behind"} {
				for _, input := range []string{"whole", "cut"} {
					all = append(all, loss{local, changelog, group, input})
				}
			}
		}
	}
	return all
}

// problem is what a partition with this loss must be refused for; "" if it must go on.
// Local state that is whole is enough. Else the changelog must have what it lacks.
func (l loss) problem() app.Problem {
	switch {
	case l.local == "whole", l.changelog == "whole":
	case l.local == "behind" && l.changelog == "cut below the position":
	case l.local == "behind", l.changelog != "emptied":
		return app.ChangelogCut
	default:
		return app.StateLost
	}
	if l.input == "cut" {
		return app.InputDeleted
	}
	return ""
}

// TestWhatIsBelieved starts an app after every combination of losses, one a partition.
// Each partition goes on exactly, or is refused with the command that decides. After the
// decisions no event has been emitted twice and none is missing: each is in the output,
// or a dead letter, or one of the deleted records that the refusal counted.
func TestWhatIsBelieved(t *testing.T) {
	t.Parallel()
	all := losses()
	b := newBench(t, keyedRoutes)
	b.createTopic("signals.raw", int32(len(all)))
	cfg := b.config("one")
	cfg.SessionTimeout = 30 * time.Second // 128 stores open and close while other tests run
	first, second, third := eachPartition("a", all), eachPartition("b", all), eachPartition("c", all)
	states := filepath.Join(t.TempDir(), "behind")
	positions := b.livedAll(cfg, first)
	must(t, os.CopyFS(states, os.DirFS(cfg.StateDir)))
	b.livedAll(cfg, second)
	b.harm(cfg, all, states, positions)
	b.produce(third...)
	for p, l := range all {
		if l.input == "cut" {
			b.cutInput(int32(p), 2*perPartition+1) // the first record that was not read
		}
	}
	b.produce(slices.Concat(eachPartition("a", all), eachPartition("b", all))...)

	i := b.start(cfg)
	b.compareRefusals(i, all)
	b.decideAll(i)
	b.checkOutput(all)
}

// perPartition is how many events a partition gets in a life.
const perPartition = 4

func eachPartition(name string, all []loss) (records []*kgo.Record) {
	for p := range all {
		for n := range perPartition {
			records = append(records, signal(fmt.Sprintf("%s-%d-%d", name, p, n), int32(p), testTime+int64(n)))
		}
	}
	return records
}

// livedAll is lived, and returns the ends of the changelog.
func (b *bench) livedAll(cfg processor.Config, records []*kgo.Record) kadm.Offsets {
	b.t.Helper()
	b.lived(cfg, records...)
	return b.ends("app-signals.raw-changelog")
}

// harm makes the losses of local state, changelog and group.
func (b *bench) harm(cfg processor.Config, all []loss, behind string, positions kadm.Offsets) {
	b.t.Helper()
	const changelog = "app-signals.raw-changelog"
	ends, newest := b.ends(changelog), map[int32]int64{}
	for _, r := range b.read(changelog) {
		if string(r.Key) == "checkpoint" {
			newest[r.Partition] = r.Offset
		}
	}
	cut, moved := kadm.Offsets{}, kadm.Offsets{}
	group := app.GroupName("app", processor.StageDedup)
	gone := map[int32]bool{}
	for p, l := range all {
		partition := int32(p)
		dir := filepath.Join("app", fmt.Sprint("signals.raw-", p))
		switch l.local {
		case "behind":
			must(b.t, os.RemoveAll(filepath.Join(cfg.StateDir, dir)))
			must(b.t, os.CopyFS(filepath.Join(cfg.StateDir, dir), os.DirFS(filepath.Join(behind, dir))))
		case "absent":
			must(b.t, os.RemoveAll(filepath.Join(cfg.StateDir, dir)))
		case "of another cluster":
			must(b.t, os.RemoveAll(filepath.Join(cfg.StateDir, dir)))
			must(b.t, os.CopyFS(filepath.Join(cfg.StateDir, dir), os.DirFS(filepath.Join(behind, "app", "signals.raw-0"))))
		}
		at, _ := positions.Lookup(changelog, partition)
		switch l.changelog {
		case "cut below the position":
			cut.AddOffset(changelog, partition, at.At-1, -1)
		case "cut above the position": // of the state that is behind
			cut.AddOffset(changelog, partition, newest[partition], -1)
		case "emptied":
			end, _ := ends.Lookup(changelog, partition)
			cut.Add(end)
		}
		switch l.group {
		case "gone":
			gone[partition] = true
		case "ahead":
			moved.AddOffset("signals.raw", partition, 2*perPartition+3, -1)
		case "behind":
			moved.AddOffset("signals.raw", partition, 1, -1)
		}
	}
	b.deleteRecords(cut)
	b.wait("the group to be empty, so that its offsets can be moved", func() bool {
		resps, err := b.admin.CommitOffsets(b.t.Context(), group, moved)
		return err == nil && resps.Error() == nil
	})
	set := kadm.TopicsSet{}
	for p := range gone {
		set.Add("signals.raw", p)
	}
	deleted, err := b.admin.DeleteOffsets(b.t.Context(), group, set)
	must(b.t, err)
	must(b.t, deleted.Error())
}

func (b *bench) cutInput(partition int32, to int64) {
	b.t.Helper()
	offsets := kadm.Offsets{}
	offsets.AddOffset("signals.raw", partition, to, -1)
	b.deleteRecords(offsets)
}

// compareRefusals waits until each partition runs or is refused, and compares the refusals.
func (b *bench) compareRefusals(i *instance, all []loss) {
	b.t.Helper()
	want := map[string]app.Problem{}
	for p, l := range all {
		if problem := l.problem(); problem != "" {
			want[fmt.Sprint("signals.raw/", p)] = problem
		}
	}
	b.wait("each partition to run or to be refused", func() bool {
		select {
		case <-i.done:
			b.t.Fatalf("the process ended: %v", i.err)
		default:
		}
		tasks := i.State().Tasks
		refused := len(b.refusals())
		running := 0
		for _, task := range tasks {
			if task.State == "running" {
				running++
			}
		}
		return running+refused >= len(all)
	})
	for _, r := range b.refusals() {
		if r.Problem != want[r.Name()] {
			b.t.Errorf("%s with %+v is refused because of %q, want %q", r.Name(), all[r.Partition], r.Problem, want[r.Name()])
		}
		delete(want, r.Name())
	}
	for name := range want {
		b.t.Errorf("%s is not refused: %s", name, want[name])
	}
}

// decideAll decides on all refusals, with the best way of each, until every task has
// processed its input.
func (b *bench) decideAll(i *instance) {
	b.t.Helper()
	decided := map[string]bool{}
	ends := b.ends("signals.raw")
	b.wait("the decisions to be followed", func() bool {
		for _, r := range b.refusals() {
			if decided[r.Name()+r.Facts] {
				continue
			}
			decided[r.Name()+r.Facts] = true
			b.accept([]app.Refusal{r}, r.Ways[0], false)
		}
		if i.Ready() != nil {
			return false
		}
		for _, task := range i.State().Tasks {
			at := strings.TrimPrefix(task.Task, "signals.raw/")
			partition, err := strconv.Atoi(at)
			must(b.t, err)
			if end, _ := ends.Lookup("signals.raw", int32(partition)); task.NextOffset < end.At {
				return false
			}
		}
		return true
	})
}

// checkOutput compares the output with what was sent.
func (b *bench) checkOutput(all []loss) {
	b.t.Helper()
	idOf := func(r *kgo.Record) string { return strings.TrimPrefix(string(r.Key), "k-") }
	emitted, dead := map[string]int{}, map[string]int{}
	for _, r := range b.read("signals.unique") {
		emitted[idOf(r)]++
	}
	for _, r := range b.read("dead") {
		dead[idOf(r)]++
	}
	for p, l := range all {
		for _, name := range []string{"a", "b", "c"} {
			for n := range perPartition {
				id := fmt.Sprintf("%s-%d-%d", name, p, n)
				certain := l.problem() == "" || l.problem() == app.InputDeleted
				lost := name == "c" && n == 0 && l.input == "cut"
				// Nothing but the group's offset is known, as the refusal says.
				skipped := l.problem() == app.StateLost && l.group == "ahead"
				switch {
				case emitted[id] > 1:
					b.t.Errorf("%+v: %s was emitted %d times", l, id, emitted[id])
				case lost && emitted[id] > 0:
					b.t.Errorf("%+v: %s was emitted after it had been deleted", l, id)
				case certain && !lost && emitted[id] != 1:
					b.t.Errorf("%+v: %s is missing", l, id)
				case !certain && !lost && !(skipped && n < 3) && name == "c" && emitted[id]+dead[id] == 0:
					b.t.Errorf("%+v: %s is missing", l, id)
				case certain && dead[id] > 0:
					b.t.Errorf("%+v: %s is a dead letter", l, id)
				}
			}
		}
	}
}

// TestRecreatedTopicsAreRefused: the input or the changelog of tasks was deleted and
// recreated, with and without the group's offsets. The start names the command. After it,
// the new input is read from its start; without the changelog each task waits for one
// more decision, also if it has a whole local state, which is of the deleted topic.
func TestRecreatedTopicsAreRefused(t *testing.T) {
	t.Parallel()
	for _, topic := range []string{"signals.raw", "app-signals.raw-changelog"} {
		for _, group := range []string{"there", "gone"} {
			t.Run(topic+", group offsets "+group, func(t *testing.T) {
				t.Parallel()
				b := newBench(t, keyedRoutes)
				b.createTopic("signals.raw", 4)
				cfg := b.config("one")
				b.lived(cfg, batch("old", 40)...)
				if group == "gone" {
					b.deleteGroup(app.GroupName("app", processor.StageDedup))
				}
				b.recreate(topic)
				b.client = b.newClient() // the other one knows the deleted topic
				b.admin = kadm.NewClient(b.client)
				b.produce(batch("new", 60)...)
				i := b.start(cfg)
				<-i.done
				if want := "oncebus accept --recreated " + topic; i.err == nil || !strings.Contains(i.err.Error(), want) {
					t.Fatalf("the start ended with %v, want %q", i.err, want)
				}
				conn := app.Conn{Client: b.client, Admin: b.admin, Options: []kgo.Opt{kgo.SeedBrokers(b.cluster.ListenAddrs()...)}, Log: slog.New(slog.DiscardHandler)}
				must(t, app.AcceptRecreated(t.Context(), conn, cfg.Config, b.routes, topic))
				if err := app.AcceptRecreated(t.Context(), conn, cfg.Config, b.routes, topic); err == nil || !strings.Contains(err.Error(), "was not recreated") {
					t.Errorf("the same command again: %v", err)
				}
				i = b.start(cfg)
				out := [][]*kgo.Record{batch("old", 40), batch("new", 60)}
				if topic != "signals.raw" {
					b.accept(b.awaitRefusals(i, 4, app.StateLost), app.BelieveNothing, false)
					out = out[:1] // the new events are from before the decision
				}
				b.ready(i)
				b.wait("the events", func() bool { return len(b.read("signals.unique"))+len(b.read("dead")) >= 100 })
				assertOut(t, b, out...)
			})
		}
	}
}
