//go:build unix

package main_test

import (
	"os"
	"testing"

	"oncebus/cmd/oncebus/cli"
)

// crashSettings make transactions long enough for a kill within one. They make the
// stores write runs often, so that a restart continues at the position of a run.
var crashSettings = []string{"COMMIT_INTERVAL=400ms", "STATE_FLUSH_ROWS=50", "STATE_FLUSH_AGE=50ms", "LEAVE_ON_STOP=false"}

// checkTail checks that a restarted process restored its tasks from the position of its state directory, not from the start: it
// read at most half of the rows of all events.
func (w *world) checkTail(s *service, all []*traffic) {
	w.t.Helper()
	got, events := s.restores(), sent(all)
	w.t.Logf("process %s read %d rows of %d events for %d tasks", s.Name, got.rows, events, got.tasks)
	if got.tasks < 2*realPartitions {
		w.t.Errorf("process %s restored %d tasks, want all %d", s.Name, got.tasks, 2*realPartitions)
	}
	if got.fromStart > 0 || got.rows > events/2 {
		w.t.Errorf("process %s read %d rows of %d events, %d tasks from the start: want only the tail", s.Name, got.rows, events, got.fromStart)
	}
}

// sent returns how many new events were sent. Each has a row in the changelog.
func sent(all []*traffic) (events int) {
	for _, tr := range all {
		events += tr.next
	}
	return events
}

// killInTransaction kills the process in an open transaction, during traffic. If the transaction ended before the kill, it starts the
// process again and retries.
func (w *world) killInTransaction(s *service, all []*traffic) {
	w.t.Helper()
	const tries = 8
	for range tries {
		w.sendIntoTransaction("signals.unique", 200, all...)
		s.kill()
		open, err := w.openTransactions(w.t.Context(), w.topicsOf(realOutputs)...)
		if err != nil {
			w.t.Fatal(err)
		}
		if len(open) > 0 {
			return
		}
		w.t.Logf("process %s was killed between two transactions: once more", s.Name)
		s = w.start(s.Name, crashSettings...)
		s.awaitReady()
		w.drained(realInputs, realOutputs)
	}
	w.t.Fatalf("process %s was killed %d times and never in a transaction", s.Name, tries)
}

// TestRealRestart stops a process with SIGTERM and then kills it, both in a
// transaction, while events arrive. It restarts from its state directory and reads
// only the tail of the changelog. After the directory is deleted, it reads all of it.
// Every event is emitted once.
func TestRealRestart(t *testing.T) {
	t.Parallel()
	w := newWorld(t, realRoutes)
	w.createTopics(nil, realInputs...)
	all := w.realTraffic()
	s := w.start("a", crashSettings...)
	s.awaitReady()
	send(w, 2000, all...)
	w.drained(realInputs, realOutputs)

	w.sendIntoTransaction("signals.unique", 200, all...)
	s.stop()
	// A stop ends the transactions; after a kill the restart ends them.
	open, err := w.openTransactions(t.Context(), w.topicsOf(realOutputs)...)
	if err != nil || len(open) > 0 {
		t.Errorf("after SIGTERM transactions are open on %v, %v", open, err)
	}
	send(w, 200, all...)
	s = w.start("a", crashSettings...)
	s.awaitReady()
	w.checkTail(s, all)
	w.drained(realInputs, realOutputs)

	for range 2 {
		w.killInTransaction(s, all)
		send(w, 200, all...)
		s = w.start("a", crashSettings...)
		s.awaitReady()
		w.checkTail(s, all)
		w.drained(realInputs, realOutputs)
	}
	w.checkTraffic(all)

	events := sent(all)
	w.killInTransaction(s, all)
	if err := os.RemoveAll(w.stateDir("a")); err != nil {
		t.Fatal(err)
	}
	s = w.start("a", crashSettings...)
	s.awaitReady()
	if got := s.restores(); got.fromStart < 2*realPartitions || got.rows < events {
		t.Errorf("without its state directory the process read %d rows of %d events, %d tasks from the start", got.rows, events, got.fromStart)
	}
	send(w, 200, all...)
	w.checkTraffic(all)
	s.stop()
	w.selfAudit(cli.ExitStopped)
}

// TestRealTakeover kills one of two processes in a transaction: the other takes over its tasks and restores their state. Then the first
// restarts and catches up from its state directory.
func TestRealTakeover(t *testing.T) {
	w := newWorld(t, realRoutes)
	w.createTopics(nil, realInputs...)
	all := w.realTraffic()
	a, b := w.start("a", crashSettings...), w.start("b", crashSettings...)
	a.awaitReady()
	b.awaitReady()
	awaitSharing(t, 2*realPartitions, a, b)
	send(w, 1000, all...)
	w.drained(realInputs, realOutputs)

	w.killInTransaction(a, all)
	held := b.restores()
	send(w, 300, all...)
	w.checkTraffic(all)
	if now := b.restores(); now.tasks <= held.tasks || now.rows <= held.rows {
		t.Errorf("process b restored %+v before and %+v after the other's death: it took over no state", held, now)
	}

	a = w.start("a", crashSettings...)
	a.awaitReady()
	send(w, 300, all...)
	w.checkTraffic(all)
	a.stop()
	b.stop()
	w.selfAudit(cli.ExitStopped)
}
