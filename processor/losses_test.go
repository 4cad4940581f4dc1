package processor_test

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"oncebus/processor"
	"oncebus/processor/app"
	"oncebus/processor/wire"
)

// losses is an app in which each partition has lost what one of the combinations says.
type losses struct {
	*bench
	kind *inputKind
	all  []combination
	cfg  processor.Config

	ids       map[string][][]string                // by name and partition
	sent      []*kgo.Record                        // to the input that exists, by offset
	positions kadm.Offsets                         // of the stores that are behind
	behind    string                               // a state directory with these stores
	seen      map[app.TaskID]map[int64]*kgo.Record // by offset, of all topics that the app writes
	decided   map[string][]decision                // by topic/partition
}

// decision says how an operator decided on a refusal.
type decision struct {
	refusal app.Refusal
	way     app.Way
}

func newLosses(t *testing.T, k *inputKind, all []combination) *losses {
	t.Helper()
	b := newBench(t, k.routes)
	b.createTopic("signals.raw", int32(len(all)))
	cfg := b.config("one")
	cfg.Partitions = int32(len(all))
	// The timeouts are long: many stores open and close while other tests run, and the stop must write its marks.
	cfg.SessionTimeout, cfg.TransactionTimeout = 30*time.Second, 30*time.Second
	cfg.LeaveOnStop, cfg.StopTimeout = true, 2*time.Minute
	return &losses{bench: b, kind: k, all: all, cfg: cfg, ids: map[string][][]string{}, behind: filepath.Join(t.TempDir(), "behind"),
		seen: map[app.TaskID]map[int64]*kgo.Record{}, decided: map[string][]decision{}}
}

// live gives the app two lives, each with perPartition events for each task.
func (l *losses) live() {
	l.t.Helper()
	i := l.ready(l.start(l.cfg))
	l.choose(i)
	l.send("a")
	l.drain(i, "signals.raw")
	must(l.t, i.stop())
	l.observe()
	must(l.t, os.CopyFS(l.behind, os.DirFS(l.cfg.StateDir)))
	l.positions = l.ends(l.kind.changelog)
	i = l.ready(l.start(l.cfg))
	for half := range 2 { // the second one makes a partial checkpoint
		l.sendHalf("b", half)
		l.drain(i, "signals.raw")
	}
	must(l.t, i.stop())
	l.observe()
}

// choose chooses the ids of all events: perPartition ids of each name for each partition. The keys of routed events
// belong to that partition.
func (l *losses) choose(i *instance) {
	l.t.Helper()
	deriver := l.routes.NewDeriver(nil)
	free := make([][]string, len(l.all))
	for n, missing := 0, len(l.all); missing > 0; n++ {
		id := fmt.Sprint("id-", n)
		p := n % len(l.all)
		if l.kind.routed {
			in := wire.InputOf(signal(id, 0, testTime))
			derived := deriver.Derive(&in)
			p = int(i.App().Hasher.Partition(&derived.Routing))
		}
		if free[p] = append(free[p], id); len(free[p]) == perPartition*len(eventNames) {
			missing--
		}
	}
	for at, name := range eventNames {
		for p := range free {
			l.ids[name] = append(l.ids[name], free[p][at*perPartition:(at+1)*perPartition])
		}
	}
}

// eventNames are the names of the events: a and b of the two lives, c of the events that no task has read when the
// partition loses something, d of the events that follow.
var eventNames = []string{"a", "b", "c", "d"}

// events returns the events with a name, of all partitions.
func (l *losses) events(name string) (records []*kgo.Record) {
	for p, ids := range l.ids[name] {
		for n, id := range ids {
			records = append(records, signal(id, int32(p), testTime+int64(n)))
		}
	}
	return records
}

// send produces the events with a name.
func (l *losses) send(name string) {
	l.t.Helper()
	records := l.events(name)
	l.produce(records...)
	l.sent = append(l.sent, records...)
}

// sendHalf produces one half of the events with a name, of all partitions.
func (l *losses) sendHalf(name string, half int) {
	l.t.Helper()
	var records []*kgo.Record
	for n, r := range l.events(name) {
		if n%perPartition/(perPartition/2) == half {
			records = append(records, r)
		}
	}
	l.produce(records...)
	l.sent = append(l.sent, records...)
}

// observe stores what the topics of the app hold now, because the losses delete some of it later.
func (l *losses) observe() {
	l.t.Helper()
	for _, topic := range []string{"app-repartition", l.kind.changelog, "signals.unique", "dead"} {
		if topic == "app-repartition" && !l.kind.routed {
			continue
		}
		for _, r := range l.bench.read(topic) {
			id := app.TaskID{Topic: topic, Partition: r.Partition}
			if l.seen[id] == nil {
				l.seen[id] = map[int64]*kgo.Record{}
			}
			l.seen[id][r.Offset] = r
		}
	}
}

// lose makes the losses, and then sends new events and duplicates.
func (l *losses) lose() {
	l.t.Helper()
	l.send("c")
	l.loseState()
	l.loseChangelogs()
	l.loseOffsets(app.GroupName("app", processor.StageDedup), l.kind.task)
	if l.kind.routed {
		l.loseOffsets(app.GroupName("app", processor.StageRoute), "signals.raw")
	}
	l.loseInput()
	l.client = l.newClient() // the former client knows deleted topics
	l.admin = kadm.NewClient(l.client)
	for _, name := range []string{"d", "a", "b"} {
		l.send(name)
	}
}

// loseState brings the local state of each partition into the condition that its combination says.
func (l *losses) loseState() {
	l.t.Helper()
	dirOf := func(p int) string { return filepath.Join("app", fmt.Sprintf("%s-%d", l.kind.task, p)) }
	for p, c := range l.all {
		from := dirOf(p)
		switch c.local {
		case "whole":
			continue
		case "of another cluster":
			from = dirOf((p + 1) % len(l.all)) // the store of another partition has another identity
		}
		dir := filepath.Join(l.cfg.StateDir, dirOf(p))
		must(l.t, os.RemoveAll(dir))
		if c.local != "absent" {
			must(l.t, os.CopyFS(dir, os.DirFS(filepath.Join(l.behind, from))))
		}
	}
}

// loseChangelogs recreates the changelog, or deletes the records that its combinations say.
func (l *losses) loseChangelogs() {
	l.t.Helper()
	if l.all[0].changelog == "recreated" {
		l.recreate(l.kind.changelog)
		return
	}
	ends, cut := l.ends(l.kind.changelog), kadm.Offsets{}
	for p, c := range l.all {
		partition := int32(p)
		switch c.changelog {
		case "cut below the position": // the position of the state that is behind
			at, _ := l.positions.Lookup(l.kind.changelog, partition)
			cut.AddOffset(l.kind.changelog, partition, at.At-1, -1)
		case "cut above the position":
			cut.AddOffset(l.kind.changelog, partition, l.newestWhole(partition), -1)
		case cutAboveWhole:
			cut.AddOffset(l.kind.changelog, partition, l.newestWhole(partition)+1, -1)
		case "emptied":
			end, _ := ends.Lookup(l.kind.changelog, partition)
			cut.Add(end)
		}
	}
	l.deleteRecords(cut)
}

// newestWhole returns the offset of the newest whole checkpoint of a changelog, and checks that partial checkpoints
// follow it.
func (l *losses) newestWhole(partition int32) int64 {
	l.t.Helper()
	whole, partial := int64(-1), int64(-1)
	for offset, r := range l.seen[app.TaskID{Topic: l.kind.changelog, Partition: partition}] {
		switch number, ok := wire.CheckpointNumber(r.Key); {
		case ok && number == 0:
			whole = max(whole, offset)
		case ok:
			partial = max(partial, offset)
		}
	}
	if partial < whole {
		l.t.Fatalf("%s/%d has a whole checkpoint at %d, and no partial one after it", l.kind.changelog, partition, whole)
	}
	return whole
}

// loseOffsets sets the group's offsets of a topic to what the combinations say.
func (l *losses) loseOffsets(group, topic string) {
	l.t.Helper()
	l.wait("the group to be empty", func() bool {
		described, err := l.admin.DescribeGroups(l.t.Context(), group)
		return err == nil && described[group].State == "Empty"
	})
	moved, gone, ends := kadm.Offsets{}, kadm.TopicsSet{}, l.ends(topic)
	for p, c := range l.all {
		switch c.group {
		case "gone":
			gone.Add(topic, int32(p))
		case "ahead":
			ahead := int64(aheadOffset)
			if end, _ := ends.Lookup(topic, int32(p)); end.At < ahead || topic == "app-repartition" {
				ahead = end.At // control records follow the offset that the group has
			}
			moved.AddOffset(topic, int32(p), ahead, -1)
		case "behind":
			moved.AddOffset(topic, int32(p), behindNext, -1)
		}
	}
	resps, err := l.admin.CommitOffsets(l.t.Context(), group, moved)
	must(l.t, errors.Join(err, resps.Error()))
	deleted, err := l.admin.DeleteOffsets(l.t.Context(), group, gone)
	must(l.t, errors.Join(err, deleted.Error()))
}

// loseInput recreates the input, or deletes the records that its combinations say.
func (l *losses) loseInput() {
	l.t.Helper()
	if l.all[0].input == "recreated" {
		l.recreate("signals.raw")
		l.sent = nil
		return
	}
	cut := kadm.Offsets{}
	for p, c := range l.all {
		if c.input == "cut" {
			cut.AddOffset("signals.raw", int32(p), cutTo, -1)
		}
	}
	l.deleteRecords(cut)
}

// startAgain starts the app. If topics were recreated, the refused start names the commands for all of them.
func (l *losses) startAgain() *instance {
	l.t.Helper()
	i := l.start(l.cfg)
	var recreated []string
	if l.all[0].changelog == "recreated" {
		recreated = append(recreated, l.kind.changelog)
	}
	if l.all[0].input == "recreated" && !l.kind.routed {
		recreated = append(recreated, "signals.raw")
	}
	if len(recreated) == 0 {
		return i
	}
	<-i.done
	conn := app.Conn{Client: l.client, Admin: l.admin, Options: []kgo.Opt{kgo.SeedBrokers(l.cluster.ListenAddrs()...)}, Log: slog.New(slog.DiscardHandler)}
	for _, topic := range recreated {
		if want := "oncebus accept --recreated " + topic; i.err == nil || !strings.Contains(i.err.Error(), want) {
			l.t.Fatalf("the start ended with %v, want %q", i.err, want)
		}
		must(l.t, app.AcceptRecreated(l.t.Context(), conn, l.cfg.Config, l.routes, topic))
		if err := app.AcceptRecreated(l.t.Context(), conn, l.cfg.Config, l.routes, topic); err == nil || !strings.Contains(err.Error(), "was not recreated") {
			l.t.Errorf("the same command again: %v", err)
		}
	}
	return l.start(l.cfg)
}

// compareRefusals waits until each partition runs or is refused, and compares the refusals with the expected ones.
func (l *losses) compareRefusals(i *instance) {
	l.t.Helper()
	want := map[string]string{}
	for p, c := range l.all {
		if problem, ways := c.routeProblem(); l.kind.routed && problem != "" {
			want[fmt.Sprint("signals.raw/", p)] = describe(problem, ways)
		}
		if problem := c.stateProblem(); problem != "" {
			want[fmt.Sprint(l.kind.task, "/", p)] = describe(problem, c.stateWays())
		} else if !l.kind.routed && c.input == "cut" {
			want[fmt.Sprint(l.kind.task, "/", p)] = describe(app.InputDeleted, []app.Way{app.InputLost})
		}
	}
	l.wait("each partition to run or to be refused", func() bool {
		l.runs(i)
		running, refused := 0, 0
		for _, task := range i.State().Tasks {
			if task.State == "running" {
				running++
			}
		}
		for _, r := range l.refusals() {
			if r.Topic == l.kind.task {
				refused++
			}
		}
		return running+refused >= len(l.all) && len(l.refusals()) >= len(want)
	})
	for _, r := range l.refusals() {
		if got := describe(r.Problem, r.Ways); got != want[r.Name()] {
			l.t.Errorf("%s with %+v is refused: %s, want %q: %s", r.Name(), l.all[r.Partition], got, want[r.Name()], r.Detail)
		}
		delete(want, r.Name())
	}
	for name := range want {
		l.t.Errorf("%s is not refused: %s", name, want[name])
	}
}

func describe(problem app.Problem, ways []app.Way) string { return fmt.Sprint(problem, ": ", ways) }

// runs fails the test if the process has ended by itself.
func (l *losses) runs(i *instance) {
	l.t.Helper()
	select {
	case <-i.done:
		l.t.Fatalf("the process ended: %v", i.err)
	default:
	}
}

// decideAll decides on all refusals until all input is processed, and then stops the app. Partitions with the same
// ways take the ways in turn.
func (l *losses) decideAll(i *instance) {
	l.t.Helper()
	decided := map[string]bool{}
	l.wait("the decisions to be followed", func() bool {
		l.runs(i)
		for _, r := range l.refusals() {
			if decided[r.Name()+r.Facts] {
				continue
			}
			decided[r.Name()+r.Facts] = true
			way := r.Ways[int(r.Partition)%len(r.Ways)]
			l.decided[r.Name()] = append(l.decided[r.Name()], decision{r, way})
			must(l.t, app.WriteAcceptance(l.t.Context(), l.client, l.topology(), &r, app.Acceptance{Way: way, Offset: l.offsetOf(way, r.Problem)}))
		}
		return i.Ready() == nil && l.processed(i)
	})
	must(l.t, i.stop())
	if left := l.refusals(); len(left) > 0 {
		l.t.Errorf("still refused: %+v", left)
	}
	l.observe()
}

// processed reports whether the app has processed its input.
func (l *losses) processed(i *instance) bool {
	l.t.Helper()
	ends := l.ends("signals.raw")
	at := kadm.Offsets{}
	for _, task := range i.State().Tasks {
		at.AddOffset(l.kind.task, task.ID().Partition, task.NextOffset, -1)
	}
	if l.kind.routed {
		committed, err := l.admin.FetchOffsets(l.t.Context(), app.GroupName("app", processor.StageRoute))
		if err != nil || l.isBehind("signals.raw", committed.Offsets(), ends) {
			return false
		}
		listed, err := l.admin.ListCommittedOffsets(l.t.Context(), l.kind.task)
		if err != nil {
			return false
		}
		ends = listed.Offsets()
	}
	return !l.isBehind(l.kind.task, at, ends)
}

// isBehind reports whether a partition of a topic has records that are not processed, by the offsets in at.
func (l *losses) isBehind(topic string, at, ends kadm.Offsets) bool {
	starts, err := l.admin.ListStartOffsets(l.t.Context(), topic)
	if err != nil {
		return true
	}
	for p := range l.all {
		from, ok := at.Lookup(topic, int32(p))
		end, _ := ends.Lookup(topic, int32(p))
		start, _ := starts.Lookup(topic, int32(p))
		// After a decision on deleted records, the first committed offset is above the start.
		if !ok || from.At < start.Offset || from.At < end.At && l.waiting(topic, int32(p), from.At, end.At) {
			return true
		}
	}
	return false
}

// offsetOf returns the offset that an operator gives for a way, if the way needs an offset.
func (l *losses) offsetOf(way app.Way, problem app.Problem) int64 {
	if way != app.FromOffset || problem == app.TopicRecreated {
		return 0
	}
	return next
}
