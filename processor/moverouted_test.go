package processor_test

import (
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"oncebus/processor"
	"oncebus/processor/app"
	"oncebus/processor/kafka"
	"oncebus/processor/move"
	"oncebus/processor/switchover"
)

// routedRoutes are keyedRoutes with the topic as a routed topic.
var routedRoutes = strings.Replace(keyedRoutes, "    prepartitioned: true\n", "", 1)

// keyedEvents are the events of n keys, each several times, in the partitions that a producer chooses by the key
// among this number of partitions.
func keyedEvents(seed uint64, from, n int, partitions int32) (records []*kgo.Record) {
	random := rand.New(rand.NewPCG(seed, 11))
	for i := range n {
		id := fmt.Sprint("key-", from+i)
		for range 1 + random.IntN(3) {
			records = append(records, signal(id, partitionOf(id, partitions), testTime+int64(from+i)))
		}
	}
	random.Shuffle(len(records), func(i, j int) { records[i], records[j] = records[j], records[i] })
	return records
}

// keyedBench returns a bench whose processes have the topic of keyedRoutes as a prepartitioned topic.
func keyedBench(t *testing.T, instances ...string) (b *bench, running []*instance) {
	t.Helper()
	b = newBench(t, keyedRoutes)
	b.createTopic("signals.raw", 4)
	for _, name := range instances {
		running = append(running, b.start(b.config(name), kgo.MetadataMaxAge(300*time.Millisecond)))
	}
	for _, i := range running {
		b.ready(i)
	}
	b.produce(keyedEvents(1, 0, 500, 4)...)
	b.drain(running[0])
	return b, running
}

// growAndProduce adds a partition to a topic, and gives the bench a new client, whose producer knows the partition.
func (b *bench) growAndProduce(topic string) {
	b.t.Helper()
	b.grow(topic)
	b.client = b.newClient()
}

// awaitPaused waits until these processes have paused a topic that has got partitions.
func (b *bench) awaitPaused(instances ...string) {
	b.t.Helper()
	for _, name := range instances {
		b.wait("the topic to pause in "+name, func() bool {
			for line := range strings.Lines(b.logs.String()) {
				if strings.Contains(line, "prepartitioned topic paused") && strings.Contains(line, "instance="+name+" ") {
					return true
				}
			}
			return false
		})
	}
}

// TestMoveToRouted moves the keys of a prepartitioned topic to a repartition topic while events arrive. Afterwards
// the topic may get partitions, and its producers may choose them freely: each key is emitted once, whichever process
// judges it.
func TestMoveToRouted(t *testing.T) {
	t.Parallel()
	b, running := keyedBench(t, "one", "two")
	one, two := running[0], running[1]
	b.produce(keyedEvents(2, 250, 750, 4)...)
	b.useRoutes(routedRoutes)
	s := b.move(move.Options{ToRouted: true, Partitions: 6, Limit: time.Minute, By: "tester"})
	if s.Switch.Phase != switchover.Done || s.Switch.From != 0 || s.Switch.To != 6 || s.Switch.Number != 2 || !slices.Equal(s.Switch.Inputs, []app.SwitchInput{{Topic: "signals.raw", Partitions: 4}}) {
		t.Errorf("moved: %+v", s.Switch)
	}
	b.awaitGeneration(one, 2)
	b.awaitGeneration(two, 2)
	if one.App().Set != 2 {
		t.Errorf("route set %d is in force", one.App().Set)
	}
	b.growAndProduce("signals.raw")
	b.produce(keyedEvents(3, 0, 1500, 5)...)
	b.produce(movedEvents(4, 0, 2000)...)
	b.drain(one, "signals.raw")
	b.checkOnce(2000)
	found, err := app.Find(t.Context(), b.client, "app", b.routes)
	must(t, err)
	if plan, err := found.Plan(t.Context(), b.conn(), b.config("operator").Config, app.ApplyOptions{}); err != nil || len(plan.Changes) > 0 || plan.Set != 2 {
		t.Errorf("the operator's file is not the set in force: %+v, %v", plan, err)
	}
	must(t, one.stop())
	three := b.ready(b.start(b.config("three")))
	b.useRoutes(keyedRoutes)
	four := b.ready(b.start(b.config("four"))) // its file is behind
	b.useRoutes(routedRoutes)
	for _, o := range []move.Options{{ToRouted: true, Partitions: 6, Limit: time.Minute}, {ToRouted: true, Limit: time.Minute}, {Partitions: 6, Limit: time.Minute}} {
		if again := b.move(o); !again.Already || again.Switch.To != 6 {
			t.Errorf("moved again by %+v: %+v", o, again)
		}
	}
	if _, err := b.mover().Move(t.Context(), move.Options{ToRouted: true, Partitions: 8, Limit: time.Minute}); !errors.Is(err, kafka.ErrOperator) || !strings.Contains(err.Error(), "no route becomes routed") {
		t.Errorf("moved to other partitions: %v", err)
	}
	b.produce(movedEvents(5, 0, 2000)...)
	b.drain(three, "signals.raw")
	b.checkOnce(2000)
	finished, err := b.mover().Finish(t.Context())
	must(t, err)
	if !slices.Equal(finished.Deleted, []string{"app-signals.raw-changelog"}) {
		t.Errorf("deleted %v", finished.Deleted)
	}
	b.move(move.Options{Partitions: 3, Limit: time.Minute})
	b.awaitGeneration(three, 3)
	b.awaitGeneration(four, 3)
	b.produce(movedEvents(6, 0, 2000)...)
	b.drain(three, "signals.raw")
	b.checkOnce(2000)
}

// TestNothingWaitsAfterMoveToRouted protects that, before the next event, an export has the keys and does not count
// records as waiting that a task judged before their topic became routed. The next start removes the local state of
// the former tasks.
func TestNothingWaitsAfterMoveToRouted(t *testing.T) {
	t.Parallel()
	b, running := keyedBench(t, "one")
	b.useRoutes(routedRoutes)
	b.move(move.Options{ToRouted: true, Partitions: 6, Limit: time.Minute})
	b.awaitGeneration(running[0], 2)
	_, exported := b.export(b.transfers(b.config("operator")))
	if exported.Rows != 500 || exported.Behind != 0 {
		t.Errorf("exported %+v, want 500 keys, and nothing that waits", exported)
	}
	must(t, running[0].stop())
	cfg := b.config("one")
	former := filepath.Join(cfg.StateDir, "app", "signals.raw-0")
	must(t, os.MkdirAll(former, 0o700))
	b.ready(b.start(cfg))
	if _, err := os.Stat(former); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("%s: %v, want it removed", former, err)
	}
}

// TestMoveToRoutedGoesOn protects that a run of the command that ended before it wrote a phase can be repeated and
// then goes on, while the processes run and the topic grows.
func TestMoveToRoutedGoesOn(t *testing.T) {
	t.Parallel()
	for _, phase := range []switchover.Phase{switchover.Holding, switchover.Closing, switchover.Acted, switchover.Done} {
		t.Run("before "+phase.String(), func(t *testing.T) {
			b, running := keyedBench(t, "one")
			i := running[0]
			b.useRoutes(routedRoutes)
			o := move.Options{ToRouted: true, Partitions: 6, Limit: time.Minute, StopBefore: phase}
			b.stopMove(o)
			b.produce(keyedEvents(2, 250, 500, 4)...)
			if phase == switchover.Done {
				b.passLimit(i, o) // then the processes end it
			} else {
				b.refusesOthers()
				b.growAndProduce("signals.raw")
				b.awaitPaused("one")
				b.produce(keyedEvents(3, 0, 1000, 5)...)
				b.move(move.Options{ToRouted: true, Limit: time.Minute})
			}
			b.awaitGeneration(i, 2)
			b.produce(movedEvents(4, 0, 1000)...)
			b.drain(i, "signals.raw")
			b.checkOnce(1000)
		})
	}
}

// refusesOthers checks that no move is possible other than the move that has begun.
func (b *bench) refusesOthers() {
	b.t.Helper()
	for _, o := range []move.Options{{Partitions: 6}, {ToRouted: true, Partitions: 8}} {
		o.Limit = time.Minute
		if _, err := b.mover().Move(b.t.Context(), o); !errors.Is(err, kafka.ErrOperator) || !strings.Contains(err.Error(), "oncebus move --to-routed") {
			b.t.Errorf("%+v: %v", o, err)
		}
	}
	before := b.routes
	b.useRoutes(keyedRoutes)
	if _, err := b.mover().Move(b.t.Context(), move.Options{ToRouted: true, Limit: time.Minute}); !errors.Is(err, kafka.ErrOperator) {
		b.t.Errorf("moved with the file of before: %v", err)
	}
	b.routes = before
}

// TestMoveToRoutedUndone protects that a move which is aborted before any phase, or whose hold lasts too long there,
// changes nothing and can be begun again.
func TestMoveToRoutedUndone(t *testing.T) {
	t.Parallel()
	for _, phase := range []switchover.Phase{switchover.Holding, switchover.Closing, switchover.Acted} {
		for _, byLimit := range []bool{false, true} {
			if byLimit && phase == switchover.Holding {
				continue // the input is not held yet
			}
			t.Run(fmt.Sprintf("before %v, by its limit %v", phase, byLimit), func(t *testing.T) {
				b, running := keyedBench(t, "one")
				i := running[0]
				b.useRoutes(routedRoutes)
				b.undoMove(i, move.Options{ToRouted: true, Partitions: 6, Limit: time.Minute, StopBefore: phase}, byLimit)
				b.produce(keyedEvents(2, 250, 500, 4)...)
				b.drain(i)
				b.checkOnce(750)
				if rt := i.App(); rt.Topology.Generation != 1 || rt.Set != 1 {
					t.Errorf("generation %d, route set %d", rt.Topology.Generation, rt.Set)
				}
				must(t, i.stop())
				b.useRoutes(keyedRoutes)
				i = b.ready(b.start(b.config("two"))) // restores the tasks from their changelogs
				b.produce(keyedEvents(3, 0, 1000, 4)...)
				b.drain(i)
				b.useRoutes(routedRoutes)
				b.move(move.Options{ToRouted: true, Partitions: 3, Limit: time.Minute})
				b.awaitGeneration(i, 3)
				b.produce(movedEvents(4, 0, 1000)...)
				b.drain(i, "signals.raw")
				b.checkOnce(1000)
			})
		}
	}
}

// TestGrownTopicWaitsForItsMove protects that no process judges records of a prepartitioned topic once the topic has
// got a partition, because producers may send a key to another partition than the one with its row. A process that
// starts waits, too. The move then routes all these records.
func TestGrownTopicWaitsForItsMove(t *testing.T) {
	t.Parallel()
	b, running := keyedBench(t, "one", "two")
	b.growAndProduce("signals.raw")
	b.awaitPaused("one", "two")
	assertFinding(t, b.diagnose(b.config("doctor"), 0), app.Fails, "manifest", "topic signals.raw has got partition 4")
	b.produce(keyedEvents(2, 0, 1000, 5)...)
	three := b.start(b.config("three"), kgo.MetadataMaxAge(300*time.Millisecond))
	b.awaitPaused("three")
	all := []*instance{running[0], running[1], three}
	b.wait("the reason", func() bool {
		return slices.ContainsFunc(all, func(i *instance) bool {
			err := i.Ready()
			return err != nil && strings.Contains(err.Error(), "signals.raw has got partition 4") && strings.Contains(err.Error(), "oncebus move --to-routed")
		})
	})
	if n := len(b.read("signals.unique")); n != 500 {
		t.Errorf("%d events emitted, expected those of before", n)
	}
	ways := 0 // doctor has one way out: that which keeps the state
	for _, f := range b.diagnose(b.config("three"), 0) {
		if strings.Contains(f.Text, "topic signals.raw ") && f.Level == app.Fails {
			if ways++; !strings.Contains(f.Action, "oncebus move --to-routed") {
				t.Errorf("%+v", f)
			}
		}
	}
	if ways != 1 {
		t.Errorf("doctor has %d findings on the topic, want 1", ways)
	}
	b.useRoutes(routedRoutes)
	b.move(move.Options{ToRouted: true, Limit: time.Minute})
	for _, i := range all {
		b.awaitGeneration(i, 2)
	}
	b.produce(keyedEvents(3, 0, 1000, 5)...)
	b.drain(three, "signals.raw")
	b.checkOnce(1000)
}

// TestClientKnowsAddedPartitions protects that any client's metadata has the partition count by which a process
// pauses a grown topic.
func TestClientKnowsAddedPartitions(t *testing.T) {
	t.Parallel()
	b := newBench(t, benchRoutes)
	b.createTopic("signals.raw", 2)
	b.produce(signal("a", 1, testTime)) // loads the metadata
	for partition, want := range []bool{true, true, false} {
		if got := processor.HasPartition(b.client, "signals.raw", int32(partition)); got != want {
			t.Errorf("partition %d of 2: %v, want %v", partition, got, want)
		}
	}
	if processor.HasPartition(b.client, "other.raw", 0) {
		t.Error("a topic without metadata has a partition")
	}
}

// TestMoveToRoutedRefusesLateEvents covers a partition that is further behind than the grace period: it would lose
// its unread events to the late policy. The move is undone, unless the operator permits this loss.
func TestMoveToRoutedRefusesLateEvents(t *testing.T) {
	t.Parallel()
	b, running := keyedBench(t, "one")
	id := "key-500"
	ahead := signal(id, partitionOf(id, 4), testTime+time.Hour.Milliseconds())
	b.produce(ahead)
	b.drain(running[0])
	b.useRoutes(routedRoutes)
	o := move.Options{ToRouted: true, Limit: time.Minute, StopBefore: switchover.Acted}
	b.stopMove(o)
	behind := keyedEvents(2, 0, 20, 4)
	b.produce(behind...)
	o.StopBefore = switchover.None
	if s, err := b.mover().Move(t.Context(), o); !errors.Is(err, kafka.ErrOperator) || !strings.Contains(err.Error(), "--late-ok") || s.Switch.Phase != switchover.Aborted {
		t.Fatalf("%v: %v", s, err)
	}
	b.wait("the hold to end", func() bool { return running[0].State().Hold == nil })
	b.drain(running[0])
	b.checkOnce(501)
	b.move(o) // nothing is unread
	b.awaitGeneration(running[0], 3)
	b.produce(behind...)
	b.drain(running[0], "signals.raw")
	b.checkOnce(501)
}

// TestMoveToRoutedTakesAll protects that an app which also has routed topics moves the keys of both kinds of topics
// to the next generation. A prepartitioned topic that the routes file leaves as it is goes on.
func TestMoveToRoutedTakesAll(t *testing.T) {
	t.Parallel()
	keyed := strings.TrimPrefix(keyedRoutes, "routes:\n")
	stays := strings.ReplaceAll(keyed, "signals", "stays")
	mixed := benchRoutes + strings.ReplaceAll(keyed, "signals", "orders") + stays
	b := newBench(t, mixed)
	for _, topic := range []string{"signals.raw", "orders.raw", "stays.raw"} {
		b.createTopic(topic, 4)
	}
	i := b.ready(b.start(b.config("one")))
	send := func(seed uint64, ordersBy int32) {
		t.Helper()
		b.produce(movedEvents(seed, 0, 300)...)
		b.produce(renamed("orders.raw", keyedEvents(seed, 0, 300, ordersBy))...)
		b.produce(renamed("stays.raw", keyedEvents(seed, 0, 300, 4))...)
	}
	send(1, 4)
	b.useRoutes(benchRoutes + strings.ReplaceAll(strings.TrimPrefix(routedRoutes, "routes:\n"), "signals", "orders") + stays)
	s := b.move(move.Options{ToRouted: true, Limit: time.Minute})
	if s.Switch.From != 4 || s.Switch.To != 4 || len(s.Switch.Inputs) != 1 {
		t.Errorf("moved: %+v", s.Switch)
	}
	b.wait("the move to be taken", func() bool { return i.App().Topology.Generation == 2 && i.Ready() == nil })
	b.growAndProduce("orders.raw")
	send(2, 5)
	b.drain(i, "signals.raw", "orders.raw")
	b.move(move.Options{Partitions: 5, Limit: time.Minute})
	b.wait("the second move to be taken", func() bool { return i.App().Topology.Generation == 3 && i.Ready() == nil })
	send(3, 3)
	b.drain(i, "signals.raw", "orders.raw")
	for _, output := range []string{"signals.unique", "orders.unique", "stays.unique"} {
		if n := len(b.read(output)); n != 300 {
			t.Errorf("%s has %d events, expected 300", output, n)
		}
	}
}

// TestMoveToRoutedRefused protects that an impossible move is refused before the command writes anything.
func TestMoveToRoutedRefused(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name, before, after, want string
	}{
		{"the file is in force", keyedRoutes, keyedRoutes, "no route becomes routed"},
		{"the file changes the window too", keyedRoutes, strings.Replace(routedRoutes, "1h", "2h", 1), "in more than `prepartitioned`: route signals: window 1h -> 2h"},
		{"back", benchRoutes, strings.Replace(benchRoutes, "    window:", "    prepartitioned: true\n    window:", 1), "the way back is another ONCEBUS_APP_ID"},
		{"order", strings.Replace(keyedRoutes, "field: id", "order: {}", 1), strings.Replace(routedRoutes, "field: id", "order: {}", 1), "these routes cannot move: [signals]"},
	} {
		t.Run(c.name, func(t *testing.T) {
			b := newBench(t, c.before)
			b.createTopic("signals.raw", 4)
			b.ready(b.start(b.config("one")))
			b.useRoutes(c.after)
			if _, err := b.mover().Move(t.Context(), move.Options{ToRouted: true, Limit: time.Minute}); !errors.Is(err, kafka.ErrOperator) || !strings.Contains(err.Error(), c.want) {
				t.Errorf("refused with %v, expected %q", err, c.want)
			}
			b.assertNoSwitch()
		})
	}
}
