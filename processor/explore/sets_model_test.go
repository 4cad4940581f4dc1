package explore_test

import (
	"errors"
	"fmt"
	"math"

	"oncebus/dedup"
	"oncebus/processor/explore"
)

// setsModel explores route sets and the change of a window. Two operators apply two routes files at the same time,
// two processes follow late, and two tasks can move between the processes at any time. The model calls
// dedup.Window.ChangeTo, Admit and Decide.
//
// All that a process knows of a route set is one number, and the checkpoint of a task names the set of the task. If a
// process dies, therefore, only the owner of its tasks changes; the model needs no crash.
type setsModel struct {
	events  int8
	tasks   int8
	mistake setsMistake
}

type setsMistake int

const (
	setsRight      setsMistake = iota
	setsNotFenced              // an operator may still commit after another operator has replaced its writer
	setsNotRead                // an operator does not read again which set is in force once its writer has begun
	behindJudges               // a process judges a task although the task is already at a newer set
	changeUnknown              // a task does not record since when it knows rows
	evictsByOwnSet             // rows are evicted by the set of the process, not by the set of the task
	retiredUnknown             // a route that the set in force no longer has counts as unknown
)

// setsFile is a routes file: the window of its first namespace, and whether it contains the second and the third
// route.
type setsFile struct {
	window        dedup.Window
	second, third bool
}

// The first file is in force at the start. Each operator applies one of the other two. The last file has the same
// window size as the first.
var setsFiles = [3]setsFile{
	{dedup.Window{Size: 2, Skew: math.MaxInt32}, true, false},
	{dedup.Window{Size: 1, Skew: math.MaxInt32}, false, true},
	{dedup.Window{Size: 2, Grace: 1, Skew: math.MaxInt32}, true, false},
}

var setsTimes = [...]int8{0, 2, 3}

// setsLeast is the smallest window size in any set.
const setsLeast = 1

type setsState struct {
	files     [4]int8 // index of the file of each set, by set number from 1
	inForce   int8
	operators [2]setsOperator
	current   int8 // the operator whose writer began last and is not fenced; -1 for none
	editions  [2]int8
	tasks     [2]setsTask
	sent      int8
}

// setsOperator is one operator. It remembers which set was in force when it planned, and which set was in force when
// it read again after its writer had begun. 0 means that this has not happened.
type setsOperator struct {
	planned, read int8
	done          bool
}

type setsTask struct {
	owner int8
	set   int8
	// stream is stream time, -1 for none. changed, since and late belong to the task's window.
	stream, since, late int8
	changed             bool
	// row is the first seen time of the key's row, -1 for none. The row may be evicted.
	row     int8
	evicted bool
	waiting setsRecord
}

// setsRecord is a routed record that waits for the task. Its route is 1 to 3; 0 means that no record waits.
type setsRecord struct {
	route int8
	other bool // the record has a key that no other record has
	time  int8
}

func (m *setsModel) model(name string) explore.Model[setsState] {
	s := setsState{files: [4]int8{1: 0}, inForce: 1, current: -1, editions: [2]int8{1, 1}}
	for i := range s.tasks {
		s.tasks[i] = setsTask{owner: int8(i), set: 1, stream: -1, row: -1}
	}
	return explore.Model[setsState]{
		Name: name, Start: []setsState{s}, Next: m.next, Limit: 3_000_000,
		Goal: func(s setsState) bool {
			return s.sent == m.events && s.tasks[0].waiting.route == 0 && s.tasks[1].waiting.route == 0
		},
	}
}

func (m *setsModel) next(s setsState, steps []explore.Step[setsState]) []explore.Step[setsState] {
	for i := range int8(2) {
		steps = m.apply(s, i, steps)
		if to := s; s.editions[i] < s.inForce {
			to.editions[i] = s.inForce
			steps = append(steps, explore.To(to, "process %d adopts set %d", int(i), int(s.inForce)))
		}
		steps = m.send(s, i, steps)
		if i < m.tasks {
			steps = m.task(s, i, steps)
		}
	}
	return steps
}

// apply has the steps of an operator. When its writer begins, the writer of the other operator is fenced.
func (m *setsModel) apply(s setsState, i int8, steps []explore.Step[setsState]) []explore.Step[setsState] {
	o := s.operators[i]
	to := s
	switch {
	case o.done:
	case o.planned == 0:
		to.operators[i].planned = s.inForce
		steps = append(steps, explore.To(to, "operator %d plans for set %d", int(i), int(s.inForce)))
	case o.read == 0:
		to.current, to.operators[i].read = i, s.inForce
		if m.mistake == setsNotRead {
			to.operators[i].read = o.planned
		}
		steps = append(steps, explore.To(to, "the writer of operator %d begins", int(i)))
	case o.read != o.planned, s.current != i && m.mistake != setsNotFenced:
		to.operators[i] = setsOperator{}
		steps = append(steps, explore.To(to, "operator %d has to plan again", int(i)))
	default:
		number := o.read + 1
		to.files[number], to.inForce = i+1, number
		to.operators[i] = setsOperator{done: true}
		step := explore.To(to, "operator %d puts set %d in force", int(i), int(number))
		if number <= s.inForce {
			step.Err = fmt.Errorf("set %d was written twice", number)
		}
		steps = append(steps, step)
	}
	return steps
}

// send routes a record to a task for which no record waits, by the set that process p has.
func (m *setsModel) send(s setsState, p int8, steps []explore.Step[setsState]) []explore.Step[setsState] {
	if s.sent == m.events {
		return steps
	}
	file := setsFiles[s.files[s.editions[p]]]
	for i := range s.tasks[:m.tasks] {
		if s.tasks[i].waiting.route != 0 {
			continue
		}
		route := func(r setsRecord, name string) {
			to := s
			to.sent++
			to.tasks[i].waiting = r
			steps = append(steps, explore.To(to, name, int(p), int(r.time), i))
		}
		for _, at := range setsTimes {
			route(setsRecord{1, false, at}, "process %d routes an event at %d to task %d")
			route(setsRecord{1, true, at}, "process %d routes an event of another key at %d to task %d")
		}
		if file.second {
			route(setsRecord{route: 2}, "process %d routes an event of route 2 (%d) to task %d")
		}
		if file.third {
			route(setsRecord{route: 3}, "process %d routes an event of route 3 (%d) to task %d")
		}
	}
	return steps
}

// task has the steps of a task: it moves to another process, evicts a row, or judges its record.
func (m *setsModel) task(s setsState, i int8, steps []explore.Step[setsState]) []explore.Step[setsState] {
	t := &s.tasks[i]
	moved := s
	moved.tasks[i].owner = 1 - t.owner
	steps = append(steps, explore.To(moved, "task %d moves to process %d", int(i), int(1-t.owner)))
	edition := s.editions[t.owner]
	if edition < t.set && m.mistake != behindJudges {
		return steps
	}
	evictSet := t.set
	if m.mistake == evictsByOwnSet {
		evictSet = edition
	}
	if to := s; t.row >= 0 && !t.evicted && int64(t.row) < m.window(&s, t, evictSet).Horizon(stream(t)) {
		to.tasks[i].evicted = true
		steps = append(steps, explore.To(to, "process %d evicts the row of task %d", int(t.owner), int(i)))
	}
	if t.waiting.route == 0 || !m.knows(&s, edition, t.waiting.route) {
		return steps
	}
	return append(steps, m.judge(s, i, edition))
}

// knows reports whether a set, or a set before it, contains a route.
func (m *setsModel) knows(s *setsState, set, route int8) bool {
	for n := set; n > 0; n-- {
		f := setsFiles[s.files[n]]
		if route == 1 || route == 2 && f.second || route == 3 && f.third {
			return true
		}
		if m.mistake == retiredUnknown {
			return false
		}
	}
	return false
}

func stream(t *setsTask) int64 {
	if t.stream < 0 {
		return dedup.NoStreamTime
	}
	return int64(t.stream)
}

// window returns the window that a set gives to a task, together with what the task knows of earlier changes.
func (m *setsModel) window(s *setsState, t *setsTask, set int8) dedup.Window {
	w := setsFiles[s.files[set]].window
	if t.changed {
		w = w.Known(int64(t.since), int64(t.late))
	}
	return w
}

// judge moves the task to the set of its process, and then judges the record that waits.
func (m *setsModel) judge(s setsState, i, edition int8) explore.Step[setsState] {
	to := s
	t := &to.tasks[i]
	before := m.window(&s, t, t.set)
	w := setsFiles[s.files[edition]].window
	if edition != t.set && m.mistake != changeUnknown {
		w = before.ChangeTo(w, stream(t))
	} else {
		w.Changed, w.Since, w.LateBefore = before.Changed, before.Since, before.LateBefore
	}
	if w.IsWhole(stream(t)) {
		w.Changed = false
	}
	t.changed, t.since, t.late = w.Changed, 0, 0
	if w.Changed {
		t.since, t.late = int8(w.Since), int8(w.LateBefore)
	}
	wentBack := edition < t.set
	t.set = edition
	r := t.waiting
	t.waiting = setsRecord{}
	var err error
	if r.route == 1 {
		err = m.decide(t, w, r)
	}
	step := explore.To(to, "task %d judges a record of route %d by set %d", int(i), int(r.route), int(edition))
	if step.Err = err; wentBack {
		step.Err = errors.New("the task went back to an older set")
	}
	return step
}

// decide judges an event three times and compares the verdicts: with the rows that eviction has left, with all rows,
// and, where the window is full, by a memory that never purges.
func (m *setsModel) decide(t *setsTask, w dedup.Window, r setsRecord) error {
	at, s := int64(r.time), stream(t)
	verdict, _ := w.Admit(at, s, at)
	if verdict == dedup.Late {
		if at >= s {
			return errors.New("an event at stream time was late")
		}
		return nil
	}
	t.stream = int8(dedup.NextStreamTime(s, at, at))
	if r.other {
		return nil
	}
	ev, all := dedup.Event{Time: at}, dedup.Row{First: int64(t.row)}
	verdict, _ = dedup.Decide(ev, all, t.row >= 0 && !t.evicted, w, s)
	whole, _ := dedup.Decide(ev, all, t.row >= 0, w, s)
	emits := verdict == dedup.Unique || verdict == dedup.AfterWindow
	distance := max(at-all.First, all.First-at)
	switch {
	case verdict.IsDuplicate() != whole.IsDuplicate():
		return fmt.Errorf("%v with the rows that are left, and %v with all", verdict, whole)
	case t.row < 0:
	case emits && distance <= setsLeast:
		return fmt.Errorf("emitted at %d and at %d, which no window allows", t.row, at)
	case at >= w.FullFrom() && verdict != dedup.Late && verdict.IsDuplicate() != (distance <= w.Size):
		return fmt.Errorf("%v at %d, first seen at %d, although the window is full from %d on", verdict, at, t.row, w.FullFrom())
	}
	if emits {
		t.row, t.evicted = r.time, false
	}
	return nil
}
