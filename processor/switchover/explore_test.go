package switchover

import (
	"errors"
	"fmt"
	"testing"

	"oncebus/processor/explore"
)

// The model has two processes. Each has a router of one input partition, an old task, a new
// task, and may lead. Events 0 to 2 are in the inputs, event 3 comes through a front that may
// sleep after it has looked at the switch.
const (
	parts  = 2 // processes, input partitions, old tasks and new tasks
	events = 4
	byHand = 3 // the event of the front
)

var (
	keyOf  = [events]uint8{0, 1, 1, 0}
	inputs = [parts][]uint8{{0}, {1, 2}}
)

// oldPart and newPart place a key: all keys change their partition.
func oldPart(key uint8) uint8 { return key }
func newPart(key uint8) uint8 { return 1 - key }

// topicLog is a partition: the events in it, and how many are processed.
type topicLog struct {
	event [events]uint8
	n, at uint8
}

func (l *topicLog) add(event uint8) { l.event[l.n], l.n = event, l.n+1 }

// world is a state of the model.
type world struct {
	phase Phase
	ends  [parts]uint8 // of the old topic, in the row since Draining
	view  [parts]Phase // what each process has read of the row
	owner [parts]uint8 // the process of each input partition
	read  [parts]uint8 // offset of each input partition
	held  [parts]bool  // its held row
	// front is 0 before its look, 1 or 2 while it sleeps and sends to the old or new topic, 3
	// afterwards.
	front uint8
	// intent is the phase that a leader is about to write, with the ends it has listed.
	intent     [parts]Phase
	intentEnds [parts][parts]uint8

	old, fresh [parts]topicLog
	closed     [parts]bool
	known      [parts][2]bool // keys with a row, by old task
	copied     [parts][2]bool // the same, by new task
	emitted    [2]uint8       // event plus 1, by key; 0 for none

	crashes, moves uint8 // how many may still happen
}

// mistakes are the defects that the exploration has to find.
type mistakes struct {
	noHold, actEarly, copyLate, unfencedAbort, blindForward, blindOwner, closeAtOnce, judgeClosed bool
}

var (
	errDoubled = errors.New("two events of a key are emitted")
	errOrder   = errors.New("the second event of an input partition is emitted instead of the first")
	errLost    = errors.New("a key was not emitted")
)

type steps = []explore.Step[world]

func (m mistakes) model(crashes, moves uint8) explore.Model[world] {
	return explore.Model[world]{
		Name:  "switch",
		Start: []world{{phase: Preparing, view: [parts]Phase{Preparing, Preparing}, owner: [parts]uint8{0, 1}, crashes: crashes, moves: moves}},
		Next: func(s world, to steps) steps {
			to = m.front(s, to)
			for i := range uint8(parts) {
				to = m.process(s, i, to)
				to = m.lead(s, i, to)
				to = m.route(s, i, to)
				to = m.oldTask(s, i, to)
				to = m.newTask(s, i, to)
				to = copyRows(s, i, to)
			}
			return to
		},
		Check: func(s world) error {
			if s.atRest() && (s.emitted[0] == 0 || s.emitted[1] == 0) {
				return errLost
			}
			return nil
		},
		Goal: world.atRest,
		Show: show,
	}
}

// atRest reports whether all events were judged, and the switch has ended.
func (s world) atRest() bool {
	if s.phase != Done && s.phase != Aborted || s.front != 3 {
		return false
	}
	for i := range parts {
		if int(s.read[i]) < len(inputs[i]) || s.old[i].at < s.old[i].n || s.fresh[i].at < s.fresh[i].n {
			return false
		}
	}
	return true
}

// front looks, sleeps for as long as it likes, and sends.
func (m mistakes) front(s world, to steps) steps {
	switch s.front {
	case 0:
		if generation, ok := Route(s.phase); ok {
			s.front = 1 + uint8(generation)
			to = append(to, explore.To(s, "the front looks: generation %d", int(generation)))
		}
	case 1:
		s.front = 3
		s.old[oldPart(keyOf[byHand])].add(byHand)
		to = append(to, explore.To(s, "the front sends event %d to the old topic", byHand))
	case 2:
		s.front = 3
		s.fresh[newPart(keyOf[byHand])].add(byHand)
		to = append(to, explore.To(s, "the front sends event %d to the new topic", byHand))
	}
	return to
}

// process reads the row, crashes, or gets an input partition.
func (m mistakes) process(s world, i uint8, to steps) steps {
	if s.view[i] != s.phase {
		read := s
		read.view[i] = s.phase
		to = append(to, explore.To(read, "process %d reads the row", int(i)))
	}
	if s.crashes > 0 {
		crashed := s
		crashed.crashes--
		crashed.view[i], crashed.intent[i], crashed.intentEnds[i] = s.phase, None, [parts]uint8{}
		to = append(to, explore.To(crashed, "process %d crashes and starts again", int(i)))
	}
	if s.moves > 0 && s.owner[i] == i {
		moved := s
		moved.moves--
		moved.owner[i] = 1 - i
		if !m.blindOwner {
			moved.view[1-i] = s.phase
		}
		to = append(to, explore.To(moved, "input partition %d moves to process %d", int(i), int(1-i)))
	}
	return to
}

// lead decides by the facts, and writes later.
func (m mistakes) lead(s world, i uint8, to steps) steps {
	if s.intent[i] != None {
		written := s
		next := s.intent[i]
		written.intent[i], written.intentEnds[i] = None, [parts]uint8{}
		if s.phase.May(next) || m.unfencedAbort && next == Aborted {
			written.phase = next
			if next == Draining {
				written.ends = s.intentEnds[i]
			}
		}
		return append(to, explore.To(written, "process %d writes phase %d", int(i), int(next)))
	}
	facts := Facts{Prepared: true, Held: s.held[0] && s.held[1] || m.noHold, Closed: s.closed[0] && s.closed[1] || m.actEarly, Copied: s.isCopied() || m.actEarly || m.copyLate}
	for _, undo := range []bool{false, true} {
		facts.Undo = undo
		next, ok := Decide(s.phase, facts)
		if !ok || undo != (next == Aborted) {
			continue
		}
		decided := s
		decided.intent[i] = next
		if next == Draining {
			decided.intentEnds[i] = [parts]uint8{s.old[0].n, s.old[1].n}
		}
		to = append(to, explore.To(decided, "process %d decides on phase %d", int(i), int(next)))
	}
	return to
}

// isCopied reports whether the new tasks have the rows of all old ones.
func (s world) isCopied() bool {
	for i := range parts {
		for key := range uint8(2) {
			if s.known[i][key] && !s.copied[newPart(key)][key] {
				return false
			}
		}
	}
	return true
}

// route routes an event of an input partition, or writes its held row.
func (m mistakes) route(s world, p uint8, to steps) steps {
	generation, ok := Route(s.view[s.owner[p]])
	if !ok && !m.noHold {
		if s.held[p] {
			return to
		}
		s.held[p] = true
		return append(to, explore.To(s, "input partition %d is held", int(p)))
	}
	if int(s.read[p]) == len(inputs[p]) {
		return to
	}
	event := inputs[p][s.read[p]]
	s.read[p]++
	if generation == New {
		s.fresh[newPart(keyOf[event])].add(event)
	} else {
		s.old[oldPart(keyOf[event])].add(event)
	}
	return append(to, explore.To(s, "event %d is routed to generation %d", int(event), int(generation)))
}

// oldTask lets an old task act. It has no record to act on at the end of its log, and may
// close there.
func (m mistakes) oldTask(s world, i uint8, to steps) steps {
	log := &s.old[i]
	action := OldTask(s.view[i], s.closed[i], log.at >= s.ends[i] || m.closeAtOnce)
	if m.judgeClosed && action == Wait {
		action = Judge
	}
	if action == Close {
		s.closed[i] = true
		return append(to, explore.To(s, "old task %d closes", int(i)))
	}
	if action == Wait || log.at == log.n {
		return to
	}
	event := log.event[log.at]
	key := keyOf[event]
	log.at++
	if action == Forward {
		part := newPart(key)
		if m.blindForward {
			part = i
		}
		s.fresh[part].add(event)
		return append(to, explore.To(s, "old task %d forwards event %d to new task %d", int(i), int(event), int(part)))
	}
	s.closed[i] = s.closed[i] && action != Reopen
	err := s.judge(&s.known[i], event)
	step := explore.To(s, "old task %d judges event %d", int(i), int(event))
	step.Err = err
	return append(to, step)
}

// newTask lets a new task judge.
func (m mistakes) newTask(s world, i uint8, to steps) steps {
	log := &s.fresh[i]
	if !NewTask(s.view[i]) || log.at == log.n {
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
func (s *world) judge(known *[2]bool, event uint8) error {
	key := keyOf[event]
	if known[key] {
		return nil
	}
	known[key] = true
	if s.emitted[key] != 0 {
		return errDoubled
	}
	s.emitted[key] = event + 1
	if event == 2 {
		return errOrder
	}
	return nil
}

// copyRows copies one row of an old task. After the act there is nothing left to copy.
func copyRows(s world, i uint8, to steps) steps {
	for key := range uint8(2) {
		if part := newPart(key); s.known[i][key] && !s.copied[part][key] && !s.phase.HasActed() && s.phase != Aborted {
			copied := s
			copied.copied[part][key] = true
			to = append(to, explore.To(copied, "the row of key %d is copied from old task %d", int(key), int(i)))
		}
	}
	return to
}

func show(s world) string {
	return fmt.Sprintf("%v, views %v, held %v, closed %v, emitted %v", s.phase, s.view, s.held, s.closed, s.emitted)
}

// TestSwitch explores every interleaving of a switch.
func TestSwitch(t *testing.T) { explore.Holds(t, mistakes{}.model(1, 1), 1_000_000) }

// TestSwitchFinds: the exploration finds each planted mistake, by its shortest trace.
func TestSwitchFinds(t *testing.T) {
	for _, c := range []struct {
		name  string
		m     mistakes
		moves uint8
		err   error
		steps int
	}{
		{"no hold", mistakes{noHold: true}, 1, errOrder, 16},
		{"act before drain", mistakes{actEarly: true}, 1, errOrder, 15},
		{"act before the copies", mistakes{copyLate: true}, 0, errDoubled, 22},
		{"abort without fencing", mistakes{unfencedAbort: true}, 1, errOrder, 22},
		{"forward without deriving the partition", mistakes{blindForward: true}, 1, errDoubled, 21},
		{"an owner that does not read the row", mistakes{blindOwner: true}, 2, errOrder, 21},
		{"close before the end", mistakes{closeAtOnce: true}, 1, errOrder, 19},
		{"judge after closing", mistakes{judgeClosed: true}, 1, errDoubled, 21},
	} {
		t.Run(c.name, func(t *testing.T) {
			if v := explore.Finds(t, c.m.model(0, c.moves), c.steps); !errors.Is(v, c.err) {
				t.Errorf("found %v, expected %v", v.Err, c.err)
			}
		})
	}
}
