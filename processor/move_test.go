package processor_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"oncebus/processor/app"
	"oncebus/processor/kafka"
	"oncebus/processor/kafkatest/embedded"
	"oncebus/processor/move"
	"oncebus/processor/switchover"
)

// mover returns the connection with which an operator's command moves the app.
func (b *bench) mover() *move.Mover {
	b.t.Helper()
	m, err := move.New(b.t.Context(), b.config("operator").Config, b.routes, slog.New(slog.DiscardHandler))
	must(b.t, err)
	b.t.Cleanup(m.Close)
	return m
}

// move runs 'oncebus move' to its end.
func (b *bench) move(o move.Options) *move.State {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(b.t.Context(), embedded.WaitMax)
	defer cancel()
	s, err := b.mover().Move(ctx, o)
	must(b.t, err)
	return s
}

// stopMove runs 'oncebus move' until it stops before the phase that the options name.
func (b *bench) stopMove(o move.Options) {
	b.t.Helper()
	if _, err := b.mover().Move(b.t.Context(), o); !errors.Is(err, move.ErrStopped) {
		b.t.Fatalf("stopped run: %v", err)
	}
}

// undoMove stops a move before the phase that the options name, and waits until the move is undone, by an abort or by
// its limit.
func (b *bench) undoMove(i *instance, o move.Options, byLimit bool) {
	b.t.Helper()
	b.stopMove(o)
	if byLimit {
		b.passLimit(i, o)
		return
	}
	if s, err := b.mover().Abort(b.t.Context(), "tester"); err != nil || s == nil || s.Phase != switchover.Aborted {
		b.t.Fatalf("aborted %+v, %v", s, err)
	}
	b.wait("the hold to end", func() bool { return i.State().Hold == nil })
}

// passLimit lets the limit of a stopped move pass in a process, by the process's estimate of broker time, and waits
// until the hold has ended. A limit that passes by itself would be too short for a busy machine, or too long for a
// test.
func (b *bench) passLimit(i *instance, o move.Options) {
	b.t.Helper()
	if i.State().Hold == nil {
		b.t.Error("the hold ended before its limit")
	}
	b.wait("the hold to end at its limit", func() bool {
		i.App().Clock.Set(time.Now().Add(2 * o.Limit).UnixMilli()) // again, as a doubtful estimate is observed again
		return i.State().Hold == nil
	})
	i.App().Clock.Set(time.Now().UnixMilli())
}

// assertNoSwitch checks that no move has begun.
func (b *bench) assertNoSwitch() {
	b.t.Helper()
	rows, err := app.ReadRows(b.t.Context(), b.client, &app.Topology{Manifest: "app-manifest", Topics: b.topicsOf("app-manifest")})
	must(b.t, err)
	if s, err := app.SwitchIn(rows); s != nil || err != nil {
		b.t.Errorf("switch %+v, %v", s, err)
	}
}

// awaitGeneration waits until a process runs the tasks of a generation.
func (b *bench) awaitGeneration(i *instance, number int64) {
	b.t.Helper()
	b.wait(fmt.Sprintf("generation %d", number), func() bool {
		if i.App().Topology.Generation != number || i.Ready() != nil {
			return false
		}
		for _, t := range i.State().Tasks {
			if !strings.HasPrefix(t.Task, app.RepartitionName("app", number)+"/") {
				return false
			}
		}
		return true
	})
}

// movedEvents are the events of n keys, each several times and in random places.
func movedEvents(seed uint64, from, n int) (records []*kgo.Record) {
	random := rand.New(rand.NewPCG(seed, 7))
	for i := range n {
		for range 1 + random.IntN(3) {
			records = append(records, signal(fmt.Sprint("key-", from+i), int32(random.IntN(4)), testTime+int64(from+i)))
		}
	}
	random.Shuffle(len(records), func(i, j int) { records[i], records[j] = records[j], records[i] })
	return records
}

// checkOnce checks that each of n keys was emitted once.
func (b *bench) checkOnce(n int) {
	b.t.Helper()
	times := map[string]int{}
	for _, rec := range b.read("signals.unique") {
		times[string(rec.Key)]++
	}
	lost, doubled := 0, 0
	for i := range n {
		switch times[fmt.Sprint("k-key-", i)] {
		case 0:
			lost++
		case 1:
		default:
			doubled++
		}
	}
	if lost+doubled > 0 || len(times) != n {
		b.t.Errorf("of %d keys %d were lost and %d emitted twice; %d are in the output", n, lost, doubled, len(times))
	}
}

// TestMove moves the keys to more and to fewer partitions while events arrive. Each event is emitted once, whichever
// process judges it, also if copies of events from before the move come.
func TestMove(t *testing.T) {
	t.Parallel()
	for _, to := range []int32{7, 2} {
		t.Run(fmt.Sprint("to ", to), func(t *testing.T) {
			b := newBench(t, benchRoutes)
			b.createTopic("signals.raw", 4)
			one, two := b.start(b.config("one")), b.start(b.config("two"))
			b.ready(one)
			b.ready(two)
			b.produce(movedEvents(1, 0, 1000)...)
			b.drain(one, "signals.raw")
			b.produce(movedEvents(2, 500, 1000)...)
			s := b.move(move.Options{Partitions: to, Limit: time.Minute, By: "tester"})
			if s.Switch.Phase != switchover.Done || s.Switch.From != 4 || s.Switch.To != to || s.Switch.Number != 2 {
				t.Errorf("moved: %+v", s.Switch)
			}
			b.awaitGeneration(one, 2)
			b.awaitGeneration(two, 2)
			b.produce(movedEvents(3, 0, 2000)...)
			b.drain(one, "signals.raw")
			b.checkOnce(2000)
			b.wait(fmt.Sprintf("%d tasks", to), func() bool {
				tasks := map[string]bool{}
				for _, i := range []*instance{one, two} {
					for _, task := range i.State().Tasks {
						tasks[task.Task] = true
					}
				}
				return len(tasks) == int(to)
			})
			must(t, one.stop())
			three := b.ready(b.start(b.config("three"))) // ONCEBUS_PARTITIONS is 4
			b.produce(movedEvents(4, 0, 2000)...)
			b.drain(three, "signals.raw")
			b.checkOnce(2000)
		})
	}
}

// TestMoveGoesOn protects that a run of the command that ended before it wrote a phase can be repeated and then goes
// on, while the processes run.
func TestMoveGoesOn(t *testing.T) {
	t.Parallel()
	for _, phase := range []switchover.Phase{switchover.Holding, switchover.Closing, switchover.Acted, switchover.Done} {
		t.Run("before "+phase.String(), func(t *testing.T) {
			b := newBench(t, benchRoutes)
			b.createTopic("signals.raw", 4)
			i := b.ready(b.start(b.config("one")))
			b.produce(movedEvents(1, 0, 500)...)
			b.drain(i, "signals.raw")
			o := move.Options{Partitions: 6, Limit: time.Minute, StopBefore: phase}
			b.stopMove(o)
			b.produce(movedEvents(2, 250, 500)...)
			if _, err := b.mover().Move(t.Context(), move.Options{Partitions: 8, Limit: time.Minute}); !errors.Is(err, kafka.ErrOperator) || !strings.Contains(err.Error(), "6 partitions has begun") {
				t.Errorf("another count: %v", err)
			}
			if phase == switchover.Done {
				b.passLimit(i, o) // then the processes end it
			} else {
				b.move(move.Options{Partitions: 6, Limit: time.Minute})
			}
			b.wait("the move to end", func() bool {
				g := i.App().Topology.Generation
				return g >= 2
			})
			b.produce(movedEvents(3, 0, 1000)...)
			b.drain(i, "signals.raw")
			b.checkOnce(1000)
		})
	}
}

// TestMoveUndone protects that a move which is aborted before any phase, or whose hold lasts too long there, changes
// nothing and can be begun again.
func TestMoveUndone(t *testing.T) {
	t.Parallel()
	for _, phase := range []switchover.Phase{switchover.Holding, switchover.Closing, switchover.Acted} {
		for _, byLimit := range []bool{false, true} {
			if byLimit && phase == switchover.Holding {
				continue // the input is not held yet
			}
			t.Run(fmt.Sprintf("before %v, by its limit %v", phase, byLimit), func(t *testing.T) {
				b := newBench(t, benchRoutes)
				b.createTopic("signals.raw", 4)
				i := b.ready(b.start(b.config("one")))
				b.produce(movedEvents(1, 0, 500)...)
				b.drain(i, "signals.raw")
				b.undoMove(i, move.Options{Partitions: 6, Limit: time.Minute, StopBefore: phase}, byLimit)
				b.produce(movedEvents(2, 250, 500)...)
				b.drain(i, "signals.raw")
				b.checkOnce(750)
				if g := i.App().Topology.Generation; g != 1 {
					t.Errorf("generation %d", g)
				}
				must(t, i.stop())
				i = b.ready(b.start(b.config("two"))) // restores the tasks from their changelogs
				b.produce(movedEvents(3, 0, 1000)...)
				b.drain(i, "signals.raw")
				b.move(move.Options{Partitions: 3, Limit: time.Minute})
				b.awaitGeneration(i, 3)
				b.produce(movedEvents(4, 0, 1000)...)
				b.drain(i, "signals.raw")
				b.checkOnce(1000)
			})
		}
	}
}

// TestSleepingFrontIsForwarded protects that the new tasks judge, once, the records that reach the old repartition
// topic after its tasks have closed.
func TestSleepingFrontIsForwarded(t *testing.T) {
	t.Parallel()
	b := newBench(t, benchRoutes)
	b.createTopic("signals.raw", 4)
	i := b.ready(b.start(b.config("one")))
	b.produce(movedEvents(1, 0, 200)...)
	b.drain(i, "signals.raw")
	var envelopes []*kgo.Record
	for _, rec := range b.routedRecords() {
		envelopes = append(envelopes, &kgo.Record{Topic: rec.Topic, Partition: rec.Partition, Key: rec.Key, Value: rec.Value, Headers: rec.Headers})
	}
	if len(envelopes) < 200 {
		t.Skipf("%d records are left of the repartition topic", len(envelopes))
	}
	b.stopMove(move.Options{Partitions: 5, Limit: time.Minute, StopBefore: switchover.Acted})
	b.produce(envelopes[:100]...) // after the closed checkpoints
	b.move(move.Options{Partitions: 5, Limit: time.Minute})
	b.produce(envelopes[100:]...) // after the act
	b.awaitGeneration(i, 2)
	b.drain(i, "signals.raw", "app-repartition")
	forwarded := 0
	for _, rec := range b.read("app-repartition-2") {
		if slices.ContainsFunc(envelopes, func(e *kgo.Record) bool { return bytes.Equal(e.Key, rec.Key) }) {
			forwarded++
		}
	}
	if forwarded != len(envelopes) {
		t.Errorf("%d records forwarded, expected %d", forwarded, len(envelopes))
	}
	b.checkOnce(200)
}

// TestReplacedRunMayNotAct protects that an earlier run of the command writes no phase once another run has taken
// over.
func TestReplacedRunMayNotAct(t *testing.T) {
	t.Parallel()
	b := newBench(t, benchRoutes)
	b.createTopic("signals.raw", 4)
	i := b.ready(b.start(b.config("one")))
	cfg, topology := b.config("operator").Config, i.App().Topology
	conn := app.Conn{Client: b.client, Admin: b.admin, Options: []kgo.Opt{kgo.SeedBrokers(b.cluster.ListenAddrs()...)}, Log: slog.New(slog.DiscardHandler)}
	newest := func() *app.Switch {
		rows, err := app.ReadRows(t.Context(), b.client, topology)
		must(t, err)
		s, err := app.SwitchIn(rows)
		must(t, err)
		return s
	}
	o := move.Options{Partitions: 6, Limit: time.Minute, StopBefore: switchover.Acted}
	b.stopMove(o)
	first := newest()
	b.stopMove(o)
	act := &app.Act{Starts: make([]int64, 4), Set: 1}
	if err := first.Advance(t.Context(), conn, cfg, topology, switchover.Acted, act); !errors.Is(err, app.ErrReplaced) {
		t.Errorf("the first run acts: %v", err)
	}
	if s := newest(); s.Phase != switchover.Closing || s.Leader == first.Leader {
		t.Errorf("the switch is %+v", s)
	}
}

// TestMoveToWhatTheAppHas protects that a command changes nothing if an operator types it again after it was killed
// at its end, or after its success.
func TestMoveToWhatTheAppHas(t *testing.T) {
	t.Parallel()
	b := newBench(t, benchRoutes)
	b.createTopic("signals.raw", 4)
	b.ready(b.start(b.config("one")))
	if s := b.move(move.Options{Partitions: 4, Limit: time.Minute}); !s.Already || s.Switch.To != 4 {
		t.Errorf("moved to 4 of 4 partitions: %+v", s)
	}
	b.assertNoSwitch()
	for range 2 {
		b.move(move.Options{Partitions: 6, Limit: time.Minute})
	}
	if s := b.move(move.Options{Partitions: 6, Limit: time.Minute}); !s.Already || s.Switch.Number != 2 {
		t.Errorf("moved again: %+v", s)
	}
}

// TestMoveRefused protects that an impossible move is refused before the command writes anything.
func TestMoveRefused(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name, routes, want string
		to                 int32
		hold               bool
	}{
		{name: "no partitions", routes: benchRoutes, to: 0, want: "out of range"},
		{name: "prepartitioned", routes: keyedRoutes, to: 8, want: "prepartitioned"},
		{name: "second keys", routes: fmt.Sprintf(claimRoutes, "reject") + "    collision: forward\n", to: 8, want: "these routes cannot move: [ops]"},
		{name: "held", routes: benchRoutes, to: 8, hold: true, want: "oncebus release"},
	} {
		t.Run(c.name, func(t *testing.T) {
			b := newBench(t, c.routes)
			b.createTopic("signals.raw", 4)
			b.ready(b.start(b.config("one")))
			if c.hold {
				b.hold(b.decider(), 0)
			}
			_, err := b.mover().Move(t.Context(), move.Options{Partitions: c.to, Limit: time.Minute})
			if !errors.Is(err, kafka.ErrOperator) || !strings.Contains(err.Error(), c.want) {
				t.Errorf("refused with %v, expected %q", err, c.want)
			}
			b.assertNoSwitch()
		})
	}
}

func (b *bench) topicsOf(names ...string) map[string]app.Topic {
	b.t.Helper()
	topics, err := app.DescribeTopics(b.t.Context(), b.admin, names...)
	must(b.t, err)
	return topics
}

// TestMoveWithAShadowIsRefused protects that the refusal names the route with the shadow and the ways out.
func TestMoveWithAShadowIsRefused(t *testing.T) {
	t.Parallel()
	b := newBench(t, strings.Replace(benchRoutes, "    window:", "    shadow: {key: [{field: other}]}\n    window:", 1))
	b.ready(b.start(b.config("one")))
	if _, err := b.mover().Move(t.Context(), move.Options{Partitions: 7, Limit: time.Minute, By: "tester"}); err == nil || !strings.Contains(err.Error(), "route signals has a shadow, and ") {
		t.Errorf("moved: %v", err)
	}
}
