package processor

import (
	"oncebus/processor/app"
)

// Under the hold of a promotion every task writes a checkpoint of the process's route set, also
// one without input. See app.Promote.

// unjoined reports whether a task has to write a checkpoint of the set of its process.
func (t *task) unjoined() bool {
	return t.Repartitioned && t.judges() && t.Committed.Set < t.App.Set
}

// joining reports whether a task has to join the set under the hold in force.
func (s *taskSet) joining() bool {
	if !s.holds.InForce().IsPromotion() {
		return false
	}
	for _, t := range s.tasks {
		if t.unjoined() {
			return true
		}
	}
	return false
}

// joinSwitch adds the tasks that have to join the set to the open transaction.
func (s *taskSet) joinSwitch(hold *app.Hold) {
	if !hold.IsPromotion() {
		return
	}
	for _, t := range s.sorted() {
		if t.unjoined() {
			t.JoinTransaction()
		}
	}
}

// released returns the tasks that may go on: they wait with a record of the rule before a
// promotion, and its hold has ended.
func (s *taskSet) released() (held []*task) {
	if s.holds.InForce().IsPromotion() {
		return nil
	}
	for _, t := range s.sorted() {
		if t.state == waiting && t.unknown != nil && t.unknown.Held {
			held = append(held, t)
		}
	}
	return held
}
