package explore_test

import (
	"fmt"

	"oncebus/dedup"
	"oncebus/processor/explore"
)

// shadowModel explores a shadow and its promotion. There are two tasks, two processes, a front that knows neither the
// hold nor the set, and a leader whose hold may end before the act. The model calls dedup.DecideShadow and
// dedup.Decide. The leader waits neither until rows are held nor until logs are drained.
type shadowModel struct{ mistake shadowMistake }

type shadowMistake int

const (
	shadowRight       shadowMistake = iota
	shadowByRouter                  // the router sends the record to the task of the shadow
	shadowOfCopies                  // a copy that is dropped makes a row
	shadowUnjoined                  // the hold ends before all tasks have joined the new set
	shadowHeldForward               // a record by the former rule is forwarded during the hold
	shadowActReleases               // the act itself ends the hold
)

// Each event has an old and a new key, and all events are within one window. Keys are 0 and 1. The task of an old key
// is the key's number; the task of a new key is the other one.
var shadowEvents = [...]struct{ old, new int8 }{{0, 0}, {1, 0}, {0, 1}, {0, 0}}

// frontEvent is the event that only the front sends.
const frontEvent = 1

const shadowQueue = 9 // the maximal number of records in a task's log that are not judged

// The rows of the manifest topic, in the order in which they are written.
const (
	rowNone int8 = iota
	rowHeld
	rowAborted
	rowHeldAgain
	rowActed
	rowReleased
)

// A record in a task's log is the number of an event plus one of these kinds.
const (
	byOldKey  = 1
	byNewKey  = 11
	ofEmitted = 21
	ofCopy    = 31
)

type shadowState struct {
	row       int8 // the newest row of the manifest
	processes [2]struct{ read, set int8 }
	tasks     [2]shadowTask
	sent      [len(shadowEvents)]bool
	// byOld and byNew say which events were emitted by the old rule and by the new rule.
	byOld, byNew   [len(shadowEvents)]bool
	crashes, moves int8
}

type shadowTask struct {
	owner, set int8
	queue      [shadowQueue]int8 // 0 after the last record
	oldRow     bool              // the task has a row of its old key
	newRow     bool              // the task has a row of its new key
}

func (m *shadowModel) model(name string) explore.Model[shadowState] {
	s := shadowState{crashes: 1, moves: 1}
	for i := range s.tasks {
		s.tasks[i].owner, s.tasks[i].set, s.processes[i].set = int8(i), 1, 1
	}
	return explore.Model[shadowState]{
		Name: name, Start: []shadowState{s}, Next: m.next,
		Goal: func(s shadowState) bool {
			return s.row == rowReleased && s.sent == [len(shadowEvents)]bool{true, true, true, true} && s.tasks[0].queue[0] == 0 && s.tasks[1].queue[0] == 0
		},
	}
}

func isHold(row int8) bool { return row == rowHeld || row == rowHeldAgain || row == rowActed }

func (m *shadowModel) next(s shadowState, steps []explore.Step[shadowState]) []explore.Step[shadowState] {
	steps = m.lead(s, steps)
	for i := range s.processes {
		steps = m.process(s, i, steps)
	}
	for i := range s.tasks {
		steps = m.task(s, i, steps)
	}
	if !s.sent[frontEvent] {
		to := s
		to.sent[frontEvent] = true
		to.append(int(shadowEvents[frontEvent].old), byOldKey+frontEvent)
		steps = append(steps, explore.To(to, "the front sends event %d by its old key", frontEvent))
	}
	return steps
}

// lead has the steps of the leader, and the end of its hold by the time limit.
func (m *shadowModel) lead(s shadowState, steps []explore.Step[shadowState]) []explore.Step[shadowState] {
	row := func(row int8, name string) {
		to := s
		to.row = row
		steps = append(steps, explore.To(to, name))
	}
	acted := rowActed
	if m.mistake == shadowActReleases {
		acted = rowReleased
	}
	switch s.row {
	case rowNone:
		row(rowHeld, "the leader holds the input")
	case rowHeld:
		row(rowAborted, "the limit of the hold passes")
		row(acted, "the leader acts")
	case rowAborted:
		row(rowHeldAgain, "a leader holds the input again")
	case rowHeldAgain:
		row(acted, "the leader acts")
	case rowActed:
		if joined := s.tasks[0].set == 2 && s.tasks[1].set == 2; joined || m.mistake == shadowUnjoined {
			row(rowReleased, "the hold ends")
		}
	}
	return steps
}

// process has the steps of a process: it reads the manifest to its end, changes over to the set, routes an event, or
// dies and starts again.
func (m *shadowModel) process(s shadowState, i int, steps []explore.Step[shadowState]) []explore.Step[shadowState] {
	p := s.processes[i]
	if p.read != s.row {
		to := s
		to.processes[i].read = s.row
		steps = append(steps, explore.To(to, "process %d reads row %d", i, int(s.row)))
	}
	if p.read >= rowActed && p.set == 1 {
		to := s
		to.processes[i].set = 2
		steps = append(steps, explore.To(to, "process %d goes over to the set", i))
	}
	if s.crashes > 0 {
		to := s
		to.crashes--
		to.processes[i].read, to.processes[i].set = s.row, 1
		if s.row >= rowActed {
			to.processes[i].set = 2
		}
		steps = append(steps, explore.To(to, "process %d dies and starts again", i))
	}
	for e := range shadowEvents {
		if s.sent[e] || e == frontEvent || isHold(p.read) {
			continue
		}
		to := s
		to.sent[e] = true
		m.route(&to, p.set, e)
		steps = append(steps, explore.To(to, "process %d routes event %d by the key of set %d", i, e, int(p.set)))
	}
	return steps
}

func (m *shadowModel) route(s *shadowState, set int8, e int) {
	if set == 2 {
		s.append(taskOfNew(e), int8(byNewKey+e))
		return
	}
	s.append(int(shadowEvents[e].old), int8(byOldKey+e))
	if m.mistake == shadowByRouter {
		s.append(taskOfNew(e), int8(ofEmitted+e))
	}
}

func taskOfNew(e int) int { return 1 - int(shadowEvents[e].new) }

func (s *shadowState) append(task int, record int8) {
	for i, r := range s.tasks[task].queue {
		if r == 0 {
			s.tasks[task].queue[i] = record
			return
		}
	}
	panic("a queue is full")
}

// task has the steps of a task: it moves to the other process, joins the set of its process during the hold, or
// judges its next record.
func (m *shadowModel) task(s shadowState, i int, steps []explore.Step[shadowState]) []explore.Step[shadowState] {
	t := s.tasks[i]
	if s.moves > 0 {
		to := s
		to.moves--
		to.tasks[i].owner = 1 - t.owner
		steps = append(steps, explore.To(to, "task %d moves to process %d", i, int(1-t.owner)))
	}
	owner := s.processes[t.owner]
	if owner.set < t.set {
		return steps // the task's checkpoint is of a newer set than the process has
	}
	if isHold(owner.read) && owner.set > t.set {
		to := s
		to.tasks[i].set = owner.set
		steps = append(steps, explore.To(to, "task %d joins set %d", i, int(owner.set)))
	}
	record := t.queue[0]
	held := isHold(owner.read) && m.mistake != shadowHeldForward
	if record == 0 || record >= byNewKey && record < ofEmitted && owner.set == 1 || record < byNewKey && owner.set == 2 && held {
		return steps
	}
	to := s
	to.tasks[i].set = owner.set
	copy(to.tasks[i].queue[:], t.queue[1:])
	to.tasks[i].queue[shadowQueue-1] = 0
	err := m.judge(&to, i, record)
	step := explore.To(to, "task %d judges record %d in set %d", i, int(record), int(owner.set))
	step.Err = err
	return append(steps, step)
}

var shadowWindow = dedup.Window{Size: 1}

func (m *shadowModel) judge(s *shadowState, i int, record int8) error {
	t := &s.tasks[i]
	switch {
	case record >= ofEmitted:
		emitted := record < ofCopy || m.mistake == shadowOfCopies
		_, _, store := dedup.DecideShadow(dedup.Event{}, emitted, dedup.Row{}, t.newRow, shadowWindow, 0)
		t.newRow = t.newRow || store
		return nil
	case record >= byNewKey:
		return s.judgeNew(t, int(record-byNewKey))
	case t.set == 2:
		e := int(record - byOldKey)
		s.append(taskOfNew(e), int8(byNewKey+e))
		return nil
	}
	e := int(record - byOldKey)
	verdict, _ := dedup.Decide(dedup.Event{}, dedup.Row{}, t.oldRow, shadowWindow, 0)
	fate := int8(ofCopy + e)
	var err error
	if verdict == dedup.Unique {
		fate = int8(ofEmitted + e)
		for other := range shadowEvents {
			if s.byNew[other] && shadowEvents[other].new == shadowEvents[e].new || s.byOld[other] && shadowEvents[other].old == shadowEvents[e].old {
				err = fmt.Errorf("event %d is emitted by the old rule after event %d", e, other)
			}
		}
		t.oldRow, s.byOld[e] = true, true
	}
	if m.mistake != shadowByRouter {
		s.append(taskOfNew(e), fate)
	}
	return err
}

// judgeNew judges an event by the new rule and compares the verdict with what was already emitted.
func (s *shadowState) judgeNew(t *shadowTask, e int) error {
	verdict, _ := dedup.Decide(dedup.Event{}, dedup.Row{}, t.newRow, shadowWindow, 0)
	before := -1
	for other := range shadowEvents {
		if (s.byNew[other] || s.byOld[other]) && shadowEvents[other].new == shadowEvents[e].new {
			before = other
		}
	}
	switch {
	case verdict == dedup.Unique && before >= 0:
		return fmt.Errorf("event %d is emitted by the new rule after event %d", e, before)
	case verdict != dedup.Unique && before < 0:
		return fmt.Errorf("event %d is dropped, and no event with its new key was emitted", e)
	case verdict == dedup.Unique:
		t.newRow, s.byNew[e] = true, true
	}
	return nil
}
