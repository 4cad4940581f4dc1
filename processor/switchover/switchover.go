package switchover

import "slices"

// Phase is how far a switch is.
type Phase uint8

// The phases. None is an app without a switch.
const (
	None Phase = iota
	Preparing
	Holding
	Draining
	Acted
	Done
	Aborted
	phases
)

// String returns the name of the phase in rows and output.
func (p Phase) String() string {
	return [phases]string{"none", "preparing", "holding", "draining", "acted", "done", "aborted"}[p]
}

// nextOf has the phases that may follow each one.
var nextOf = [phases][]Phase{
	None:      {Preparing},
	Preparing: {Holding, Aborted},
	Holding:   {Draining, Aborted},
	Draining:  {Acted, Aborted},
	Acted:     {Done},
	Done:      {Preparing},
	Aborted:   {Preparing},
}

// May reports whether a phase may follow this one. The writer checks it after it has fenced
// all other writers.
func (p Phase) May(next Phase) bool { return slices.Contains(nextOf[p], next) }

// Holds reports whether the input is held.
func (p Phase) Holds() bool { return p == Holding || p == Draining || p == Acted }

// HasActed reports whether the new generation is in force.
func (p Phase) HasActed() bool { return p == Acted || p == Done }

// Facts are what a leader finds out before it writes the next phase.
type Facts struct {
	// Prepared reports that the copies are so far that the rest takes moments.
	Prepared bool
	// Held reports that each input partition has a held row of the switch.
	Held bool
	// Closed reports that each old task has closed, Copied that all of their rows and the
	// first checkpoints of the new tasks are committed.
	Closed, Copied bool
	// Undo reports that the time for the hold is over, or that somebody asked for an abort.
	Undo bool
}

// Decide returns the phase that a leader writes next. ok is false while there is nothing to
// write.
func Decide(p Phase, f Facts) (next Phase, ok bool) {
	switch {
	case f.Undo && p.May(Aborted):
		return Aborted, true
	case p == Preparing && f.Prepared:
		return Holding, true
	case p == Holding && f.Held:
		return Draining, true
	case p == Draining && f.Closed && f.Copied:
		return Acted, true
	case p == Acted:
		return Done, true
	}
	return p, false
}

// Generation is the old or the new one of a switch.
type Generation uint8

// The generations.
const (
	Old Generation = iota
	New
)

// Route returns the generation to which a router or a front sends records. ok is false while
// it sends none.
func Route(p Phase) (to Generation, ok bool) {
	switch {
	case p.Holds():
		return Old, false
	case p == Done:
		return New, true
	}
	return Old, true
}

// Action is what an old task does next.
type Action uint8

// The actions. A task that reopens commits a checkpoint that is not closed, and judges.
const (
	Judge Action = iota
	Close
	Wait
	Forward
	Reopen
)

// OldTask returns what a task of the old generation does. closed reports that its checkpoint
// says so, atEnd that it has judged up to the end that the row of a draining switch states.
func OldTask(p Phase, closed, atEnd bool) Action {
	switch {
	case !closed && p == Draining && atEnd:
		return Close
	case p.HasActed():
		return Forward
	case !closed:
		return Judge
	case p == Aborted:
		return Reopen
	}
	return Wait
}

// NewTask reports whether a task of the new generation judges.
func NewTask(p Phase) bool { return p.HasActed() }
