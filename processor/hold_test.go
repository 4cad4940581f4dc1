package processor_test

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"oncebus/processor"
	"oncebus/processor/app"
	"oncebus/processor/front"
	"oncebus/processor/kafka"
	"oncebus/processor/kafkatest/embedded"
)

// decider returns the connection through which an operator's command decides about the app.
func (b *bench) decider() *front.Decider {
	b.t.Helper()
	d, err := front.NewDecider(b.t.Context(), b.config("operator").Config, b.routes, slog.New(slog.DiscardHandler))
	must(b.t, err)
	b.t.Cleanup(d.Close)
	return d
}

// hold puts a hold in force and waits until it is complete.
func (b *bench) hold(d *front.Decider, limit time.Duration) *front.HoldState {
	b.t.Helper()
	must(b.t, d.Hold(b.t.Context(), app.NewHold("a test", "tester", limit)))
	ctx, cancel := context.WithTimeout(b.t.Context(), embedded.WaitMax)
	defer cancel()
	s, err := d.AwaitHold(ctx, nil)
	must(b.t, err)
	return s
}

func release(t *testing.T, d *front.Decider) {
	t.Helper()
	ended, err := d.Release(t.Context())
	if err != nil || ended == nil {
		t.Fatalf("released %v, %v", ended, err)
	}
}

// holdRoutes runs a test with a routed topic and with a prepartitioned topic.
func holdRoutes(t *testing.T, test func(t *testing.T, routes string)) {
	t.Run("routed", func(t *testing.T) { test(t, benchRoutes) })
	t.Run("prepartitioned", func(t *testing.T) { test(t, keyedRoutes) })
}

// TestHoldNeedsALevelThatAllBuildsKnow protects that a hold is refused below its level, because a process of an
// earlier build would not hold.
func TestHoldNeedsALevelThatAllBuildsKnow(t *testing.T) {
	t.Parallel()
	b := newBench(t, benchRoutes)
	b.beginAtLevel1()
	b.living(b.config("one"), batch("s", 4)...)
	b.levelsWritten("one")
	d := b.decider()
	if err := d.Hold(t.Context(), app.NewHold("a test", "tester", 0)); err == nil || !strings.Contains(err.Error(), "run oncebus finalize") {
		t.Errorf("a hold at level 1: %v", err)
	}
	if keys := b.rowKeys("hold"); len(keys) > 0 {
		t.Errorf("the manifest topic has %v", keys)
	}
	if _, err := b.finalize(); err != nil {
		t.Fatal(err)
	}
	b.hold(d, 0)
	release(t, d)
}

// TestHeldInputWaits protects that events that arrive under a hold are emitted once, after the release and not
// before, also by a process that starts meanwhile.
func TestHeldInputWaits(t *testing.T) {
	t.Parallel()
	holdRoutes(t, func(t *testing.T, routes string) {
		b := newBench(t, routes)
		b.createTopic("signals.raw", 4)
		i := b.ready(b.start(b.config("one")))
		b.produce(signal("a", 0, testTime), signal("b", 1, testTime), signal("a", 0, testTime))
		b.drain(i, "signals.raw")
		s := b.hold(b.decider(), 0)
		if len(s.Held) != 4 || s.Held[app.TaskID{Topic: "signals.raw", Partition: 0}] != 2 || s.Held[app.TaskID{Topic: "signals.raw", Partition: 1}] != 1 {
			t.Errorf("held %v", s.Held)
		}
		if got := i.State().Hold; got == nil || got.Reason != "a test" {
			t.Errorf("the state has the hold %+v", got)
		}
		b.produce(signal("c", 0, testTime), signal("b", 1, testTime))
		must(t, i.stop())
		two := b.start(b.config("two"))
		b.wait("the second process to hold", func() bool { return two.State().Hold != nil && two.Ready() == nil })
		if got := len(b.read("signals.unique")); got != 2 {
			t.Errorf("%d events emitted under the hold, expected the 2 from before", got)
		}
		release(t, b.decider())
		b.drain(two, "signals.raw")
		if got := len(b.read("signals.unique")); got != 3 {
			t.Errorf("%d events emitted, expected 3", got)
		}
	})
}

// TestHeldPartitionMovesHeld protects that a process that is assigned a held partition reads the manifest topic
// before it fetches, however rarely it reads that topic otherwise.
func TestHeldPartitionMovesHeld(t *testing.T) {
	t.Parallel()
	holdRoutes(t, func(t *testing.T, routes string) {
		b := newBench(t, routes)
		b.createTopic("signals.raw", 4)
		one := b.start(b.config("one"))
		two := b.startWith(b.config("two"), func(p *processor.Processor) { p.SetManifestInterval(time.Hour) })
		b.wait("both to own partitions", func() bool {
			if one.Ready() != nil || two.Ready() != nil || len(one.State().Tasks) != 2 || len(two.State().Tasks) != 2 {
				return false
			}
			inputs := len(one.Assigned(processor.StageRoute)) + len(two.Assigned(processor.StageRoute))
			return inputs == 0 || len(two.Assigned(processor.StageRoute)) == 2 && inputs == 4
		})
		d := b.decider()
		must(t, d.Hold(t.Context(), app.NewHold("a test", "tester", 0)))
		var held map[app.TaskID]int64
		b.wait("the first process to hold its partitions", func() bool {
			s, err := d.HoldState(t.Context())
			must(t, err)
			held = s.Held
			return len(held) == 2
		})
		b.produce(signal("a", 0, testTime), signal("b", 1, testTime), signal("c", 2, testTime), signal("d", 3, testTime))
		b.wait("the second process, which knows of no hold, to judge", func() bool { return len(b.read("signals.unique")) == 2 })
		must(t, one.stop())
		ctx, cancel := context.WithTimeout(t.Context(), embedded.WaitMax)
		defer cancel()
		s, err := d.AwaitHold(ctx, nil)
		must(t, err)
		for id, offset := range held {
			if s.Held[id] != offset {
				t.Errorf("%v was held at %d, then at %d", id, offset, s.Held[id])
			}
		}
		if n := len(b.read("signals.unique")); n != 2 {
			t.Errorf("%d events emitted, expected those of the partitions that were not held", n)
		}
		release(t, d)
		two.ReadManifestNow()
		b.drain(two, "signals.raw")
		if got := len(b.read("signals.unique")); got != 4 {
			t.Errorf("%d events emitted, expected 4", got)
		}
	})
}

// TestHoldIsDrained protects that a hold is complete only when the tasks have judged everything that was routed.
func TestHoldIsDrained(t *testing.T) {
	t.Parallel()
	b := newBench(t, benchRoutes)
	b.createTopic("signals.raw", 4)
	i := b.ready(b.start(b.config("one")))
	records, sent := sentDuplicates(1, 2000, anywhere)
	b.produce(records...)
	s := b.hold(b.decider(), 0)
	routed, next := map[string]bool{}, map[int32]int64{}
	for _, rec := range records {
		if next[rec.Partition] < s.Held[app.TaskID{Topic: rec.Topic, Partition: rec.Partition}] {
			routed[string(rec.Key)] = true
		}
		next[rec.Partition]++
	}
	if got := len(b.read("signals.unique")); got != len(routed) {
		t.Errorf("%d events emitted under the hold, expected all %d that were routed", got, len(routed))
	}
	release(t, b.decider())
	b.drain(i, "signals.raw")
	if got := len(b.read("signals.unique")); got != len(sent) {
		t.Errorf("%d events emitted, expected %d", got, len(sent))
	}
}

// TestHoldEndsAtItsLimit protects that the processes release a hold whose time limit has passed.
func TestHoldEndsAtItsLimit(t *testing.T) {
	t.Parallel()
	b := newBench(t, benchRoutes)
	b.createTopic("signals.raw", 4)
	i := b.ready(b.start(b.config("one")))
	d := b.decider()
	must(t, d.Hold(t.Context(), app.NewHold("a test", "tester", time.Millisecond)))
	b.wait("the hold to end", func() bool {
		s, err := d.HoldState(t.Context())
		must(t, err)
		return s.Hold == nil && i.State().Hold == nil
	})
	b.produce(signal("a", 0, testTime))
	b.drain(i, "signals.raw")
	if got := len(b.read("signals.unique")); got != 1 {
		t.Errorf("%d events emitted after the hold, expected 1", got)
	}
}

// TestOneHoldAtATime protects that a second hold is refused, and that the refusal names the first hold.
func TestOneHoldAtATime(t *testing.T) {
	t.Parallel()
	b := newBench(t, benchRoutes)
	b.createTopic("signals.raw", 4)
	b.ready(b.start(b.config("one")))
	d := b.decider()
	b.hold(d, 0)
	err := d.Hold(t.Context(), app.NewHold("another", "", 0))
	if !errors.Is(err, kafka.ErrOperator) || !strings.Contains(err.Error(), "a test") {
		t.Errorf("second hold: %v", err)
	}
	release(t, d)
	if ended, err := d.Release(t.Context()); ended != nil || err != nil {
		t.Errorf("released twice: %v, %v", ended, err)
	}
}

// TestHoldIsRepeatedAsItWasTyped protects that an operator can repeat a command: one that was killed goes on with its
// hold, and one that already ended a hold has nothing to do.
func TestHoldIsRepeatedAsItWasTyped(t *testing.T) {
	t.Parallel()
	b := newBench(t, benchRoutes)
	b.createTopic("signals.raw", 4)
	b.ready(b.start(b.config("one")))
	d := b.decider()
	first := b.hold(d, time.Hour)
	if again := b.hold(d, time.Hour); again.Hold.ID != first.Hold.ID {
		t.Errorf("hold %s was followed by another one: %+v", first.Hold.ID, again.Hold)
	}
	for what, other := range map[string]*app.Hold{"reason": app.NewHold("b test", "", time.Hour), "limit": app.NewHold("a test", "", 0), "kind": app.NewHold("a test", "", time.Hour)} {
		other.Leaving = what == "kind"
		if err := d.Hold(t.Context(), other); !errors.Is(err, kafka.ErrOperator) {
			t.Errorf("a hold of another %s: %v", what, err)
		}
	}
	release(t, d)
	leaving := app.NewHold("away", "", 0)
	leaving.Leaving = true
	must(t, d.Hold(t.Context(), leaving))
	for n := range 2 {
		if ended, err := d.TakeBack(t.Context()); err != nil || (ended == nil) != (n > 0) {
			t.Errorf("taken back, call %d: %v, %v", n, ended, err)
		}
	}
}

// TestHeldIngressRefuses protects that the ingress accepts no event under a hold, and sends nothing.
func TestHeldIngressRefuses(t *testing.T) {
	t.Parallel()
	b := newHTTPBench(t, benchRoutes)
	b.createTopic("signals.raw", 4)
	i := b.ready(b.start(b.config("one")))
	f := b.ingress("front")
	d := b.decider()
	s := b.hold(d, 0)
	ask := func(id string) error {
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		defer cancel()
		sub := submission("signals.raw", `{"id":"`+id+`"}`, testTime)
		derived, err := f.Derive(sub)
		must(t, err)
		_, err = f.SubmitAndWait(ctx, sub, &derived)
		return err
	}
	b.wait("the ingress to hold", func() bool { return errors.Is(ask("a"), front.ErrHeld) })
	late := b.ingress("late") // it starts under the hold
	sub := submission("signals.raw", `{"id":"b"}`, testTime)
	derived, err := late.Derive(sub)
	must(t, err)
	if err := late.Submit(t.Context(), sub, &derived); !errors.Is(err, front.ErrHeld) {
		t.Errorf("an ingress that started under hold %s: %v", s.Hold.ID, err)
	}
	release(t, d)
	b.wait("the ingress to go on", func() bool { return !errors.Is(ask("c"), front.ErrHeld) })
	b.drain(i, "signals.raw")
}

// TestUndrainedTasks protects that a task with a committed record after its offset is undrained, and that a task with
// only control records after its offset is not.
func TestUndrainedTasks(t *testing.T) {
	t.Parallel()
	b := newBench(t, benchRoutes)
	b.createTopic("signals.raw", 4)
	i := b.lived(b.config("one"), signal("a", 0, testTime), signal("b", 1, testTime))
	conn, topology := app.Conn{Client: b.client, Admin: b.admin}, i.App().Topology
	undrained := func() []app.TaskID {
		ends, err := app.Ends(t.Context(), conn, "app-repartition")
		must(t, err)
		left, err := app.Undrained(t.Context(), conn, topology, "app-repartition", ends)
		must(t, err)
		return left
	}
	if got := undrained(); len(got) > 0 {
		t.Errorf("undrained %v, expected none after a stop", got)
	}
	b.produce(&kgo.Record{Topic: "app-repartition", Partition: 2, Value: []byte("x")})
	if got := undrained(); len(got) != 1 || got[0].Partition != 2 {
		t.Errorf("undrained %v, expected partition 2", got)
	}
}
