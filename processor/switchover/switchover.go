package switchover

import (
	"fmt"
	"slices"
)

// Phase is the progress of a switch.
type Phase uint8

// The phases. None means that the app has had no switch.
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

// String returns the name of the phase, as in rows and output.
func (p Phase) String() string { return phaseNames[p] }

// MarshalText implements encoding.TextMarshaler with the name of the phase.
func (p Phase) MarshalText() ([]byte, error) { return []byte(p.String()), nil }

// UnmarshalText implements encoding.TextUnmarshaler. It returns an error for a phase that this build does not
// know.
func (p *Phase) UnmarshalText(text []byte) error {
	at := slices.Index(phaseNames[:], string(text))
	if at < 0 {
		return fmt.Errorf("phase %.40q of a switch is unknown to this build", text)
	}
	*p = Phase(at)
	return nil
}

// nextOf has the phases that may follow a phase.
var nextOf = [phases][]Phase{
	None:      {Preparing},
	Preparing: {Holding, Aborted},
	Holding:   {Closing, Aborted},
	Closing:   {Acted, Aborted},
	Acted:     {Done},
	Done:      {Preparing},
	Aborted:   {Preparing},
}

// May reports whether the phase next may follow this one. The writer checks this after it has fenced all other
// writers.
func (p Phase) May(next Phase) bool { return slices.Contains(nextOf[p], next) }

// Holds reports whether the input is held in this phase.
func (p Phase) Holds() bool { return p == Holding || p == Closing || p == Acted }

// HasActed reports whether the new generation is in force in this phase.
func (p Phase) HasActed() bool { return p == Acted || p == Done }

// IsOver reports whether the switch has ended, so that none of its phases may follow.
func (p Phase) IsOver() bool { return p == None || p == Done || p == Aborted }

// Facts are what a leader checks before it writes the next phase.
type Facts struct {
	// Prepared means that nearly all rows are copied, so that the rest takes only moments.
	Prepared bool
	// Held means that each input partition has a held row of this switch. Drained means that the old tasks have
	// judged everything that was routed until then.
	Held, Drained bool
	// Closed means that each old task has closed for this switch. Copied means that all of their rows, and the
	// first checkpoints of the new tasks, are committed.
	Closed, Copied bool
	// Undo means that the time for the hold is over, or that somebody has asked for an abort.
	Undo bool
}

// Decide returns the phase that a leader writes next. ok is false while there is nothing to write, because
// facts are missing.
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

// Generation is the old or the new generation of partitions in a switch.
type Generation uint8

// The generations.
const (
	Old Generation = iota
	New
)

// Route returns the generation to which a router or a front sends records. ok is false while it sends no
// records.
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

// The actions. Judge judges records as usual, Close commits a checkpoint that is closed for the switch, and Wait judges
// nothing.
const (
	Judge Action = iota
	Close
	Wait
)

// Seen is what a process has read about the switches of its app. Number counts the switches from 1; it is 0
// before the first switch. A process may have read only about a switch that is older than the newest one.
type Seen struct {
	Number int64
	Phase  Phase
	// Base is the generation that was in force when the switch began; 0 if the row does not say it, because an
	// earlier build wrote the row.
	Base int64
}

// Prepares reports whether a process that runs the tasks of a generation may soon have to run the tasks of the
// switch instead. That is so until the process runs the new generation, or has read that the switch was
// aborted.
func (s Seen) Prepares(generation int64) bool {
	return s.Number > generation && s.Phase != None && s.Phase != Aborted
}

// OldTask returns what a task that the switch closes has to do, in a process that runs the tasks of this
// generation. closedFor is the number of the switch for which the task's checkpoint is closed; 0 if it is not
// closed. If a closed task may judge again, its next checkpoint is not closed.
func OldTask(seen Seen, generation, closedFor int64) Action {
	switch {
	case closedFor > seen.Number:
		return Wait // the process has not read about this switch yet
	case seen.Base > generation:
		return Wait // an earlier switch has acted, and the process does not run the new generation yet
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

// StayingTask returns what a task that the switch does not close has to do: a task of a prepartitioned topic
// that stays prepartitioned. An earlier switch may have closed that task.
func StayingTask(seen Seen, generation, closedFor int64) Action {
	if closedFor >= seen.Number && closedFor != 0 || seen.Base > generation {
		return Wait // the process has not read about the newest switch, or does not run the newest generation yet
	}
	return Judge
}
