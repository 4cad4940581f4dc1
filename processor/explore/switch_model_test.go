package explore_test

import (
	"errors"

	"oncebus/processor/explore"
)

// A switchModel explores the move of the keys from one partition to two: hold, held rows,
// drain, closed checkpoint, copy, act, release, or an abort before the act.
//
// Two processes route one raw partition each, and read the manifest topic late. A front sleeps
// with a record for the old partition. Two leaders run the steps of the switch, and die at any
// time: all they know is in rows, and each row is written under the manifest's transactional
// id, by the leader that began last. A process that dies loses its open transaction only, which
// is the same as a step that has not happened yet.
type switchModel struct {
	mistake switchMistake
	leaders int8
	routed  [2][]int8
	aborts  bool
}

type switchMistake int

const (
	switchesRight    switchMistake = iota
	actsUnheld                     // the leader does not wait for the rows of all held partitions
	actsUndrained                  // the leader does not wait for the old task to pass the ends
	endsBeforeHeld                 // the leader lists the ends before all partitions are held
	closesUncopied                 // the leader does not wait for the copy of the closed checkpoint
	judgesClosed                   // the old task judges what comes after its closed checkpoint
	dropsClosed                    // the old task skips what comes after its closed checkpoint
	leadersNotFenced               // a leader that was replaced may still write a row
	holdNotRead                    // a router that starts under a hold does not read it first
)

type phase int8

const (
	switchNone phase = iota
	switchHeld
	switchActed // the new partitions are in force
	switchReleased
	switchAborted
)

// keysMoved are the keys, each of which moves to a partition of its own. recordsMax bounds the
// records.
const keysMoved, recordsMax = 2, 9

// routedFew are the keys of the events of each router, in their order. The front has one more
// event, of key 0.
var routedFew = [2][]int8{{0, 0}, {1, 0}}

// A movedRecord is an event: its key, and the router and the place among its events. Of the
// front's the router is 2.
type movedRecord struct{ key, router, place int8 }

// movedQueue is what was written to a partition and not judged.
type movedQueue struct {
	records [recordsMax]movedRecord
	n       int8
}

func (q *movedQueue) push(r movedRecord) {
	q.records[q.n] = r
	q.n++
}

func (q *movedQueue) pop() (r movedRecord) {
	r = q.records[0]
	copy(q.records[:], q.records[1:])
	q.n--
	q.records[q.n] = movedRecord{}
	return r
}

type switchState struct {
	phase   phase
	leaders [2]switchLeader
	current int8 // the leader that began last, which fences the other one; -1 for none
	// listed says that a leader has listed the end of the old partition, left that the old
	// task has so many records to judge before that.
	listed bool
	left   int8

	routers [2]switchRouter
	front   bool // it still has its record, for the old partition

	old    movedQueue
	seen   [keysMoved]bool // rows of the old task
	closed bool            // it has written its closed checkpoint

	copied  [keysMoved]bool // rows in the new changelogs
	copyAll bool            // the copiers have passed the closed checkpoint
	fresh   [keysMoved]movedQueue

	emitted [keysMoved]int8
	judged  [2][keysMoved]int8 // the place of the last event of a router and key, plus 1
	records int8               // judged
	starts  int8               // of routers, that are left
}

// A switchLeader has begun, and read a phase then.
type switchLeader struct {
	began bool
	read  phase
}

// switchRouter knows of a phase late.
type switchRouter struct {
	knows phase
	next  int8 // event
	held  bool // its row is committed
}

func (m *switchModel) model(name string) explore.Model[switchState] {
	s := switchState{current: -1, front: true, starts: 1}
	records := int8(len(m.routed[0]) + len(m.routed[1]) + 1)
	return explore.Model[switchState]{
		Name: name, Start: []switchState{s}, Next: m.next, Limit: 3_000_000,
		Goal: func(s switchState) bool {
			ended := s.phase == switchReleased || s.phase == switchAborted
			return ended && s.records == records && s.emitted == [keysMoved]int8{1, 1}
		},
	}
}

func (m *switchModel) next(s switchState, steps []explore.Step[switchState]) []explore.Step[switchState] {
	for i := range int8(2) {
		if i < m.leaders {
			steps = m.lead(s, i, steps)
		}
		steps = m.route(s, i, steps)
	}
	if to := s; s.front {
		to.front = false
		to.old.push(movedRecord{0, 2, 0})
		steps = append(steps, explore.To(to, "the front wakes up and writes its record to the old partition"))
	}
	return m.tasks(s, steps)
}

// lead has the steps of a leader: it begins, which fences the other one, reads the rows, and
// writes the next one. It may die between any two.
func (m *switchModel) lead(s switchState, i int8, steps []explore.Step[switchState]) []explore.Step[switchState] {
	l := s.leaders[i]
	if !l.began {
		if to := s; s.phase < switchReleased {
			to.current, to.leaders[i] = i, switchLeader{true, s.phase}
			steps = append(steps, explore.To(to, "leader %d begins and reads phase %d", int(i), int(s.phase)))
		}
		return steps
	}
	gone := s
	gone.leaders[i] = switchLeader{}
	if gone.current == i {
		gone.current = -1
	}
	steps = append(steps, explore.To(gone, "leader %d dies", int(i)))
	if s.current != i && m.mistake != leadersNotFenced {
		return steps
	}
	write := func(next phase, name string) {
		to := gone
		to.phase = next
		steps = append(steps, explore.To(to, name, int(i)))
	}
	switch l.read {
	case switchNone:
		write(switchHeld, "leader %d writes the hold")
	case switchHeld:
		if m.aborts {
			write(switchAborted, "leader %d aborts")
		}
		held := s.routers[0].held && s.routers[1].held || m.mistake == actsUnheld
		if to := gone; !s.listed && (held || m.mistake == endsBeforeHeld) {
			to.listed, to.left = true, s.old.n
			steps = append(steps, explore.To(to, "leader %d lists the end of the old partition, %d records on", int(i), int(s.old.n)))
		}
		if s.listed && held && s.closed && (s.copyAll || m.mistake == closesUncopied) {
			write(switchActed, "leader %d puts the new partitions in force")
		}
	case switchActed:
		write(switchReleased, "leader %d releases the hold")
	case switchReleased, switchAborted:
	}
	return steps
}

// route has the steps of process i's routing stage.
func (m *switchModel) route(s switchState, i int8, steps []explore.Step[switchState]) []explore.Step[switchState] {
	r := s.routers[i]
	if to := s; r.knows != s.phase {
		to.routers[i].knows = s.phase
		steps = append(steps, explore.To(to, "process %d reads phase %d", int(i), int(s.phase)))
	}
	if to := s; s.starts > 0 && m.mistake == holdNotRead {
		to.starts--
		to.routers[i].knows = switchNone
		steps = append(steps, explore.To(to, "process %d starts and reads no phase", int(i)))
	}
	switch r.knows {
	case switchHeld, switchActed:
		if to := s; !r.held && s.phase == switchHeld {
			to.routers[i].held = true
			steps = append(steps, explore.To(to, "process %d holds its partition", int(i)))
		}
	case switchNone, switchReleased, switchAborted:
		if to := s; int(r.next) < len(m.routed[i]) {
			rec := movedRecord{m.routed[i][r.next], i, r.next}
			to.routers[i].next++
			if r.knows == switchReleased {
				to.fresh[rec.key].push(rec)
			} else {
				to.old.push(rec)
			}
			steps = append(steps, explore.To(to, "process %d routes event %d, of key %d", int(i), int(rec.place), int(rec.key)))
		}
	}
	return steps
}

// judge notes a verdict. The events of a router and key are judged in their order.
func (s *switchState) judge(r movedRecord, unique bool, name string) explore.Step[switchState] {
	to := *s
	to.records++
	var err error
	if unique {
		if to.emitted[r.key]++; to.emitted[r.key] > 1 {
			err = errors.New("a key was emitted twice")
		}
	}
	if r.router < 2 {
		if to.judged[r.router][r.key] > r.place+1 {
			err = errors.New("two events of a key were judged in another order than they were routed")
		}
		to.judged[r.router][r.key] = r.place + 1
	}
	step := explore.To(to, name, int(r.key))
	step.Err = err
	return step
}

// tasks has the steps of the old task, of the copiers and of the new tasks.
func (m *switchModel) tasks(s switchState, steps []explore.Step[switchState]) []explore.Step[switchState] {
	closed := s.closed && s.phase != switchAborted
	if to := s; s.old.n > 0 && (!closed || m.mistake == judgesClosed) {
		rec := to.old.pop()
		to.left = max(0, s.left-1)
		unique := !s.seen[rec.key]
		to.seen[rec.key] = true
		steps = append(steps, to.judge(rec, unique, "the old task judges an event of key %d"))
	}
	if to := s; s.old.n > 0 && closed && s.phase >= switchActed && m.mistake != judgesClosed {
		rec := to.old.pop()
		if m.mistake != dropsClosed {
			to.fresh[rec.key].push(rec)
		}
		steps = append(steps, explore.To(to, "the old task forwards an event of key %d to its new partition", int(rec.key)))
	}
	if to := s; s.phase == switchHeld && !s.closed && s.listed && (s.left == 0 || m.mistake == actsUndrained) {
		to.closed = true
		steps = append(steps, explore.To(to, "the old task writes its closed checkpoint"))
	}
	for key := range int8(keysMoved) {
		if to := s; s.seen[key] && !s.copied[key] && s.phase < switchActed {
			to.copied[key] = true
			steps = append(steps, explore.To(to, "a copier copies the row of key %d", int(key)))
		}
		if to := s; s.fresh[key].n > 0 && (s.phase == switchActed || s.phase == switchReleased) {
			rec := to.fresh[key].pop()
			unique := !s.copied[key]
			to.copied[key] = true
			steps = append(steps, to.judge(rec, unique, "the new task judges an event of key %d"))
		}
	}
	if to := s; s.closed && !s.copyAll && s.copied == s.seen && s.phase == switchHeld {
		to.copyAll = true
		steps = append(steps, explore.To(to, "the copiers pass the closed checkpoint"))
	}
	return steps
}
