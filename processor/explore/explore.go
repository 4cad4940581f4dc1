package explore

import (
	"errors"
	"fmt"
	"hash/maphash"
	"slices"
)

// ErrLimit is wrapped by the error for a model that has more states than its limit.
var ErrLimit = errors.New("the model has more states than its limit")

// ErrStuck is the error for a state from which no state that satisfies Goal can be reached.
var ErrStuck = errors.New("no goal can be reached any more")

// Explore visits every state that a model can reach, in the order of the distance from the first states. The error is
// the first ViolationError, whose trace is a shortest one, or wraps ErrLimit.
func Explore[S comparable](m Model[S]) (Result, error) {
	x := &exploration[S]{model: &m, seed: maphash.MakeSeed(), table: make([]entry, 1<<12)}
	err := x.run()
	return Result{m.Name, len(x.states), x.transitions, x.depth}, err
}

// exploration is a running search. It numbers the states in the order in which it reaches them.
type exploration[S comparable] struct {
	model       *Model[S]
	states      []S
	from        []int32 // for each state the state before it on a shortest way; -1 for a first state
	transitions int
	depth       int
	edges       []edge // all transitions; collected only if the model has a Goal

	seed  maphash.Seed
	table []entry // open-addressing hash table of the states
}

// entry is a slot of the hash table: a part of the hash, and the number of the state plus 1, so that 0 is an empty
// slot.
type entry struct{ hash, state uint32 }

type edge struct{ from, to int32 }

func (x *exploration[S]) run() error {
	for _, s := range x.model.Start {
		if _, err := x.reach(s, -1); err != nil {
			return err
		}
	}
	var steps []Step[S]
	for at, level := 0, len(x.states); at < len(x.states); at++ {
		if at == level {
			x.depth++
			level = len(x.states)
		}
		steps = x.model.Next(x.states[at], steps[:0])
		if err := x.follow(int32(at), steps); err != nil {
			return err
		}
	}
	return x.checkGoal()
}

// follow takes all steps that start in a state.
func (x *exploration[S]) follow(at int32, steps []Step[S]) error {
	x.transitions += len(steps)
	if len(steps) == 0 && x.model.Final != nil {
		if err := x.model.Final(x.states[at]); err != nil {
			return x.violation(at, err)
		}
	}
	for i := range steps {
		if steps[i].Err != nil {
			v := x.violation(at, steps[i].Err)
			v.Trace = append(v.Trace, x.line(&steps[i]))
			return v
		}
		to, err := x.reach(steps[i].To, at)
		if err != nil {
			return err
		}
		if x.model.Goal != nil {
			x.edges = append(x.edges, edge{at, to})
		}
	}
	return nil
}

// reach returns the number of a state. If the state is new, reach also checks it.
func (x *exploration[S]) reach(s S, from int32) (int32, error) {
	at, isNew := x.find(s)
	if !isNew {
		return int32(x.table[at].state) - 1, nil
	}
	limit := x.model.Limit
	if limit == 0 {
		limit = LimitDefault
	}
	if len(x.states) >= limit {
		return 0, fmt.Errorf("%s: %w of %d, at depth %d", x.model.Name, ErrLimit, limit, x.depth)
	}
	x.states, x.from = append(x.states, s), append(x.from, from)
	number := int32(len(x.states)) - 1
	x.table[at].state = uint32(number) + 1
	if 2*len(x.states) > len(x.table) {
		x.grow()
	}
	if x.model.Check != nil {
		if err := x.model.Check(s); err != nil {
			return 0, x.violation(number, err)
		}
	}
	return number, nil
}

// find returns the slot of a state in the hash table. For a new state it fills the slot.
func (x *exploration[S]) find(s S) (at uint64, isNew bool) {
	h := maphash.Comparable(x.seed, s)
	mask := uint64(len(x.table) - 1)
	for at = h & mask; x.table[at].state != 0; at = (at + 1) & mask {
		if e := x.table[at]; uint64(e.hash) == h>>32 && x.states[e.state-1] == s {
			return at, false
		}
	}
	x.table[at].hash = uint32(h >> 32)
	return at, true
}

// grow doubles the hash table.
func (x *exploration[S]) grow() {
	x.table = make([]entry, 2*len(x.table))
	for number, s := range x.states {
		at, _ := x.find(s)
		x.table[at].state = uint32(number) + 1
	}
}

// violation returns the error for a state, with the trace that leads to the state.
func (x *exploration[S]) violation(at int32, err error) *ViolationError {
	return &ViolationError{Model: x.model.Name, Trace: x.trace(at), Err: err}
}

// trace returns the steps from a first state to the given state. The search stores no names of steps; trace asks the
// model again for the steps on the way.
func (x *exploration[S]) trace(at int32) (lines []string) {
	for ; x.from[at] >= 0; at = x.from[at] {
		steps := x.model.Next(x.states[x.from[at]], nil)
		i := slices.IndexFunc(steps, func(s Step[S]) bool { return s.To == x.states[at] })
		if i < 0 {
			lines = append(lines, "a step that Next returned once and not again: it must depend on the state only")
			continue
		}
		lines = append(lines, x.line(&steps[i]))
	}
	slices.Reverse(lines)
	return lines
}

// line returns a step as one line of a trace.
func (x *exploration[S]) line(s *Step[S]) string {
	if x.model.Show == nil {
		return s.String()
	}
	return s.String() + "  ->  " + x.model.Show(s.To)
}

// checkGoal returns a violation for the first state from which no goal can be reached. It starts at the goals and
// follows all transitions backwards; a state that it does not meet is stuck.
func (x *exploration[S]) checkGoal() error {
	if x.model.Goal == nil {
		return nil
	}
	// into[state] is the index of the first transition to that state, once the transitions are sorted by the state to
	// which they lead.
	into := make([]int32, len(x.states)+1)
	for _, e := range x.edges {
		into[e.to+1]++
	}
	for i := range x.states {
		into[i+1] += into[i]
	}
	sources, next := make([]int32, len(x.edges)), slices.Clone(into)
	for _, e := range x.edges {
		sources[next[e.to]] = e.from
		next[e.to]++
	}
	arrives := make([]bool, len(x.states))
	var open []int32
	for i, s := range x.states {
		if x.model.Goal(s) {
			arrives[i] = true
			open = append(open, int32(i))
		}
	}
	for len(open) > 0 {
		at := open[len(open)-1]
		open = open[:len(open)-1]
		for _, from := range sources[into[at]:into[at+1]] {
			if !arrives[from] {
				arrives[from] = true
				open = append(open, from)
			}
		}
	}
	if at := slices.Index(arrives, false); at >= 0 {
		return x.violation(int32(at), ErrStuck)
	}
	return nil
}
