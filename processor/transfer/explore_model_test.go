package transfer

import (
	"errors"
	"fmt"
	"math"

	"oncebus/dedup"
	"oncebus/processor/app"
	"oncebus/processor/explore"
)

// A clusterModel explores the move of an app to another cluster. Two processes of the old one
// route an input partition each, and sleep or take over at any time. A mirror copies both
// partitions with any lag, and repeats records. An operator runs the commands of the page in
// their order, each of which may be killed at any step and run again, and takes the app back
// before its release. A colleague tries the releases that the commands have to refuse.
//
// It drives app.Residence, mirrorSearch, and dedup.Window.
//
// The tasks of the new cluster judge a record in the step that writes it: one that is judged
// later may as well be written later, as their log orders them. The mirror copies when something
// reads its records: while the operator waits with arrive, and once a process of the new cluster
// may read.
type clusterModel struct {
	taskOf  [clusterKeys]int8
	changes bool // the window becomes longer before the app leaves
	repeats int8 // steps back of the mirror
	backs   int8 // times the app is taken back
	direct  int8 // events that a producer writes to the new cluster
	kills   bool // a seed command dies, and what it sent last arrives late
	moves   int8 // takeovers of a partition in the old cluster
	front   bool // a request of the old ingress sleeps
	mistake clusterMistake
}

type clusterMistake int

const (
	clusterRight      clusterMistake = iota
	releasedUnseeded                 // the release does not ask for the keys
	startsForwards                   // an input starts one record behind its place
	startsAtLastCopy                 // an input starts behind the last copy of the held record
	exportedUndrained                // the file is written before all that was routed is judged
	exportedUnheld                   // the file is written before all partitions are held
	takeoverBlind                    // a new owner of a partition routes before it reads the hold
	notLeft                          // the operator omits hold --left
	leavingReleased                  // an app that leaves is released as any other
	timesStay                        // stream times are not carried over
	changeStays                      // what is known of a changed window is not carried over
	startsWithoutHold                // a process of the new cluster does not find the hold
	exportNotAsked                   // the hold is not read again after the file is written
	seedsCutShort                    // the seed ends before the last row
	fileOfBeforeTaken                // the operator keeps the file of a hold that was taken back
	requestsInFlight                 // the old ingress gets requests while the app leaves
)

// The events: their key and time. Those of a partition have its order; the last two are that of a
// producer to the new cluster, and that of the ingress. Events 2 and 3 have the same content.
const (
	clusterKeys     = 2
	clusterParts    = 2
	clusterPerPart  = 2
	directEvent     = 4
	ingressEvent    = 5
	clusterEvents   = 6
	clusterLogMax   = 5 // enough for one step back and one other event
	clusterQueueMax = 5
)

var (
	clusterKeyOf   = [clusterEvents]int8{0, 0, 1, 1, 0, 0}
	clusterTimeOf  = [clusterKeys]int8{0, 3}
	clusterContent = [clusterEvents]byte{1, 2, 3, 3, 4, 5}
	clusterSets    = [3]dedup.Window{1: {Size: 1, Skew: math.MaxInt32}, 2: {Size: 5, Skew: math.MaxInt32}}
)

// The steps of the operator.
const (
	stepHold = iota
	stepExport
	stepArrive
	stepSeed
	stepVerify
	stepRelease
	stepLeft
	stepDone
)

type clusterState struct {
	step, backs int8
	emitted     uint8 // bits of keys
	late        uint8
	judged      uint8 // bits of contents

	old  oldCluster
	file clusterFile
	// exporting is the hold under which an export began; 0 for none. taken are the tasks that it has read.
	exporting, taken int8
	draft            clusterFile

	repeats int8               // steps back of the mirror that are left
	next    [clusterParts]int8 // what it copies next
	fresh   newCluster
}

type oldCluster struct {
	set         int8
	hold, holds int8 // the id in force, and how many there were
	left        bool
	views       [2]int8 // what each process has read
	owner       [clusterParts]int8
	read        [clusterParts]int8
	held        [clusterParts]int8 // the hold of its row
	queues      [2]clusterQueue
	tasks       [2]clusterTask
	front       int8 // 1 while the request sleeps, 2 afterwards
	moves       int8 // takeovers that are left
}

type clusterQueue struct {
	events [clusterQueueMax]int8
	n      int8
}

func (q *clusterQueue) add(event int8) { q.events[q.n], q.n = event, q.n+1 }

func (q *clusterQueue) take() (event int8) {
	event = q.events[0]
	copy(q.events[:], q.events[1:])
	q.n--
	q.events[q.n] = 0
	return event
}

type clusterFile struct {
	hold  int8 // 0 for no file
	set   int8
	held  [clusterParts]int8
	tasks [2]clusterTask
}

type newCluster struct {
	hold     int8 // of the file that the app came with; 0 for no app
	seeded   bool
	released bool
	runs     int8 // a process: 1 has read the hold, 2 that the app is released
	log      [clusterParts]clusterLog
	read     [clusterParts]int8
	tasks    [2]clusterTask
	sent     int8 // records of the seed command
	flight   int8 // the last record of a killed one, plus 1
	direct   int8 // events
}

type clusterLog struct {
	events [clusterLogMax]int8
	n      int8
}

// clusterTask is the state of a task, for one namespace.
type clusterTask struct {
	set         int8
	stream      int8              // -1 for none
	rows        [clusterKeys]int8 // first seen, -1 for none
	changed     bool
	since, late int8
}

var newClusterTask = clusterTask{stream: -1, rows: [clusterKeys]int8{-1, -1}}

func (t *clusterTask) streamTime() int64 {
	if t.stream < 0 {
		return dedup.NoStreamTime
	}
	return int64(t.stream)
}

// window returns the window of a task under a set.
func (t *clusterTask) window(set int8) dedup.Window {
	w := clusterSets[max(t.set, 1)]
	if t.changed {
		w = w.Known(int64(t.since), int64(t.late))
	}
	if t.set != 0 && t.set != set {
		return w.ChangeTo(clusterSets[set], t.streamTime())
	}
	next := clusterSets[set]
	next.Changed, next.Since, next.LateBefore = w.Changed, w.Since, w.LateBefore
	return next
}

// adopt notes what is known under a set.
func (t *clusterTask) adopt(set int8) dedup.Window {
	w := t.window(set)
	if w.IsWhole(t.streamTime()) {
		w.Changed, w.Since, w.LateBefore = false, 0, 0
	}
	t.set, t.changed, t.since, t.late = set, w.Changed, int8(w.Since), int8(w.LateBefore)
	return w
}

var (
	errClusterTwice = errors.New("an event of a key was emitted before")
	errClusterLost  = errors.New("an event was judged in neither cluster")
)

// judge judges an event by a task, under a set.
func (s *clusterState) judge(t *clusterTask, set, event int8) error {
	key := clusterKeyOf[event]
	at := int64(clusterTimeOf[key])
	s.judged |= 1 << clusterContent[event]
	w := t.adopt(set)
	if verdict, _ := w.Admit(at, t.streamTime(), at); verdict == dedup.Late {
		s.late |= 1 << key
		return nil
	}
	stream := t.streamTime()
	t.stream = int8(dedup.NextStreamTime(stream, at, at))
	verdict, row := dedup.Decide(dedup.Event{Time: at}, dedup.Row{First: int64(t.rows[key])}, t.rows[key] >= 0, w, stream)
	if verdict != dedup.Unique && verdict != dedup.AfterWindow {
		return nil
	}
	t.rows[key] = int8(row.First)
	if s.emitted&(1<<key) != 0 {
		return errClusterTwice
	}
	s.emitted |= 1 << key
	return nil
}

// The residences, as the commands read them. Pointers are equal only if the values are.
var clusterHolds = [2][3]*app.Hold{
	{nil, {ID: "1", Leaving: true}, {ID: "2", Leaving: true}},
	{nil, {ID: "1", Leaving: true, Left: true}, {ID: "2", Leaving: true, Left: true}},
}

func (o *oldCluster) residence() app.Residence {
	left := 0
	if o.left {
		left = 1
	}
	return app.Residence{Hold: clusterHolds[left][o.hold]}
}

func (c *newCluster) residence() app.Residence {
	r := app.Residence{Arrival: &app.Arrival{File: fmt.Sprint(c.hold), Seeded: c.seeded, Released: c.released}}
	if !c.released {
		r.Hold = &app.Hold{ID: "a", Arriving: true}
	}
	return r
}

func (m *clusterModel) model(name string) explore.Model[clusterState] {
	start := clusterState{repeats: m.repeats, backs: m.backs}
	start.old = oldCluster{set: 1, owner: [clusterParts]int8{0, 1}, moves: m.moves, tasks: [2]clusterTask{newClusterTask, newClusterTask}}
	start.fresh.tasks = start.old.tasks
	if !m.front {
		start.old.front = 2
	}
	return explore.Model[clusterState]{
		Name: name, Start: []clusterState{start}, Limit: 4_000_000,
		Next: func(s clusterState, to clusterSteps) clusterSteps {
			to = m.oldProcesses(s, to)
			to = m.oldTasks(s, to)
			to = m.operator(s, to)
			to = m.colleague(s, to)
			to = m.mirror(s, to)
			return m.newProcess(s, to)
		},
		Goal: m.atRest,
		Check: func(s clusterState) error {
			if !m.atRest(s) {
				return nil
			}
			for _, event := range [...]int8{0, 1, 2, directEvent, ingressEvent} {
				sent := event < directEvent || event == directEvent && s.fresh.direct < m.direct || event == ingressEvent && m.front && s.old.front == 2
				if sent && s.judged&(1<<clusterContent[event]) == 0 {
					return fmt.Errorf("%w: event %d", errClusterLost, event)
				}
			}
			for key := range clusterKeys {
				if (s.emitted|s.late)&(1<<key) == 0 {
					return fmt.Errorf("key %d was never emitted", key)
				}
			}
			return nil
		},
	}
}

// withoutPast returns a state without what decides nothing any more in the cluster that was left,
// so that fewer states differ.
func (s clusterState) withoutPast() clusterState {
	o := &s.old
	if o.left && o.front == 2 && o.queues == [2]clusterQueue{} {
		s.old = oldCluster{set: o.set, hold: o.hold, holds: o.holds, left: true, views: [2]int8{o.hold, o.hold}, held: [clusterParts]int8{o.hold, o.hold}, read: o.read, front: 2}
	}
	return s
}

type clusterSteps = []explore.Step[clusterState]

// atRest reports whether the move has ended and all events are judged.
func (m *clusterModel) atRest(s clusterState) bool {
	if s.step != stepDone || s.old.front == 1 || s.fresh.direct > 0 {
		return false
	}
	for p := range clusterParts {
		if s.next[p] < clusterPerPart || s.fresh.read[p] < s.fresh.log[p].n || s.old.queues[p].n > 0 {
			return false
		}
	}
	return true
}

// oldProcesses has the steps of the processes of the old cluster.
func (m *clusterModel) oldProcesses(s clusterState, to clusterSteps) clusterSteps {
	if at := s; m.changes && s.old.set == 1 && s.old.hold == 0 {
		at.old.set = 2
		to = append(to, explore.To(at, "the window becomes longer"))
	}
	for i := range s.old.views {
		if at := s; s.old.views[i] != s.old.hold {
			at.old.views[i] = s.old.hold
			to = append(to, explore.To(at, "process %d reads the rows: hold %d", i, int(s.old.hold)))
		}
	}
	for p := range clusterParts {
		o := s.old.owner[p]
		if taken := s; s.old.moves > 0 {
			taken.old.moves--
			taken.old.owner[p] = 1 - o
			if m.mistake != takeoverBlind {
				taken.old.views[1-o] = s.old.hold // it reads before it fetches
			}
			to = append(to, explore.To(taken, "process %d takes over partition %d", int(1-o), p))
		}
		at := s
		switch hold := s.old.views[o]; {
		case s.old.left && hold > 0: // its row decides nothing any more
		case hold > 0 && s.old.held[p] != hold:
			at.old.held[p] = hold
			to = append(to, explore.To(at, "process %d holds partition %d at %d", int(o), p, int(s.old.read[p])))
		case hold == 0 && s.old.read[p] < clusterPerPart:
			event := int8(p)*clusterPerPart + s.old.read[p]
			at.old.read[p]++
			at.old.queues[m.taskOf[clusterKeyOf[event]]].add(event)
			to = append(to, explore.To(at, "process %d routes event %d", int(o), int(event)))
		}
	}
	switch at := s; {
	case s.old.front == 0 && s.old.views[0] == 0 && (s.step == stepHold || m.mistake == requestsInFlight):
		at.old.front = 1
		to = append(to, explore.To(at, "a request looks at the hold, and sleeps"))
	case s.old.front == 1:
		at.old.front = 2
		at.old.queues[m.taskOf[clusterKeyOf[ingressEvent]]].add(ingressEvent)
		to = append(to, explore.To(at, "the request sends event %d", ingressEvent))
	}
	return to
}

func (m *clusterModel) oldTasks(s clusterState, to clusterSteps) clusterSteps {
	for i := range s.old.queues {
		if s.old.queues[i].n == 0 {
			continue
		}
		at := s
		event := at.old.queues[i].take()
		err := at.judge(&at.old.tasks[i], s.old.set, event)
		step := explore.To(at, "the old task %d judges event %d", i, int(event))
		step.Err = err
		to = append(to, step)
	}
	return to
}

// complete reports whether a hold is complete.
func (m *clusterModel) complete(o *oldCluster) bool {
	for p := range clusterParts {
		if o.held[p] != o.hold && m.mistake != exportedUnheld || o.queues[p].n > 0 && m.mistake != exportedUndrained {
			return false
		}
	}
	return true
}

// operator has the steps of the commands, in the order of the page.
func (m *clusterModel) operator(s clusterState, to clusterSteps) clusterSteps {
	to = m.export(s, to)
	at := s
	at.step++
	switch s.step {
	case stepHold:
		if s.old.hold == 0 && s.old.holds+1 < int8(len(clusterHolds[0])) {
			begun := s
			begun.old.holds++
			if after, err := s.old.residence().Begin(clusterHolds[0][begun.old.holds]); err == nil && after.Hold != nil {
				begun.old.hold = begun.old.holds
				to = append(to, explore.To(begun, "hold --leaving begins hold %d", int(begun.old.hold)))
			}
		} else if s.old.hold > 0 && m.complete(&s.old) {
			to = append(to, explore.To(at, "hold --leaving is complete"))
		}
	case stepArrive:
		to = m.arrive(s, to)
	case stepSeed:
		to = m.seed(s, to)
	case stepVerify:
		if m.verified(&s) {
			to = append(to, explore.To(at, "verify finds all keys and stream times"))
		}
	case stepRelease:
		to = m.release(s, to)
	case stepLeft:
		if after, err := s.old.residence().Leave(); err == nil && after.Hold.Left {
			at.old.left = m.mistake != notLeft
			to = append(to, explore.To(at.withoutPast(), "hold --left"))
		}
	}
	return m.takeBack(s, to)
}

// export has the steps of the export, which may be killed at each.
func (m *clusterModel) export(s clusterState, to clusterSteps) clusterSteps {
	at := s
	if s.exporting == 0 {
		if _, err := s.old.residence().Export(); s.step == stepExport && err == nil && m.complete(&s.old) && (s.old.front != 1 || m.mistake == requestsInFlight) {
			at.exporting = s.old.hold
			at.draft = clusterFile{hold: s.old.hold, set: s.old.set, held: s.old.read}
			to = append(to, explore.To(at, "export begins under hold %d", int(s.old.hold)))
		}
		return to
	}
	killed := s
	killed.exporting, killed.taken, killed.draft = 0, 0, clusterFile{}
	to = append(to, explore.To(killed, "export is killed"))
	if s.taken < 2 {
		t := s.old.tasks[s.taken]
		w := t.adopt(s.draft.set)
		for key := range t.rows {
			if t.rows[key] >= 0 && !w.Decides(&dedup.Row{First: int64(t.rows[key])}, t.streamTime()) {
				t.rows[key] = -1
			}
		}
		at.draft.tasks[s.taken] = t
		at.taken++
		return append(to, explore.To(at, "export reads task %d", int(s.taken)))
	}
	if h, err := s.old.residence().Export(); m.mistake != exportNotAsked && (err != nil || !m.complete(&s.old) || h.ID != fmt.Sprint(s.draft.hold)) {
		return to
	}
	killed.file, killed.step = s.draft, stepArrive
	return append(to, explore.To(killed, "export puts its file in place"))
}

// place returns where a partition starts in the new cluster.
func (m *clusterModel) place(s *clusterState, p int) (start int8, found bool) {
	if s.file.held[p] == 0 {
		return 0, true
	}
	sum := func(event int8) (sum recordSum) {
		sum[0] = clusterContent[event]
		return sum
	}
	var tail []byte
	for i := range s.file.held[p] {
		one := sum(int8(p)*clusterPerPart + i)
		tail = append(tail, one[:]...)
	}
	search := newMirrorSearch(tail)
	log := &s.fresh.log[p]
	for offset, event := range log.events[:log.n] {
		if search.add(int64(offset), sum(event)) && m.mistake != startsAtLastCopy {
			break
		}
		if m.mistake == startsAtLastCopy && sum(event) == search.last {
			start = int8(offset) + 1
		}
	}
	switch {
	case m.mistake == startsForwards:
		start = min(int8(search.start)+1, log.n)
	case m.mistake != startsAtLastCopy:
		start = int8(search.start)
	}
	return start, search.found
}

// arrive creates the app once the mirror has come so far. Killed afterwards, it does nothing more.
func (m *clusterModel) arrive(s clusterState, to clusterSteps) clusterSteps {
	if s.fresh.hold > 0 {
		s.step = stepSeed
		return append(to, explore.To(s, "arrive returns"))
	}
	for p := range clusterParts {
		start, found := m.place(&s, p)
		if !found {
			return to
		}
		s.fresh.read[p] = start
	}
	s.fresh.hold, s.fresh.direct = s.file.hold, m.direct
	return append(to, explore.To(s, "arrive creates the app, at %d and %d", int(s.fresh.read[0]), int(s.fresh.read[1])))
}

// seedRecords is how many records a seed command sends: a stream time and the rows of each task.
const seedRecords = 2 * (1 + clusterKeys)

// take gives the app a record of a seed command.
func (m *clusterModel) take(s *clusterState, record int8) {
	from, t := &s.file.tasks[record/(1+clusterKeys)], &s.fresh.tasks[record/(1+clusterKeys)]
	key := record%(1+clusterKeys) - 1
	if key >= 0 {
		first := int64(from.rows[key])
		if first < 0 {
			return
		}
		w := t.adopt(s.file.set)
		fate, row := dedup.DecideSeed(dedup.Event{Time: first}, dedup.Row{First: int64(t.rows[key])}, t.rows[key] >= 0, w, t.streamTime(), math.MaxInt32)
		if fate == dedup.SeedTaken {
			t.rows[key] = int8(row.First)
		}
		return
	}
	if from.stream < 0 || t.stream >= 0 || m.mistake == timesStay {
		return
	}
	t.set = s.file.set
	t.stream = from.stream
	if m.mistake != changeStays {
		t.changed, t.since, t.late = from.changed, from.since, from.late
	}
}

// seed has the steps of the seed. What a killed command has sent last may arrive at any time.
func (m *clusterModel) seed(s clusterState, to clusterSteps) clusterSteps {
	at := s
	if s.fresh.seeded {
		at.step++
		return append(to, explore.To(at, "seed returns"))
	}
	if s.fresh.runs == 0 {
		return to // no task decides on seeds
	}
	if s.fresh.sent < seedRecords {
		m.take(&at, s.fresh.sent)
		at.fresh.sent++
		to = append(to, explore.To(at, "seed sends record %d", int(s.fresh.sent)))
		if at := s; m.kills && s.fresh.flight == 0 {
			at.fresh.sent, at.fresh.flight = 0, s.fresh.sent+1
			to = append(to, explore.To(at, "seed is killed before record %d arrives", int(s.fresh.sent)))
		}
	}
	if s.fresh.sent == seedRecords || m.mistake == seedsCutShort && s.fresh.sent == seedRecords-2 {
		if after, err := s.fresh.residence().Seed(fmt.Sprint(s.file.hold)); err == nil {
			at := s
			at.fresh.seeded = after.Arrival.Seeded
			to = append(to, explore.To(at, "seed notes that all is there"))
		}
	}
	return to
}

// verified reports whether the app has what its file has.
func (m *clusterModel) verified(s *clusterState) bool {
	for i := range s.file.tasks {
		from, t := &s.file.tasks[i], &s.fresh.tasks[i]
		if from.stream > t.stream && m.mistake != timesStay || from.rows != t.rows {
			return m.mistake == seedsCutShort
		}
	}
	return true
}

func (m *clusterModel) release(s clusterState, to clusterSteps) clusterSteps {
	at := s
	if s.fresh.released {
		at.step++
		if s.fresh.flight == 0 { // nothing reads the rows of the file any more
			at.file = clusterFile{set: s.file.set}
		}
		return append(to, explore.To(at, "release returns"))
	}
	after, err := s.fresh.residence().Release("")
	if err == nil && after.Hold == nil {
		at.fresh.released, at.backs = true, 0
		to = append(to, explore.To(at, "release in the new cluster"))
	}
	return to
}

// takeBack takes the app back before the release, and deletes it in the new cluster.
func (m *clusterModel) takeBack(s clusterState, to clusterSteps) clusterSteps {
	if s.backs == 0 || s.fresh.released || s.step == stepHold {
		return to
	}
	after, err := s.old.residence().TakeBack()
	if err != nil || after.Hold != nil {
		return to
	}
	s.backs--
	s.old.hold, s.step = 0, stepHold
	s.fresh = newCluster{log: s.fresh.log, tasks: [2]clusterTask{newClusterTask, newClusterTask}}
	if m.mistake == fileOfBeforeTaken && s.file.hold > 0 {
		s.step = stepArrive
	} else {
		s.file = clusterFile{}
	}
	return append(to, explore.To(s, "release --back in the old cluster, and a new begin"))
}

// colleague tries what the commands have to refuse: a plain release of an app that leaves, and one
// of an app that has left, or arrives without its keys.
func (m *clusterModel) colleague(s clusterState, to clusterSteps) clusterSteps {
	at := s
	at.old.hold = 0
	r := s.old.residence()
	if m.mistake == leavingReleased && r.Hold != nil {
		plain := *r.Hold
		plain.Leaving = false
		r.Hold = &plain
	}
	if after, err := r.Release(""); err == nil && after.Hold != r.Hold {
		to = append(to, explore.To(at, "a colleague releases the app in the old cluster"))
	}
	if s.step == stepDone && s.old.hold > 0 {
		if after, err := r.TakeBack(); err == nil && after.Hold == nil {
			to = append(to, explore.To(at, "a colleague takes the app back"))
		}
	}
	if s.fresh.hold > 0 && !s.fresh.released && s.step < stepRelease {
		r := s.fresh.residence()
		if m.mistake == releasedUnseeded {
			r.Arrival.Seeded = true
		}
		if _, err := r.Release(""); err == nil && !s.fresh.seeded {
			at := s
			at.fresh.released = true
			to = append(to, explore.To(at, "a colleague releases the app in the new cluster"))
		}
	}
	return to
}

// mirror copies, goes back, and a producer writes to the new cluster.
func (m *clusterModel) mirror(s clusterState, to clusterSteps) clusterSteps {
	if (s.step != stepArrive || s.fresh.hold > 0) && s.fresh.runs < 2 {
		return to
	}
	for p := range clusterParts {
		log := &s.fresh.log[p]
		if at := s; s.next[p] < clusterPerPart && log.n < clusterLogMax {
			event := int8(p)*clusterPerPart + s.next[p]
			at.fresh.log[p].events[log.n] = event
			at.fresh.log[p].n++
			at.next[p]++
			to = append(to, explore.To(at, "the mirror copies event %d", int(event)))
		}
		if at := s; s.next[p] > 0 && s.repeats > 0 {
			at.repeats--
			at.next[p] = 0
			to = append(to, explore.To(at, "the mirror of partition %d begins again", p))
			for i := range s.next[p] {
				if at := s; log.n < clusterLogMax {
					event := int8(p)*clusterPerPart + i
					at.repeats--
					at.fresh.log[p].events[log.n] = event
					at.fresh.log[p].n++
					to = append(to, explore.To(at, "a former run of the mirror copies event %d again", int(event)))
				}
			}
		}
	}
	if at := s; s.fresh.direct > 0 && s.fresh.runs == 2 && s.fresh.log[0].n < clusterLogMax {
		at.fresh.direct--
		at.fresh.log[0].events[s.fresh.log[0].n] = directEvent
		at.fresh.log[0].n++
		to = append(to, explore.To(at, "a producer writes event %d to the new cluster", directEvent))
	}
	return to
}

// newProcess starts, reads the rows, and processes what it may.
func (m *clusterModel) newProcess(s clusterState, to clusterSteps) clusterSteps {
	if s.fresh.hold == 0 {
		return to
	}
	if at := s; s.fresh.runs == 0 || s.fresh.runs == 1 && s.fresh.released {
		at.fresh.runs = 1
		if s.fresh.released || m.mistake == startsWithoutHold {
			at.fresh.runs = 2
		}
		to = append(to, explore.To(at, "a process of the new cluster reads the rows: %d", int(at.fresh.runs)))
	}
	if at := s; s.fresh.flight > 0 && s.fresh.runs > 0 {
		m.take(&at, s.fresh.flight-1)
		at.fresh.flight = 0
		to = append(to, explore.To(at, "record %d of the killed seed arrives", int(s.fresh.flight-1)))
	}
	for p := range clusterParts {
		if s.fresh.runs < 2 || s.fresh.read[p] >= s.fresh.log[p].n {
			continue
		}
		at := s
		event := s.fresh.log[p].events[s.fresh.read[p]]
		at.fresh.read[p]++
		err := at.judge(&at.fresh.tasks[m.taskOf[clusterKeyOf[event]]], s.file.set, event)
		step := explore.To(at, "the new task judges event %d of partition %d", int(event), p)
		step.Err = err
		to = append(to, step)
	}
	return to
}
