package processor

import (
	"slices"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"oncebus/processor/switchover"
	"oncebus/processor/wire"
)

// In a switch to another generation of partitions each old task closes: it writes a checkpoint that is marked as
// closed, and after that no process judges its records. The closed task writes no further row, so the switch can
// copy all of its rows up to that checkpoint. If the switch is aborted, the process of the task restores the
// task, whose next checkpoint is an open one again. Old tasks are the tasks of the repartition topic, and of
// prepartitioned topics that become routed.

// actionOf returns what a task has to do in a switch, according to what its process has read about switches in
// the manifest topic so far.
func (s *taskSet) actionOf(t *task) switchover.Action {
	seen, closes := s.holds.SwitchOf(t.ID.Topic, t.Repartitioned)
	generation := s.rt.Topology.Generation
	switch {
	case t.Committed.Closed == 0 && seen.Number <= generation:
		return switchover.Judge // a task of the newest generation
	case closes:
		return switchover.OldTask(seen, generation, t.Committed.Closed)
	}
	return switchover.StayingTask(seen, generation, t.Committed.Closed)
}

// closes reports whether a task has to write its closed checkpoint now. It may do so only when all of its rows
// are in the changelog, and when it has stored all events that it forwarded unchecked in a bypass.
func (s *taskSet) closes(t *task) bool {
	unstored := func(p wire.BypassedOffset) bool { return p.To > t.Open.Next }
	return t.state == running && s.actionOf(t) == switchover.Close && !t.Committed.Incomplete && !t.Open.Incomplete && !slices.ContainsFunc(t.Open.Bypassed, unstored)
}

// closing reports whether a task has to close.
func (s *taskSet) closing() bool {
	if s.holds.Switch().Phase != switchover.Closing {
		return false
	}
	for _, t := range s.tasks {
		if s.closes(t) {
			return true
		}
	}
	return false
}

// joinClose adds the tasks that have to close to the open transaction, and marks their checkpoints as closed.
// The records that these tasks have judged in this transaction are the last ones they judge.
func (s *taskSet) joinClose() {
	seen := s.holds.Switch()
	if seen.Phase != switchover.Closing {
		return
	}
	for _, t := range s.sorted() {
		if s.closes(t) {
			t.JoinTransaction()
			t.Open.Closed = seen.Number
		}
	}
}

// closeCommitted runs after the commit of a transaction with this task. If the transaction had the closed
// checkpoint of the task, the task now waits for the end of the switch.
func (s *taskSet) closeCommitted(client *kgo.Client, t *task) {
	if t.Committed.Closed != 0 && t.state == running {
		s.pause(client, t)
		s.awaitSwitch(t)
	}
}

// awaitSwitch makes a closed task wait until its switch is over.
func (s *taskSet) awaitSwitch(t *task) {
	if t.state != running {
		t.to(running)
	}
	t.to(waiting)
	t.since = time.Now()
	t.Log.Info("task closed for a switch", "switch", t.Committed.Closed, "next", t.Committed.Next)
	s.readManifestNow()
	s.published = s.published.Add(-publishInterval) // the commit publishes the state
}

// reopen restores the closed tasks whose switch was aborted.
func (s *taskSet) reopen(client *kgo.Client) (changed bool) {
	for _, t := range s.sorted() {
		if t.state == waiting && t.Committed.Closed != 0 && s.actionOf(t) != switchover.Wait {
			t.Log.Info("task opens again, its switch was aborted", "switch", t.Committed.Closed)
			s.restoreAgain(client, t)
			changed = true
		}
	}
	return changed
}
