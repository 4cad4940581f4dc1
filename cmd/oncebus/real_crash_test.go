//go:build unix

package main_test

import (
	"context"
	"os"
	"testing"

	"github.com/twmb/franz-go/pkg/kadm"
)

// crashSettings make transactions long enough to be hit in the middle, and have the stores write runs all the time, so that a
// restart has a position to go on from.
var crashSettings = []string{"COMMIT_INTERVAL=400ms", "STATE_FLUSH_ROWS=50", "STATE_FLUSH_AGE=50ms"}

// changelogRecords is how many offsets the changelogs of the app hold, from start to end: what a rebuild reads, transaction
// markers included.
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

// checkTail checks that a restarted process took its tasks up from where its state directory was, not from the start.
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

// killInTransaction kills the process while a transaction of its is open, with traffic under way. The transaction may end
// between the look and the kill: then the process is started again for another try.
func (w *world) killInTransaction(s *service, all []*traffic) {
	w.t.Helper()
	const tries = 8
	for range tries {
		send(w, 200, all...)
		w.awaitOpenTransaction("signals.unique")
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

// A process is stopped by SIGTERM, then killed, each in the middle of a transaction; events pile up while it is away; it comes
// back on its state directory, reading the changelog's tail only. Then the directory is deleted: it comes back on the whole
// changelog. Every event still comes out once.
func TestRealRestart(t *testing.T) {
	t.Parallel()
	w := newWorld(t, realRoutes)
	w.createTopics(nil, realInputs...)
	all := w.realTraffic()
	s := w.start("a", crashSettings...)
	s.awaitReady()
	send(w, 2000, all...)
	w.drained(realInputs, realOutputs)

	send(w, 200, all...)
	w.awaitOpenTransaction("signals.unique")
	s.stop()
	// A stop ends its transactions; a death leaves them to the restart.
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

// One of two processes is killed in the middle of a transaction and stays away: the other takes its tasks over, state
// included. Then the first returns on its state directory and catches up from there.
func TestRealTakeover(t *testing.T) {
	t.Parallel()
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
