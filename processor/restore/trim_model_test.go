package restore

import (
	"errors"
	"fmt"
	"slices"

	"oncebus/dedup"
	"oncebus/processor/explore"
	"oncebus/processor/wire"
)

// A trimModel explores the life of one task's changelog: events, fences, floors, deletions, and two processes that
// own the task in turn and lose their memory or their disk. It drives dedup.Window, dedup.Decide, wire.Checkpoint,
// wire.Fold and decide, and compares each verdict with a memory that never drops a row. Tasks share nothing of this
// protocol, so the model has one task.
type trimModel struct {
	window   dedup.Window
	keys     []uint8 // the namespace id of each key
	times    []int8  // of events
	broker   int64   // broker time, which is the latest time of an event
	events   int8
	crashes  int8
	mistake  trimMistake
	interned map[string]int16 // encoded checkpoints, by number and bytes
	values   []trimCheckpoint
	folds    map[[2]int16]int16 // what a fold becomes with a checkpoint
	folded   []*trimFold
	foldOf   map[string]int16
	decided  map[trimInput]trimOutput
}

type trimMistake int

const (
	trimsRight      trimMistake = iota
	floorOpen                   // the purger takes the floor of an open transaction
	floorBeyond                 // the purger deletes all that the local store has
	floorInPartial              // a new floor comes with a partial checkpoint
	clampedForgot               // fences omit rows that were first seen after stream time
	retentionShort              // rows are dropped after one window, not two
	restartRelative             // the first checkpoint after a restore is a partial one
)

// trimKeys and trimTransactions bound the number of states.
const trimKeys, trimTransactions = 2, 8

type trimCheckpoint struct {
	number uint32
	value  []byte
}

type trimFold struct {
	fold   wire.Fold
	newest wire.Checkpoint
}

// trimState is the changelog, what the processes know of it, and the memory.
type trimState struct {
	txs   [trimTransactions]trimTx
	n     int8 // transactions in the changelog
	start int8 // the first offset that was not deleted
	next  int8 // the input offset to process next
	// pending is an event that was read in an aborted transaction; its time is -1 if there is none.
	pending trimEvent

	stores [2]trimStore
	noted  [2]int8 // the offset below which a process's purger will delete
	owner  int8    // -1 for none
	// restoring says that the owner reads the changelog, beginning with the transaction from.
	restoring bool
	from      int8
	// number is the number of partial checkpoints since the whole one; -1 if no whole checkpoint was written yet.
	number  int8
	crashes int8 // left

	// The memory has, by key, the first event time that counts, and the stream time; -1 if there is none.
	first, stream [trimKeys]int8
}

type trimEvent struct{ key, time int8 }

// trimTx is a transaction: at most one row, its checkpoint, and its marker at end-1.
type trimTx struct {
	committed  bool
	key        int8 // of the row; -1 for none
	first      int8
	checkpoint int16
	end        int8
}

// trimStore is a local store, which has the transactions with the indexes from `from` up to `to`.
type trimStore struct{ from, to int8 }

func newTrimModel(keys []uint8, times []int8, events, crashes int8, mistake trimMistake) *trimModel {
	m := &trimModel{
		window: dedup.Window{Size: 1, ClampFuture: true}, keys: keys, times: times, broker: int64(times[len(times)-1] - 1),
		events: events, crashes: crashes, mistake: mistake,
		interned: map[string]int16{}, folds: map[[2]int16]int16{}, foldOf: map[string]int16{}, decided: map[trimInput]trimOutput{},
	}
	m.internFold(&wire.Fold{}, 0)
	return m
}

// model returns m in the form that the exploration needs.
func (m *trimModel) model(name string) explore.Model[trimState] {
	first := trimState{owner: -1, pending: trimEvent{time: -1}, number: -1, crashes: m.crashes, first: [trimKeys]int8{-1, -1}, stream: [trimKeys]int8{-1, -1}}
	return explore.Model[trimState]{
		Name: name, Start: []trimState{first}, Next: m.next, Check: m.check,
		Goal: func(s trimState) bool { return s.next == m.events },
	}
}

// internFold returns the index of a fold whose newest checkpoint has this number.
func (m *trimModel) internFold(f *wire.Fold, number uint32) int16 {
	c := f.Newest()
	key := string(c.Append([]byte{b2i(f.Has()), b2i(f.IsWhole()), byte(number)}))
	at, known := m.foldOf[key]
	if !known {
		at = int16(len(m.folded))
		m.foldOf[key] = at
		m.folded = append(m.folded, &trimFold{*f, c})
	}
	return at
}

func b2i(b bool) byte {
	if b {
		return 1
	}
	return 0
}

// intern returns the number of an encoded checkpoint.
func (m *trimModel) intern(number uint32, value []byte) int16 {
	key := string(append([]byte{byte(number)}, value...))
	at, known := m.interned[key]
	if !known {
		at = int16(len(m.values))
		m.interned[key] = at
		m.values = append(m.values, trimCheckpoint{number, value})
	}
	return at
}

// fold returns the fold of the committed checkpoints of some transactions.
func (m *trimModel) fold(s *trimState, from, to int8) *trimFold {
	at := int16(0)
	for i := from; i < to; i++ {
		if !s.txs[i].committed {
			continue
		}
		step := [2]int16{at, s.txs[i].checkpoint}
		next, known := m.folds[step]
		if !known {
			f := m.folded[at].fold
			// A partial checkpoint of an app that has no counts ends here.
			v := &m.values[s.txs[i].checkpoint]
			if err := f.Add(v.number, v.value); err != nil {
				panic(err) // the model encoded it
			}
			next = m.internFold(&f, v.number)
			m.folds[step] = next
		}
		at = next
	}
	return m.folded[at]
}

// end returns the offset after the first n transactions.
func (s *trimState) end(n int8) int64 {
	if n == 0 {
		return 0
	}
	return int64(s.txs[n-1].end)
}

// logged returns the first transaction that was not deleted. Deletions end between two transactions.
func (s *trimState) logged() (at int8) {
	for at < s.n && s.end(at) < int64(s.start) {
		at++
	}
	return at
}

// check says whether the changelog states a floor that allows its start, and whether it has each row that may decide
// an event.
func (m *trimModel) check(s trimState) error {
	if s.start == 0 {
		return nil
	}
	switch f := m.fold(&s, s.logged(), s.n); {
	case !f.fold.IsWhole():
		return errors.New("the changelog has no whole checkpoint any more")
	case f.newest.Floor < int64(s.start):
		return fmt.Errorf("the changelog begins at %d and states the floor %d", s.start, f.newest.Floor)
	}
	for key, first := range s.first {
		retained := first >= 0 && (s.stream[key] < 0 || int64(first) >= int64(s.stream[key])-m.window.Retention())
		if retained && !slices.ContainsFunc(s.txs[s.logged():s.n], func(tx trimTx) bool { return tx.committed && tx.key == int8(key) && tx.first == first }) {
			return fmt.Errorf("the row of key %d, first seen at %d, was deleted, and stream time is %d", key, first, s.stream[key])
		}
	}
	return nil
}

// next returns the steps of a state. It forgets transactions that no process can read any more, so that states which
// differ only in these transactions are one state.
func (m *trimModel) next(s trimState, steps []explore.Step[trimState]) []explore.Step[trimState] {
	steps = m.steps(s, steps)
	for i := range steps {
		to := &steps[i].To
		kept := to.logged()
		for _, store := range to.stores {
			if store != (trimStore{}) {
				kept = min(kept, store.from)
			}
		}
		for at := range kept {
			to.txs[at] = trimTx{key: -1, end: to.txs[at].end}
			if at < kept-1 {
				to.txs[at].end = to.txs[kept-1].end
			}
		}
	}
	return steps
}

func (m *trimModel) steps(s trimState, steps []explore.Step[trimState]) []explore.Step[trimState] {
	for p := range int8(2) {
		steps = m.purge(s, p, steps)
		if s.crashes > 0 && s.owner != p && s.stores[p] != (trimStore{}) {
			to := s
			to.crashes--
			to.stores[p] = trimStore{}
			steps = append(steps, explore.To(to, "process %d loses its disk", int(p)))
		}
		if s.owner < 0 && s.next < m.events {
			steps = append(steps, m.assign(s, p))
		}
	}
	switch {
	case s.owner < 0:
		return steps
	case s.restoring:
		steps = append(steps, m.read(s))
	default:
		if to := s; s.crashes > 0 {
			to.owner, to.number, to.crashes = -1, -1, s.crashes-1
			steps = append(steps, explore.To(to, "process %d loses the task in a rebalance", int(s.owner)))
		}
		if s.next < m.events {
			steps = m.transact(s, steps)
		}
	}
	return m.crash(s, "process %d dies", steps)
}

// purge returns the steps of a process's purger. A floor that the purger has noted stays true, so the purger may
// delete late, and again.
func (m *trimModel) purge(s trimState, p int8, steps []explore.Step[trimState]) []explore.Step[trimState] {
	if s.owner == p && !s.restoring {
		floor := m.fold(&s, s.stores[p].from, s.stores[p].to).newest.Floor
		if m.mistake == floorBeyond {
			floor = s.end(s.stores[p].to)
		}
		if to := s; int64(s.noted[p]) < floor {
			to.noted[p] = int8(floor)
			steps = append(steps, explore.To(to, "process %d notes the floor %d of its checkpoint", int(p), int(floor)))
		}
	}
	if to := s; s.noted[p] > s.start {
		to.start = s.noted[p]
		steps = append(steps, explore.To(to, "process %d deletes the changelog below %d", int(p), int(s.noted[p])))
	}
	return steps
}

// assign gives the task to a process, which then decides how to restore it.
func (m *trimModel) assign(s trimState, p int8) explore.Step[trimState] {
	f := m.facts(&s, p)
	chosen, problem := decide(f)
	to := s
	to.owner, to.restoring, to.number = p, true, -1
	switch chosen {
	case readTail:
		to.from = s.stores[p].to
	case rebuild:
		to.from = s.logged()
		to.stores[p] = trimStore{to.from, to.from}
	case trustLocal, refuse:
	}
	step := explore.To(to, "process %d gets the task, and chooses plan %d", int(p), int(chosen))
	if chosen == trustLocal || chosen == refuse {
		step.Err = fmt.Errorf("plan %q, problem %q: nothing is missing that decides an event", chosen, problem)
	}
	return step
}

// facts returns what the restore of a process knows, as Restore.gather collects it.
func (m *trimModel) facts(s *trimState, p int8) facts {
	f := facts{start: int64(s.start), end: s.end(s.n), group: -1, position: s.end(s.stores[p].to), unread: true}
	if stored := m.fold(s, s.stores[p].from, s.stores[p].to); stored.fold.Has() {
		f.stored = &stored.newest
	}
	if f.stored != nil && f.start <= f.position && f.position <= f.end+1 && f.isWhole(f.stored) {
		return f
	}
	if logged := m.fold(s, s.logged(), s.n); logged.fold.Has() {
		f.logged, f.loggedLacks = &logged.newest, !logged.fold.IsWhole()
	}
	if s.next > 0 {
		f.group = int64(s.next)
	}
	return f
}

// read ends a restore, unless the changelog was trimmed beyond its position meanwhile.
func (m *trimModel) read(s trimState) explore.Step[trimState] {
	to := s
	to.restoring, to.from = false, 0
	if s.end(s.from) < int64(s.start) {
		to.owner = -1 // errTrimmed: it decides again
		return explore.To(to, "the changelog was trimmed while process %d read it", int(s.owner))
	}
	to.stores[s.owner].to = s.n
	return explore.To(to, "process %d reads the changelog to its end", int(s.owner))
}

// crash ends the owner. Its local store is left as any earlier flush wrote it.
func (m *trimModel) crash(s trimState, name string, steps []explore.Step[trimState]) []explore.Step[trimState] {
	if s.crashes == 0 {
		return steps
	}
	p := s.owner
	for flushed := s.stores[p].from; flushed <= s.stores[p].to; flushed++ {
		to := s
		to.owner, to.restoring, to.number, to.from, to.crashes = -1, false, -1, 0, s.crashes-1
		if to.stores[p].to = flushed; flushed == to.stores[p].from {
			to.stores[p] = trimStore{} // it has no checkpoint, so its position says nothing
		}
		steps = append(steps, explore.To(to, name+", its store has %d transactions", int(p), int(flushed-s.stores[p].from)))
	}
	return steps
}

// transact processes the next event in a transaction, which commits or aborts.
func (m *trimModel) transact(s trimState, steps []explore.Step[trimState]) []explore.Step[trimState] {
	if s.n == trimTransactions {
		return steps
	}
	if s.pending.time >= 0 {
		return m.process(s, s.pending, steps)
	}
	for key := range m.keys {
		for _, time := range m.times {
			steps = m.process(s, trimEvent{int8(key), time}, steps)
		}
	}
	return steps
}

func (m *trimModel) process(s trimState, ev trimEvent, steps []explore.Step[trimState]) []explore.Step[trimState] {
	p := s.owner
	done := m.decide(&s, ev)
	want, to := m.remember(&s, ev)
	name := "process %d commits an event of key %d at %d"
	if done.verdict != want {
		step := explore.To(s, name, int(p), int(ev.key), int(ev.time))
		step.Err = fmt.Errorf("the event of key %d at %d was %v, and a memory says %v", ev.key, ev.time, done.verdict, want)
		return append(steps, step)
	}
	to.txs[s.n], to.n, to.next, to.number, to.pending = done.tx, s.n+1, s.next+1, done.number, trimEvent{time: -1}
	stored := to
	stored.stores[p].to = stored.n
	steps = append(steps, explore.To(stored, name, int(p), int(ev.key), int(ev.time)))
	steps = m.crash(to, "process %d commits and dies before it knows", steps)
	aborted := s
	aborted.txs[s.n] = trimTx{key: -1, end: done.tx.end} // no process reads it
	aborted.n, aborted.pending = s.n+1, ev
	if m.mistake == floorOpen {
		aborted.noted[p] = max(aborted.noted[p], done.floor)
	}
	return m.crash(aborted, "process %d dies before it commits", steps)
}
