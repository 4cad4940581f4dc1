package switchover

import (
	"fmt"
	"slices"
)

// Phase is how far a switch is.
type Phase uint8

// The phases. None is an app without a switch.
const (
	None Phase = iota
	Preparing
	Holding
	Closing
	Acted
	Done
	Aborted
	phases
)

var phaseNames = [phases]string{"none", "preparing", "holding", "closing", "acted", "done", "aborted"}

// String returns the name of the phase in rows and output.
func (p Phase) String() string { return phaseNames[p] }

// MarshalText returns the name of the phase.
func (p Phase) MarshalText() ([]byte, error) { return []byte(p.String()), nil }

// UnmarshalText reads the name of a phase.
func (p *Phase) UnmarshalText(text []byte) error {
	at := slices.Index(phaseNames[:], string(text))
	if at < 0 {
		return fmt.Errorf("phase %.40q of a switch is unknown to this build", text)
	}
	*p = Phase(at)
	return nil
}

// nextOf has the phases that may follow each one.
var nextOf = [phases][]Phase{
	None:      {Preparing},
	Preparing: {Holding, Aborted},
	Holding:   {Closing, Aborted},
	Closing:   {Acted, Aborted},
	Acted:     {Done},
	Done:      {Preparing},
	Aborted:   {Preparing},
}

// May reports whether a phase may follow this one. The writer checks it after it has fenced
// all other writers.
func (p Phase) May(next Phase) bool { return slices.Contains(nextOf[p], next) }

// Holds reports whether the input is held.
func (p Phase) Holds() bool { return p == Holding || p == Closing || p == Acted }

// HasActed reports whether the new generation is in force.
func (p Phase) HasActed() bool { return p == Acted || p == Done }

// IsOver reports whether no phase of the same switch may follow.
func (p Phase) IsOver() bool { return p == None || p == Done || p == Aborted }

// Facts are what a leader finds out before it writes the next phase.
type Facts struct {
	// Prepared reports that the copies are so far that the rest takes moments.
	Prepared bool
	// Held reports that each input partition has a held row of the switch. Drained reports
	// that the old tasks have judged all that was routed until then.
	Held, Drained bool
	// Closed reports that each old task has closed for this switch, Copied that all of their
	// rows and the first checkpoints of the new tasks are committed.
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
	case p == Holding && f.Held && f.Drained:
		return Closing, true
	case p == Closing && f.Closed && f.Copied:
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

// The actions.
const (
	Judge Action = iota
	Close
	Wait
)

// Seen is what a process has read of the switches of its app. Number counts them, from 1; it is
// 0 before the first one. A process may have read an older one than that in force.
type Seen struct {
	Number int64
	Phase  Phase
	// Base is the generation that was in force when the switch began; 0 if its row does not
	// say, as those of an earlier build.
	Base int64
}

// Prepares reports whether a process that runs the tasks of a generation may soon run those of
// the switch instead: until it has taken the act, or has read that there will be none.
func (s Seen) Prepares(generation int64) bool {
	return s.Number > generation && s.Phase != None && s.Phase != Aborted
}

// OldTask returns what a task does that the switch closes, in a process that runs the tasks of a
// generation. closedFor is the number of the switch for which its checkpoint says that it is
// closed; 0 for none. A task that judges again commits a checkpoint that is not closed.
func OldTask(seen Seen, generation, closedFor int64) Action {
	switch {
	case closedFor > seen.Number:
		return Wait // the process has not read the switch yet
	case seen.Base > generation:
		return Wait // an earlier switch has acted, which the process has not taken yet
	case closedFor == seen.Number && closedFor != 0:
		if seen.Phase == Aborted {
			return Judge
		}
		return Wait
	case seen.Phase == Closing:
		return Close
	case seen.Phase.HasActed() && seen.Number != 0:
		return Wait
	}
	return Judge
}

// StayingTask returns what a task does that the switch does not close: that of a prepartitioned
// topic which stays one. An earlier switch may have closed it.
func StayingTask(seen Seen, generation, closedFor int64) Action {
	if closedFor >= seen.Number && closedFor != 0 || seen.Base > generation {
		return Wait // the process has not read the newest switch, or has not taken an act yet
	}
	return Judge
}
