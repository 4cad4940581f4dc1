//go:build unix

package main_test

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"

	"oncebus/processor/kafkatest/program"
)

// moveSettings end a session soon, so that a killed process delays no hold for long.
var moveSettings = []string{"SESSION_TIMEOUT=6s", "LEAVE_ON_STOP=false"}

// movePhases are what the command prints when it begins a phase.
var movePhases = []string{"preparing:", "holding:", "closing:", "acted:"}

// moves starts 'oncebus move' as a process.
func (w *world) moves(name string, to int) *program.Process {
	w.t.Helper()
	return w.command(name, "move", "--partitions", fmt.Sprint(to))
}

// killMove runs 'oncebus move' and kills it in a phase.
func (w *world) killMove(phase, name string, args ...string) {
	w.t.Helper()
	p := w.command(name, append([]string{"move"}, args...)...)
	w.awaitText(p, phase)
	if err := p.Kill(); err != nil {
		w.t.Fatal(err)
	}
}

// moved waits for the end of a command, which must have moved the keys.
func (w *world) moved(p *program.Process) {
	w.t.Helper()
	w.succeeds(p)
	text, _ := p.Log.Text()
	w.t.Logf("%s:\n%s", p.Name, text)
}

// awaitTasks waits until the processes have the tasks of so many partitions, and all run.
func awaitTasks(t *testing.T, partitions int, services ...*service) {
	t.Helper()
	for _, s := range services {
		s.awaitReady()
	}
	awaitSharing(t, partitions, services...)
}

// TestRealMove moves the keys of two processes to other partitions while events and duplicates
// arrive: once without a fault, once with the command killed in each phase, and once with a
// process killed. A further move is undone. Every event is emitted once.
func TestRealMove(t *testing.T) {
	t.Parallel()
	rate := int(loadRate)
	w := newLoadedWorld(t, seedRoutes)
	w.createTopics(nil, seedInputs...)
	a, b := w.start("a", moveSettings...), w.start("b", moveSettings...)
	awaitTasks(t, realPartitions, a, b)
	pauses, stopWatching := w.watchOutput("signals.unique")
	var senders sync.WaitGroup
	traffic := &seedTraffic{w: w, keys: seedKeys}
	sending, stopSending := context.WithCancel(t.Context())
	senders.Go(func() { traffic.run(sending, rate) })
	w.awaitOutputs(pauses)
	pauses.begin("no move")
	w.awaitSeeds(b.Process, int64(2*rate))

	pauses.begin("6 to 12, nothing killed")
	w.moved(w.moves("move-12", 12))
	awaitTasks(t, 12, a, b)

	pauses.begin("12 to 18, command killed in each phase")
	for _, phase := range movePhases {
		w.killMove(phase, "move-18-"+strings.TrimSuffix(phase, ":"), "--partitions", "18")
	}
	stdout, stderr, code := w.oncebus("", "abort") // completes a move that has acted
	t.Logf("abort after the last kill: %d\n%s%s", code, stdout, stderr)
	awaitTasks(t, 18, a, b)

	pauses.begin("18 to 5, process killed")
	p := w.moves("move-5", 5)
	w.awaitText(p, "holding:")
	a.kill()
	a = w.start("a", moveSettings...)
	w.moved(p)
	awaitTasks(t, 5, a, b)

	pauses.begin("5 to 9, undone")
	w.killMove("closing:", "move-9", "--partitions", "9")
	stdout, stderr, code = w.oncebus("", "abort")
	t.Logf("abort: %d\n%s%s", code, stdout, stderr)
	partitions := 5
	if !strings.Contains(stdout, "undone") {
		partitions = 9 // the command had acted before it was killed
	}
	awaitTasks(t, partitions, a, b)
	pauses.begin("")
	stopSending()
	senders.Wait()
	if traffic.err != nil {
		t.Fatal(traffic.err)
	}
	w.taken(w.topicsOf(seedInputs))
	for n := 2; n <= 5; n++ {
		if topic := fmt.Sprintf("%s-repartition-%d", w.app, n); w.exists(topic) {
			eventually(t, topic+" is processed", func(ctx context.Context) error { return w.repartitionDone(ctx, topic) })
		}
	}
	w.drained(seedInputs, seedOutputs)
	stopWatching()
	w.checkMoved(traffic)
	a.stop()
	b.stop()
}

// checkMoved compares the output with what was sent: each id once.
func (w *world) checkMoved(traffic *seedTraffic) {
	w.t.Helper()
	checkEmitted(w.t, "t", traffic.next, w.output("signals.unique"))
	if dead := w.output("dead-letter"); len(dead) > 0 {
		w.t.Errorf("%d dead letters", len(dead))
	}
}
