package explore_test

import (
	"errors"
	"fmt"

	"oncebus/dedup"
	"oncebus/processor/explore"
)

// seedModel explores seeds that are sent during running traffic. There are events and seeds of two keys, and the task
// of each key judges them in the order of the log. The command that sends the seeds may die at any line and start
// again, and a second command sends the same lines. The model calls dedup.DecideSeed, Admit and Decide, and evicts
// rows as soon as eviction is allowed.
type seedModel struct {
	window  dedup.Window
	times   []int8
	events  int8
	mistake seedMistake
}

type seedMistake int

const (
	seedsRight      seedMistake = iota
	seedMovesStream             // a seed moves stream time
	seedReplaces                // a seed replaces a row that decides
	seedForgotten               // a seed is not stored
	seedAhead                   // a seed with a time ahead of stream time replaces a row that decides
)

// seedLines are the lines of the seed file: a key and the time at which it was first seen.
var seedLines = [...]struct{ key, first int8 }{{0, 1}, {1, 2}}

const seedBroker = 4 // broker time, ms

type seedState struct {
	keys    [2]seedKey
	senders [2]int8 // the next line that each command sends
	crashes int8
	sent    int8 // number of events sent
}

// seedKey is the state of the task of one key.
type seedKey struct {
	stream int8 // -1 for none
	row    int8 // -1 for none
	seeded bool
	// The fields below are the reference memory, which never purges: the stream time of the events, the first seen
	// time of the last emitted event, and the first seen time of the seed that the task accepted; -1 for none.
	moved, emitted, known int8
}

func (m *seedModel) model(name string) explore.Model[seedState] {
	none := seedKey{stream: -1, row: -1, moved: -1, emitted: -1, known: -1}
	return explore.Model[seedState]{
		Name: name, Start: []seedState{{keys: [2]seedKey{none, none}, crashes: 1}}, Next: m.next,
		Goal: func(s seedState) bool {
			return s.sent == m.events && int(s.senders[0]) == len(seedLines) && int(s.senders[1]) == len(seedLines)
		},
	}
}

func (m *seedModel) next(s seedState, steps []explore.Step[seedState]) []explore.Step[seedState] {
	for i, line := range s.senders {
		if int(line) < len(seedLines) {
			to := s
			to.senders[i]++
			steps = append(steps, m.seed(to, i, seedLines[line].key, seedLines[line].first))
		}
		if to := s; s.crashes > 0 && line > 0 {
			to.crashes--
			to.senders[i] = 0
			steps = append(steps, explore.To(to, "command %d dies and begins again", i))
		}
	}
	if s.sent == m.events {
		return steps
	}
	for key := range int8(2) {
		for _, at := range m.times {
			to := s
			to.sent++
			steps = append(steps, m.event(to, key, at))
		}
	}
	return steps
}

func msOf(at int8) int64 {
	if at < 0 {
		return dedup.NoStreamTime
	}
	return int64(at)
}

// prior returns the row of a key; no row if it has been evicted.
func (m *seedModel) prior(k *seedKey) (dedup.Row, bool) {
	r := dedup.Row{First: int64(k.row)}
	if k.seeded {
		r.At.Topic = dedup.SeedTopic
	}
	return r, k.row >= 0 && r.First >= m.window.Horizon(msOf(k.stream))
}

func (m *seedModel) decideSeed(k *seedKey, first int8) (dedup.SeedFate, dedup.Row) {
	prior, found := m.prior(k)
	if m.mistake == seedReplaces {
		found = false
	}
	ev := dedup.Event{Time: int64(first), At: dedup.Position{Topic: dedup.SeedTopic}}
	if m.mistake == seedAhead {
		if verdict, row := dedup.Decide(ev, prior, found, m.window, msOf(k.stream)); verdict == dedup.AfterWindow {
			return dedup.SeedTaken, row
		}
	}
	return dedup.DecideSeed(ev, prior, found, m.window, msOf(k.stream), seedBroker)
}

// seed judges a seed twice in a row: the repetition must change nothing.
func (m *seedModel) seed(s seedState, sender int, key, first int8) explore.Step[seedState] {
	k := &s.keys[key]
	fate, row := m.decideSeed(k, first)
	if fate == dedup.SeedTaken && m.mistake != seedForgotten {
		k.row, k.seeded = int8(row.First), true
	}
	if fate == dedup.SeedTaken {
		k.known = max(k.known, first)
	}
	if m.mistake == seedMovesStream {
		k.stream = max(k.stream, first)
	}
	step := explore.To(s, "command %d sends the seed of key %d, first seen at %d, which becomes %d", sender, int(key), int(first), int(fate))
	if again, _ := m.decideSeed(k, first); again == dedup.SeedTaken {
		step.Err = errors.New("a repeated seed was taken")
	}
	return step
}

// event judges an event and compares the verdict with the reference memory, which never purges.
func (m *seedModel) event(s seedState, key, at int8) explore.Step[seedState] {
	k := &s.keys[key]
	stream, size := msOf(k.stream), m.window.Size
	verdict, _ := m.window.Admit(int64(at), stream, seedBroker)
	if verdict == dedup.Unique {
		prior, found := m.prior(k)
		verdict, _ = dedup.Decide(dedup.Event{Time: int64(at)}, prior, found, m.window, stream)
	}
	near := func(first int8) bool { return first >= 0 && max(int64(at-first), int64(first-at)) <= size }
	emits := verdict == dedup.Unique || verdict == dedup.AfterWindow
	var err error
	switch {
	case emits && near(k.emitted):
		err = fmt.Errorf("emitted again at %d, after %d", at, k.emitted)
	case emits && near(k.known):
		err = fmt.Errorf("emitted at %d, although a seed says %d", at, k.known)
	case verdict == dedup.Duplicate && !near(k.emitted) && !near(k.known):
		err = errors.New("a duplicate of nothing")
	case verdict == dedup.Late && !m.window.Late(int64(at), msOf(k.moved)) && near(k.emitted):
		err = fmt.Errorf("a copy of an event that was emitted at %d was late, and stream time is %d", k.emitted, k.stream)
	case verdict == dedup.Late && at >= k.moved && int64(at)+size >= int64(k.known):
		err = fmt.Errorf("an event at %d was late, and stream time is %d", at, k.moved)
	}
	if emits {
		k.row, k.seeded, k.emitted = at, false, at
	}
	if !m.window.Late(int64(at), stream) {
		k.stream, k.moved = max(k.stream, at), max(k.moved, at)
	}
	step := explore.To(s, "an event of key %d at %d becomes %d", int(key), int(at), int(verdict))
	step.Err = err
	return step
}
