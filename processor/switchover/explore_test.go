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

// oldGeneration is the number of the generation before the first switch. The switch that acts
// begins one whose number is not lower than its own, so here 0 is too.
const oldGeneration = 0

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
	row   Seen         // of the newest switch
	view  [parts]Seen  // what each process has read of the row
	owner [parts]uint8 // the process of each input partition
	read  [parts]uint8 // offset of each input partition
	held  [parts]int64 // the switch of its held row
	// front is 0 before its look, 1 or 2 while it sleeps and sends to the old or new topic, 3
	// afterwards.
	front uint8
	// intent is the row that a leader is about to write.
	intent [parts]Seen

	old, fresh [parts]topicLog
	closed     [parts]int64   // the switch for which the checkpoint of each old task is closed
	known      [parts][2]bool // keys with a row, by old task
	copied     [parts][2]bool // the same, by new task
	emitted    [2]uint8       // event plus 1, by key; 0 for none

	judged uint8 // events

	// how many may still happen: again counts switches after an aborted one, further those
	// after one that has acted.
	crashes, moves, again, further uint8
}

// mistakes are the defects that the exploration has to find.
type mistakes struct {
	noHold, noDrain, actEarly, copyLate, unfencedAbort, blindForward, skipForward, blindOwner, judgeClosed, anySwitch, actedByOld, noBase bool
}

var (
	errDoubled = errors.New("two events of a key are emitted")
	errOrder   = errors.New("the second event of an input partition is emitted instead of the first")
	errLost    = errors.New("an event was not judged")
)

type steps = []explore.Step[world]

func (m mistakes) model(crashes, moves, again, further uint8) explore.Model[world] {
	first := Seen{1, Preparing, oldGeneration}
	start := world{row: first, view: [parts]Seen{first, first}, owner: [parts]uint8{0, 1}, crashes: crashes, moves: moves, again: again, further: further}
	if again+further > 0 {
		start.front = 1 // it sleeps already: else there are too many states
	}
	return explore.Model[world]{
		Name:  "switch",
		Start: []world{start},
		Next: func(s world, to steps) steps {
			to = m.front(s, to)
			for i := range uint8(parts) {
				to = m.process(s, i, to)
				to = m.lead(s, i, to)
				to = m.route(s, i, to)
				to = m.forward(s, i, to)
				to = m.oldTask(s, i, to)
				to = newTask(s, i, to)
				to = copyRows(s, i, to)
			}
			return to
		},
		Check: func(s world) error {
			if s.atRest() && (s.emitted[0] == 0 || s.emitted[1] == 0 || s.judged < events) {
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
	if s.row.Phase != Done && s.row.Phase != Aborted && s.row.Base == oldGeneration || s.front != 3 {
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
		if generation, ok := routeBy(s.row); ok {
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

// routeBy returns the generation to which a process sends that has read of a switch.
func routeBy(seen Seen) (Generation, bool) {
	if seen.Base > oldGeneration {
		return New, !seen.Phase.Holds()
	}
	return Route(seen.Phase)
}

// process reads the row, crashes, or gets an input partition.
func (m mistakes) process(s world, i uint8, to steps) steps {
	if s.view[i] != s.row {
		read := s
		read.view[i] = s.row
		to = append(to, explore.To(read, "process %d reads the row", int(i)))
	}
	if s.crashes > 0 {
		crashed := s
		crashed.crashes--
		crashed.view[i], crashed.intent[i] = s.row, Seen{}
		to = append(to, explore.To(crashed, "process %d crashes and starts again", int(i)))
	}
	if s.moves > 0 && s.owner[i] == i {
		moved := s
		moved.moves--
		moved.owner[i] = 1 - i
		if !m.blindOwner {
			moved.view[1-i] = s.row
		}
		to = append(to, explore.To(moved, "input partition %d moves to process %d", int(i), int(1-i)))
	}
	return to
}

// lead decides by the facts, and writes later.
func (m mistakes) lead(s world, i uint8, to steps) steps {
	if s.row.Base > oldGeneration {
		return to // a further move is another model
	}
	if s.intent[i] != (Seen{}) {
		return append(to, explore.To(m.write(s, i), "process %d writes phase %d of switch %d", int(i), int(s.intent[i].Phase), int(s.intent[i].Number)))
	}
	facts := Facts{Prepared: true, Held: s.isHeld() || m.noHold, Drained: s.isDrained() || m.noDrain, Closed: m.isClosed(&s) || m.actEarly, Copied: s.isCopied() || m.actEarly || m.copyLate}
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
	if s.row.Phase == Done && s.further > 0 {
		again := s
		again.further--
		again.row = Seen{s.row.Number + 1, Preparing, s.row.Number}
		to = append(to, explore.To(again, "process %d begins a further switch", int(i)))
	}
	if s.row.Phase == Aborted && s.again > 0 {
		again := s
		again.again--
		again.row, again.copied = Seen{s.row.Number + 1, Preparing, s.row.Base}, [parts][2]bool{}
		to = append(to, explore.To(again, "process %d begins a second switch", int(i)))
	}
	return to
}

// write writes the row that a leader has decided on, unless the newest one does not permit it.
func (m mistakes) write(s world, i uint8) world {
	next := s.intent[i]
	s.intent[i] = Seen{}
	if s.row.Number == next.Number && s.row.Phase.May(next.Phase) || m.unfencedAbort && next.Phase == Aborted || m.actedByOld && next.Phase == Acted {
		s.row.Phase = next.Phase
	}
	return s
}

// isHeld reports whether all input partitions have a held row of the switch.
func (s *world) isHeld() bool { return s.held == [parts]int64{s.row.Number, s.row.Number} }

// isDrained reports whether the old tasks have judged all that was routed.
func (s *world) isDrained() bool {
	return s.old[0].at == s.old[0].n && s.old[1].at == s.old[1].n
}

// isClosed reports whether all old tasks have closed for the switch.
func (m mistakes) isClosed(s *world) bool {
	for _, by := range s.closed {
		if by != s.row.Number && !(m.anySwitch && by > 0) {
			return false
		}
	}
	return true
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
	generation, ok := routeBy(s.view[s.owner[p]])
	if !ok && !m.noHold {
		if s.held[p] == s.view[s.owner[p]].Number {
			return to
		}
		s.held[p] = s.view[s.owner[p]].Number
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

// forward lets a router forward what reached an old partition after its task had closed.
func (m mistakes) forward(s world, p uint8, to steps) steps {
	log := &s.old[p]
	if generation, ok := routeBy(s.view[p]); !ok || generation != New || log.at == log.n {
		return to
	}
	event := log.event[log.at]
	log.at++
	part := newPart(keyOf[event])
	if m.blindForward {
		part = p
	}
	if !m.skipForward {
		s.fresh[part].add(event)
	}
	return append(to, explore.To(s, "process %d forwards event %d of old partition %d to new task %d", int(p), int(event), int(p), int(part)))
}

// oldTask lets an old task act.
func (m mistakes) oldTask(s world, i uint8, to steps) steps {
	log := &s.old[i]
	seen := s.view[i]
	if m.noBase {
		seen.Base = oldGeneration
	}
	action := OldTask(seen, oldGeneration, s.closed[i])
	if m.judgeClosed && action == Wait {
		action = Judge
	}
	if action == Close {
		s.closed[i] = s.view[i].Number
		return append(to, explore.To(s, "old task %d closes for switch %d", int(i), int(s.closed[i])))
	}
	if action == Wait || log.at == log.n {
		return to
	}
	event := log.event[log.at]
	log.at++
	if !m.judgeClosed {
		s.closed[i] = 0
	}
	err := s.judge(&s.known[i], event)
	step := explore.To(s, "old task %d judges event %d", int(i), int(event))
	step.Err = err
	return append(to, step)
}

// newTask lets a new task judge. It begins when the switch has acted: its records come later.
func newTask(s world, i uint8, to steps) steps {
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
func (s *world) judge(known *[2]bool, event uint8) error {
	s.judged++
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
		if part := newPart(key); s.known[i][key] && !s.copied[part][key] && !s.row.Phase.HasActed() && s.row.Phase != Aborted && s.row.Base == oldGeneration {
			copied := s
			copied.copied[part][key] = true
			to = append(to, explore.To(copied, "the row of key %d is copied from old task %d", int(key), int(i)))
		}
	}
	return to
}

func show(s world) string {
	return fmt.Sprintf("%v, views %v, held %v, closed %v, emitted %v", s.row, s.view, s.held, s.closed, s.emitted)
}

// TestSwitch explores every interleaving of a switch.
func TestSwitch(t *testing.T) { explore.Holds(t, mistakes{}.model(1, 1, 0, 0), 500_000) }

// TestSwitchAgain explores a second switch after the first one was aborted, which leaders and
// processes may have missed.
func TestSwitchAgain(t *testing.T) { explore.Holds(t, mistakes{}.model(0, 0, 1, 0), 200_000) }

// TestSwitchFurther explores a second switch after the first one has acted: a process may read of
// it before it has taken the act.
func TestSwitchFurther(t *testing.T) { explore.Holds(t, mistakes{}.model(0, 0, 0, 1), 10_000) }

// TestSwitchFinds: the exploration finds each planted mistake, by its shortest trace.
func TestSwitchFinds(t *testing.T) {
	for _, c := range []struct {
		name                  string
		m                     mistakes
		moves, again, further uint8
		err                   error
		steps                 int
	}{
		{"no hold", mistakes{noHold: true}, 1, 0, 0, errOrder, 16},
		{"no drain", mistakes{noDrain: true}, 0, 0, 0, errOrder, 20},
		{"act before closed checkpoints", mistakes{actEarly: true}, 0, 0, 0, errDoubled, 17},
		{"act before the copies", mistakes{copyLate: true}, 0, 0, 0, errDoubled, 21},
		{"abort without fencing", mistakes{unfencedAbort: true}, 0, 0, 0, errOrder, 23},
		{"a replaced leader acts", mistakes{actedByOld: true}, 0, 0, 0, errOrder, 23},
		{"forward without deriving the partition", mistakes{blindForward: true}, 0, 0, 0, errDoubled, 23},
		{"no forwarding", mistakes{skipForward: true}, 0, 0, 0, errLost, 27},
		{"an owner that does not read the row", mistakes{blindOwner: true}, 2, 0, 0, errOrder, 21},
		{"judge after closing", mistakes{judgeClosed: true}, 0, 0, 0, errDoubled, 22},
		{"a further switch hides the act", mistakes{noBase: true}, 0, 0, 1, errDoubled, 22},
		{"closed for another switch", mistakes{anySwitch: true}, 0, 1, 0, errDoubled, 32},
	} {
		if testing.Short() && c.again > 0 {
			continue // it has as many states as TestSwitchAgain
		}
		t.Run(c.name, func(t *testing.T) {
			if v := explore.Finds(t, c.m.model(0, c.moves, c.again, c.further), c.steps); !errors.Is(v.Err, c.err) {
				t.Errorf("found %v, expected %v", v.Err, c.err)
			}
		})
	}
}
