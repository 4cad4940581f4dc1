package processor

import (
	"oncebus/processor/app"
)

// Two kinds of task write a checkpoint although they have no input. Under the hold of a promotion each task of
// the repartition topic does so, to state that it uses the process's route set: see app.Promote. After a move of
// the keys to other partitions each task does so once its restore has counted its keys. Otherwise commands would
// not know the counts before the task's next event.

// owesCheckpoint reports whether a task has to write such a checkpoint. hold is the hold in force; nil for
// none.
func (t *task) owesCheckpoint(hold *app.Hold) bool {
	if !t.judges() {
		return false
	}
	recounted := t.Committed.Counted && t.Committed.Sequence == 0 // see wire.FirstOf
	return recounted || hold.IsPromotion() && t.Repartitioned && t.Committed.Set < t.App.Set
}

// owing reports whether any task has to write such a checkpoint.
func (s *taskSet) owing() bool {
	hold := s.holds.InForce()
	for _, t := range s.tasks {
		if t.owesCheckpoint(hold) {
			return true
		}
	}
	return false
}

// joinOwing adds the tasks that have to write such a checkpoint to the open transaction.
func (s *taskSet) joinOwing(hold *app.Hold) {
	if !s.owing() {
		return
	}
	for _, t := range s.sorted() {
		if t.owesCheckpoint(hold) {
			t.JoinTransaction()
		}
	}
}

// released returns the tasks that need not wait any more after a promotion. Each of them waits before a record
// whose key follows the rule before the promotion, and the promotion's hold has ended.
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
