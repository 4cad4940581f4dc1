package switchover

import (
	"errors"
	"fmt"
	"testing"

	"oncebus/processor/explore"
)

// The model of a move of a prepartitioned topic: the old tasks read the topic themselves, each
// its own partition, and so they are the routers too. It is the machine of a switch with other
// sources: Decide, OldTask and Route are the same. A task that has a held row has read of the
// switch, so none can close for an older one. The topic has a third partition once it has grown, which no task reads. Events 0 and 1
// are sent by the old number of partitions, 2 and 3 by the new one: 2 has the key of 0 and is in
// the added partition, 3 has the key of 1 and is in the partition of another task.
const (
	added       = 2 // the partition
	topicEvents = 4
)

var (
	topicKey  = [topicEvents]uint8{0, 1, 0, 1}
	topicPart = [topicEvents]uint8{0, 1, added, 0}
)

// topicWorld is a state of the model.
type topicWorld struct {
	row     Seen
	view    [parts]Seen
	intent  [parts]Seen
	owner   [parts]uint8 // the process of each task
	grown   bool
	noticed [parts]bool // the process knows that the topic has grown

	sent   [topicEvents]bool
	log    [parts + 1]topicLog // of the topic; at is where the task, later the router, reads on
	held   [parts]int64
	closed [parts]int64
	known  [parts][2]bool // keys with a row, by old task
	fresh  [parts]topicLog
	copied [parts][2]bool // the same, by new task

	emitted                 [2]bool
	judged                  uint8
	crashes, moves, retries uint8 // how many may still happen
}

// topicMistakes are the defects that the exploration has to find.
type topicMistakes struct {
	judgeClosed, actEarly, copyLate, startAtEnd, judgeGrown, readAdded bool
}

type topicSteps = []explore.Step[topicWorld]

func (m topicMistakes) model(crashes, moves, retries uint8) explore.Model[topicWorld] {
	first := Seen{1, Preparing, oldGeneration}
	start := topicWorld{row: first, view: [parts]Seen{first, first}, owner: [parts]uint8{0, 1}, crashes: crashes, moves: moves, retries: retries}
	if retries > 0 {
		start.grown, start.sent = true, [topicEvents]bool{true, true} // else there are too many states
		start.log[0].add(0)
		start.log[1].add(1)
	}
	return explore.Model[topicWorld]{
		Name:  "move to routed",
		Start: []topicWorld{start},
		Next: func(s topicWorld, to topicSteps) topicSteps {
			to = s.produce(to)
			for i := range uint8(parts) {
				to = m.process(s, i, to)
				to = m.lead(s, i, to)
				to = m.task(s, i, to)
				to = m.newTask(s, i, to)
				to = s.copyRows(i, to)
			}
			for p := range uint8(parts + 1) {
				to = m.route(s, p, to)
			}
			return to
		},
		Check: func(s topicWorld) error {
			if s.row.Phase == Done && s.atRest() && s.judged < topicEvents {
				return errLost
			}
			return nil
		},
		Goal: topicWorld.atRest,
		Show: func(s topicWorld) string {
			return fmt.Sprintf("%v, views %v, held %v, closed %v, grown %v", s.row, s.view, s.held, s.closed, s.grown)
		},
	}
}

// atRest reports whether the switch has ended and all events are read; or that the last switch was
// aborted, after which a topic that has grown waits for the next one.
func (s topicWorld) atRest() bool {
	if s.row.Phase == Aborted && s.retries == 0 {
		return true
	}
	if s.row.Phase != Done || s.sent != [topicEvents]bool{true, true, true, true} {
		return false
	}
	for p := range s.log {
		if s.log[p].at < s.log[p].n {
			return false
		}
	}
	return s.fresh[0].at == s.fresh[0].n && s.fresh[1].at == s.fresh[1].n
}

// produce sends an event. A producer sends by the new number of partitions once the processes
// know of it, or judge the topic no more.
func (s topicWorld) produce(to topicSteps) topicSteps {
	for event := range uint8(topicEvents) {
		moved := event >= parts
		if s.sent[event] || moved && !(s.sent[event-parts] && s.grown && (s.noticed == [parts]bool{true, true} || s.row.Phase.HasActed())) {
			continue
		}
		next := s
		next.sent[event] = true
		next.log[topicPart[event]].add(event)
		to = append(to, explore.To(next, "event %d is sent to partition %d", int(event), int(topicPart[event])))
	}
	if !s.grown {
		s.grown = true
		to = append(to, explore.To(s, "the topic grows"))
	}
	return to
}

// process reads the row or the size of the topic, crashes, or gets the task of the other one.
func (m topicMistakes) process(s topicWorld, i uint8, to topicSteps) topicSteps {
	if s.view[i] != s.row {
		read := s
		read.view[i] = s.row
		to = append(to, explore.To(read, "process %d reads the row", int(i)))
	}
	if s.grown && !s.noticed[i] {
		noticed := s
		noticed.noticed[i] = true
		to = append(to, explore.To(noticed, "process %d sees that the topic has grown", int(i)))
	}
	if s.crashes > 0 {
		crashed := s
		crashed.crashes--
		crashed.view[i], crashed.intent[i], crashed.noticed[i] = s.row, Seen{}, s.grown
		to = append(to, explore.To(crashed, "process %d crashes and starts again", int(i)))
	}
	if s.moves > 0 && s.owner[i] == i {
		moved := s
		moved.moves--
		moved.owner[i] = 1 - i
		moved.view[1-i] = s.row // it reads the row before it fetches
		to = append(to, explore.To(moved, "task %d moves to process %d", int(i), int(1-i)))
	}
	return to
}

// lead decides by the facts, and writes later.
func (m topicMistakes) lead(s topicWorld, i uint8, to topicSteps) topicSteps {
	if next := s.intent[i]; next != (Seen{}) {
		s.intent[i] = Seen{}
		if s.row.Number == next.Number && s.row.Phase.May(next.Phase) {
			s.row.Phase = next.Phase
			if next.Phase == Acted {
				m.act(&s)
			}
		}
		return append(to, explore.To(s, "process %d writes phase %d of switch %d", int(i), int(next.Phase), int(next.Number)))
	}
	facts := Facts{Prepared: true, Held: s.held == [parts]int64{s.row.Number, s.row.Number}, Drained: true, Closed: m.actEarly || s.isClosed(), Copied: m.actEarly || m.copyLate || s.isCopied()}
	for _, undo := range []bool{false, true} {
		facts.Undo = undo
		next, ok := Decide(s.row.Phase, facts)
		if !ok || undo != (next == Aborted) {
			continue
		}
		decided := s
		decided.intent[i] = Seen{s.row.Number, next, s.row.Base}
		to = append(to, explore.To(decided, "process %d decides on phase %d", int(i), int(next)))
	}
	if s.row.Phase == Aborted && s.retries > 0 {
		again := s
		again.retries--
		again.row, again.copied = Seen{s.row.Number + 1, Preparing, s.row.Base}, [parts][2]bool{}
		to = append(to, explore.To(again, "process %d begins a second switch", int(i)))
	}
	return to
}

// act lets the routing stage begin where the closed tasks ended.
func (m topicMistakes) act(s *topicWorld) {
	for p := range s.log {
		if m.startAtEnd {
			s.log[p].at = s.log[p].n
		}
	}
}

// isClosed reports whether all tasks have closed for the switch.
func (s *topicWorld) isClosed() bool {
	for _, by := range s.closed {
		if by != s.row.Number {
			return false
		}
	}
	return true
}

// isCopied reports whether the new tasks have the rows of all old ones.
func (s topicWorld) isCopied() bool {
	for i := range parts {
		for key := range uint8(2) {
			if s.known[i][key] && !s.copied[newPart(key)][key] {
				return false
			}
		}
	}
	return true
}

// task lets a task of the topic act: write its held row, close, or judge.
func (m topicMistakes) task(s topicWorld, i uint8, to topicSteps) topicSteps {
	owner := s.owner[i]
	seen := s.view[owner]
	action := OldTask(seen, oldGeneration, s.closed[i])
	if m.judgeClosed && action == Wait {
		action = Judge
	}
	switch {
	case action == Close:
		s.closed[i] = seen.Number
		return append(to, explore.To(s, "task %d closes for switch %d", int(i), int(seen.Number)))
	case action == Wait:
		return to
	case seen.Phase.Holds() && !(m.judgeClosed && seen.Phase != Holding):
		if s.held[i] == seen.Number {
			return to
		}
		s.held[i] = seen.Number
		return append(to, explore.To(s, "task %d is held", int(i)))
	}
	if m.readAdded && s.noticed[owner] {
		to = m.judgeAs(s, i, added, to)
	}
	if s.noticed[owner] && !m.judgeGrown {
		return to
	}
	return m.judgeAs(s, i, i, to)
}

// judgeAs lets a task judge the next event of a partition.
func (m topicMistakes) judgeAs(s topicWorld, i, p uint8, to topicSteps) topicSteps {
	log := &s.log[p]
	if log.at == log.n {
		return to
	}
	event := log.event[log.at]
	log.at++
	if !m.judgeClosed {
		s.closed[i] = 0
	}
	err := s.judge(&s.known[i], event)
	step := explore.To(s, "task %d judges event %d of partition %d", int(i), int(event), int(p))
	step.Err = err
	return append(to, step)
}

// route lets a process with the new route set route an event of the topic.
func (m topicMistakes) route(s topicWorld, p uint8, to topicSteps) topicSteps {
	log := &s.log[p]
	generation, ok := Route(s.view[0].Phase)
	if other, okOther := Route(s.view[1].Phase); okOther && other == New {
		generation, ok = other, okOther
	}
	if !ok || generation != New || log.at == log.n {
		return to
	}
	event := log.event[log.at]
	log.at++
	s.fresh[newPart(topicKey[event])].add(event)
	return append(to, explore.To(s, "event %d of partition %d is routed", int(event), int(p)))
}

// newTask lets a new task judge.
func (m topicMistakes) newTask(s topicWorld, i uint8, to topicSteps) topicSteps {
	log := &s.fresh[i]
	if log.at == log.n {
		return to
	}
	event := log.event[log.at]
	log.at++
	err := s.judge(&s.copied[i], event)
	step := explore.To(s, "new task %d judges event %d", int(i), int(event))
	step.Err = err
	return append(to, step)
}

// judge emits an event if its key is not known.
func (s *topicWorld) judge(known *[2]bool, event uint8) error {
	s.judged++
	key := topicKey[event]
	if known[key] {
		return nil
	}
	known[key] = true
	if s.emitted[key] {
		return errDoubled
	}
	s.emitted[key] = true
	return nil
}

// copyRows copies one row of an old task. After the act there is nothing left to copy.
func (s topicWorld) copyRows(i uint8, to topicSteps) topicSteps {
	for key := range uint8(2) {
		if part := newPart(key); s.known[i][key] && !s.copied[part][key] && !s.row.Phase.HasActed() && s.row.Phase != Aborted {
			copied := s
			copied.copied[part][key] = true
			to = append(to, explore.To(copied, "the row of key %d is copied from task %d", int(key), int(i)))
		}
	}
	return to
}

// TestMoveToRouted explores every interleaving of the move of a topic that grows.
func TestMoveToRouted(t *testing.T) {
	explore.Holds(t, topicMistakes{}.model(1, explore.Bound[uint8](1, 0), 0), explore.Bound(1_000_000, 100_000))
}

// TestMoveToRoutedAgain explores a second move after the first one was aborted.
func TestMoveToRoutedAgain(t *testing.T) {
	explore.Holds(t, topicMistakes{}.model(0, 0, 1), 10_000)
}

// TestMoveToRoutedFinds: the exploration finds each planted mistake, by its shortest trace.
func TestMoveToRoutedFinds(t *testing.T) {
	for _, c := range []struct {
		name  string
		m     topicMistakes
		err   error
		steps int
	}{
		{"a closed task judges", topicMistakes{judgeClosed: true}, errDoubled, 19},
		{"act before closed checkpoints", topicMistakes{actEarly: true}, errDoubled, 19},
		{"act before the copies", topicMistakes{copyLate: true}, errDoubled, 23},
		{"routing begins at the ends", topicMistakes{startAtEnd: true}, errLost, 23},
		{"a task judges a topic that has grown", topicMistakes{judgeGrown: true}, errDoubled, 7},
		{"a task reads the added partition", topicMistakes{readAdded: true}, errDoubled, 7},
	} {
		t.Run(c.name, func(t *testing.T) {
			if v := explore.Finds(t, c.m.model(0, 0, 0), c.steps); !errors.Is(v.Err, c.err) {
				t.Errorf("found %v, expected %v", v.Err, c.err)
			}
		})
	}
}
