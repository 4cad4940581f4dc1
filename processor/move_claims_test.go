package processor_test

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"oncebus/dedup/rules"
	"oncebus/processor/front"
	"oncebus/processor/kafka"
	"oncebus/processor/move"
	"oncebus/processor/switchover"
	"oncebus/processor/wire"
)

// TestClaimsMove protects that claims which are open when the keys move take their outcomes afterwards, with the
// token from before the move, and that completed claims are replayed unchanged.
func TestClaimsMove(t *testing.T) {
	t.Parallel()
	const n = 20
	b := newBench(t, fmt.Sprintf(claimRoutes, "reject"))
	i := b.ready(b.start(b.config("one")))
	for k := range n {
		b.produce(operation(fmt.Sprint(k), fmt.Sprint("first-", k), int32(k%4)))
	}
	b.drainClaims(i)
	run := b.read("ops.run")
	if len(run) != n {
		t.Fatalf("%d events went to the executor", len(run))
	}
	for _, event := range run[:n/2] {
		b.produce(outcomeOf(event, "completed", []byte("the result of "+string(event.Key))))
	}
	b.drainClaims(i)
	for _, to := range []int32{9, 3} {
		b.move(move.Options{Partitions: to, Limit: time.Minute})
		b.wait("the new partitions", func() bool {
			return i.App().Topology.Topics[i.App().Topology.Repartition].Partitions == to && i.Ready() == nil
		})
	}
	for _, event := range run[n/2:] {
		b.produce(outcomeOf(event, "completed", []byte("the result of "+string(event.Key))))
	}
	b.drainClaims(i)
	for k := range n {
		b.produce(operation(fmt.Sprint(k), fmt.Sprint("again-", k), int32(k%4)))
	}
	b.drainClaims(i)
	if again := len(b.read("ops.run")); again != n {
		t.Errorf("%d events went to the executor, expected %d", again, n)
	}
	if dead := b.read("dead"); len(dead) > 0 {
		t.Errorf("%d dead letters, the first with %v", len(dead), dead[0].Headers)
	}
	replayed := 0
	for _, r := range b.read("ops.replies") {
		if header(r, wire.HeaderVerdict) == "replayed" && string(r.Value) == "the result of k-"+header(r, wire.HeaderFirstRequest) {
			replayed++
		}
	}
	if replayed != n {
		t.Errorf("%d results replayed, expected %d", replayed, n)
	}
}

// TestRoutesChangedDuringMove puts a route set in force while the tasks close. The move must be undone, because the
// closed checkpoints do not know the windows of the new set.
func TestRoutesChangedDuringMove(t *testing.T) {
	t.Parallel()
	b := newBench(t, benchRoutes)
	b.createTopic("signals.raw", 4)
	i := b.ready(b.start(b.config("one")))
	b.produce(movedEvents(1, 0, 100)...)
	b.drain(i, "signals.raw")
	first := b.mover()
	if _, err := first.Move(t.Context(), move.Options{Partitions: 6, Limit: time.Minute, StopBefore: switchover.Acted}); !errors.Is(err, move.ErrStopped) {
		t.Fatalf("stopped run: %v", err)
	}
	b.useRoutes(benchRoutes + "    limits: {live_keys: 100000}\n")
	two := b.start(b.config("two")) // applies the harmless change
	b.wait("the new set", func() bool { return i.App().Set == 2 })
	if _, err := first.Move(t.Context(), move.Options{Partitions: 6, Limit: time.Minute}); !errors.Is(err, kafka.ErrOperator) {
		t.Errorf("moved with an older set: %v", err)
	}
	b.wait("the hold to end", func() bool { return i.State().Hold == nil && two.Ready() == nil && i.Ready() == nil })
	b.produce(movedEvents(2, 0, 200)...)
	b.drain(i, "signals.raw")
	b.checkOnce(200)
}

// TestMoveFinished protects that the topics of earlier generations are deleted once nothing in them is left to
// forward, and so are the topics of moves that were undone. The app goes on, also after a restart.
func TestMoveFinished(t *testing.T) {
	t.Parallel()
	b := newBench(t, benchRoutes)
	b.createTopic("signals.raw", 4)
	i := b.ready(b.start(b.config("one")))
	b.produce(movedEvents(1, 0, 100)...)
	b.drain(i, "signals.raw")
	_, err := b.mover().Move(t.Context(), move.Options{Partitions: 6, Limit: time.Minute, StopBefore: switchover.Holding})
	if _, err2 := b.mover().Abort(t.Context(), "tester"); !errors.Is(err, move.ErrStopped) || err2 != nil {
		t.Fatalf("stopped run: %v, abort: %v", err, err2)
	}
	b.move(move.Options{Partitions: 5, Limit: time.Minute})
	b.awaitGeneration(i, 3)
	finished, err := b.mover().Finish(t.Context())
	must(t, err)
	want := []string{"app-repartition", "app-repartition-changelog", "app-repartition-2", "app-repartition-2-changelog"}
	if !slices.Equal(finished.Deleted, want) {
		t.Errorf("deleted %v", finished.Deleted)
	}
	if left := b.topicsOf(want...); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
	b.produce(movedEvents(2, 0, 200)...)
	b.drain(i, "signals.raw")
	b.checkOnce(200)
	must(t, i.stop())
	i = b.ready(b.start(b.config("one")))
	b.produce(movedEvents(3, 0, 300)...)
	b.drain(i, "signals.raw")
	b.checkOnce(300)
	if again, err := b.mover().Finish(t.Context()); err != nil || len(again.Deleted) > 0 {
		t.Errorf("finished again: %v, %v", again, err)
	}
}

// TestPendingErasureMoves protects that the new task applies a request to erase a key that no old task has applied
// when the switch acts.
func TestPendingErasureMoves(t *testing.T) {
	t.Parallel()
	b := newBench(t, benchRoutes)
	b.createTopic("signals.raw", 4)
	cfg := b.config("one")
	i := b.ready(b.start(cfg))
	b.produce(signal("a", 0, testTime), signal("b", 1, testTime))
	b.drain(i, "signals.raw")
	inspector := b.inspector(cfg)
	b.stopMove(move.Options{Partitions: 9, Limit: time.Minute, StopBefore: switchover.Acted})
	key := b.derive(signal("a", 0, testTime))
	_, err := inspector.Forget(t.Context(), []front.Target{{Keys: []rules.Derived{key}}}, front.ForgetOptions{Timeout: time.Second, By: "test"})
	if len(b.erasures()) != 1 {
		t.Fatalf("%d requests, %v", len(b.erasures()), err)
	}
	b.move(move.Options{Partitions: 9, Limit: time.Minute})
	b.awaitGeneration(i, 2)
	b.erasuresApplied()
	b.produce(signal("a", 2, testTime), signal("b", 3, testTime))
	b.drain(i, "signals.raw")
	if n := len(b.read("signals.unique")); n != 3 {
		t.Errorf("%d events emitted, expected that of the erased key again", n)
	}
}

// TestCountsMove protects that the total of judged events and of duplicates is the same after a move, and goes on
// from there. The new tasks count the keys again, and know the count before the next event.
func TestCountsMove(t *testing.T) {
	t.Parallel()
	b := newBench(t, benchRoutes)
	b.createTopic("signals.raw", 4)
	cfg := b.config("one")
	i := b.ready(b.start(cfg))
	counts := func() (keys, judged, duplicates uint64) {
		t.Helper()
		for _, k := range b.keyCounts(cfg) {
			keys, judged, duplicates = keys+k.Total, judged+k.Judged, duplicates+k.Duplicates
		}
		return keys, judged, duplicates
	}
	expect := func(when string, events, n int) {
		t.Helper()
		keys, judged, duplicates := counts()
		if keys != uint64(n) || judged != uint64(events) || duplicates != uint64(events-n) {
			t.Errorf("%s: %d keys, %d judged, %d duplicates, want %d, %d and %d", when, keys, judged, duplicates, n, events, events-n)
		}
	}
	first := movedEvents(1, 0, 200)
	b.produce(first...)
	b.drain(i, "signals.raw")
	expect("before", len(first), 200)
	events := len(first)
	for n, to := range []int32{9, 3} {
		b.move(move.Options{Partitions: to, Limit: time.Minute})
		b.awaitGeneration(i, int64(n)+2)
		cfg.Partitions = to
		b.wait("the keys to be counted", func() bool { keys, _, _ := counts(); return keys == 200 })
		expect(fmt.Sprintf("moved to %d partitions", to), events, 200)
		more := movedEvents(uint64(n)+2, 0, 200)
		b.produce(more...)
		b.drain(i, "signals.raw")
		events += len(more)
		expect(fmt.Sprintf("duplicates after the move to %d partitions", to), events, 200)
	}
}
