//go:build unix

package main_test

import (
	"context"
	"os"
	"testing"

	"github.com/twmb/franz-go/pkg/kadm"
)

// crashSettings make transactions long enough for a kill within one. They make the
// stores write runs often, so that a restart continues at the position of a run.
var crashSettings = []string{"COMMIT_INTERVAL=400ms", "STATE_FLUSH_ROWS=50", "STATE_FLUSH_AGE=50ms", "LEAVE_ON_STOP=false"}

// changelogRecords returns the number of offsets of the app's changelogs, including
// control records, which a rebuild reads.
func (w *world) changelogRecords() int {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(w.t.Context(), realDeadline)
	defer cancel()
	topics := []string{w.app + "-repartition-changelog", w.app + "-" + w.topic("orders.raw") + "-changelog"}
	starts, err := w.admin.ListStartOffsets(ctx, topics...)
	if err != nil {
		w.t.Fatal(err)
	}
	ends, err := w.admin.ListEndOffsets(ctx, topics...)
	if err != nil {
		w.t.Fatal(err)
	}
	n := 0
	ends.Each(func(o kadm.ListedOffset) {
		start, ok := starts.Lookup(o.Topic, o.Partition)
		if !ok || o.Err != nil || start.Err != nil {
			w.t.Fatalf("changelog %s/%d: %v, %v", o.Topic, o.Partition, o.Err, start.Err)
		}
		n += int(o.Offset - start.Offset)
	})
	return n
}

// checkTail checks that a restarted process restored its tasks from the position of its state directory, not from the start.
func (w *world) checkTail(s *service) {
	w.t.Helper()
	got, all := s.restores(), w.changelogRecords()
	w.t.Logf("process %s read %d of %d changelog records for %d tasks", s.Name, got.rows, all, got.tasks)
	if got.tasks < 2*realPartitions {
		w.t.Errorf("process %s restored %d tasks, want all %d", s.Name, got.tasks, 2*realPartitions)
	}
	if got.fromStart > 0 || got.rows > all/2 {
		w.t.Errorf("process %s read %d of %d changelog records, %d tasks from the start: want only the tail", s.Name, got.rows, all, got.fromStart)
	}
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
	w.checkTail(s)
	w.drained(realInputs, realOutputs)

	for range 2 {
		w.killInTransaction(s, all)
		send(w, 200, all...)
		s = w.start("a", crashSettings...)
		s.awaitReady()
		w.checkTail(s)
		w.drained(realInputs, realOutputs)
	}
	w.checkTraffic(all)

	events := all[0].next + all[1].next + all[2].next // each has a row in the changelog
	w.killInTransaction(s, all)
	if err := os.RemoveAll(w.stateDir("a")); err != nil {
		t.Fatal(err)
	}
	before := w.changelogRecords()
	s = w.start("a", crashSettings...)
	s.awaitReady()
	if got := s.restores(); got.fromStart < 2*realPartitions || got.rows < events {
		t.Errorf("without its state directory the process read %d rows, %d tasks from the start, of a changelog of %d records",
			got.rows, got.fromStart, before)
	}
	send(w, 200, all...)
	w.checkTraffic(all)
	s.stop()
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
}
