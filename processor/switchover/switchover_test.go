package switchover

import "testing"

// TestActAndAbortExcludeEachOther: from none of the two does any way lead to the other but
// through a new switch.
func TestActAndAbortExcludeEachOther(t *testing.T) {
	for p := range phases {
		if p.May(Acted) != (p == Closing) || p.HasActed() && p.May(Aborted) || p == Aborted && p.May(Acted) {
			t.Errorf("from %v: act %v, abort %v", p, p.May(Acted), p.May(Aborted))
		}
		if next, ok := Decide(p, Facts{Prepared: true, Held: true, Drained: true, Closed: true, Copied: true, Undo: true}); ok && !p.May(next) {
			t.Errorf("from %v a leader decides on %v, which may not follow", p, next)
		}
	}
}

// TestPrepares: a process prepares for the tasks of a switch until it has taken the act, or has
// read that the switch is undone.
func TestPrepares(t *testing.T) {
	for phase := range phases {
		want := phase != None && phase != Aborted
		if got := (Seen{Number: 3, Phase: phase}).Prepares(2); got != want {
			t.Errorf("%v before it was taken: %v", phase, got)
		}
		if (Seen{Number: 3, Phase: phase}).Prepares(3) {
			t.Errorf("%v after it was taken", phase)
		}
	}
}

// TestStayingTask: a switch leaves the task of a prepartitioned topic alone that stays one. A task
// that another switch has closed waits until the process has read of it, and taken what it did.
func TestStayingTask(t *testing.T) {
	for _, c := range []struct {
		seen      Seen
		closedFor int64
		want      Action
	}{
		{Seen{3, Closing, 1}, 0, Judge},
		{Seen{3, Acted, 1}, 0, Judge},
		{Seen{3, Done, 1}, 2, Judge}, // the second one was aborted
		{Seen{2, Preparing, 1}, 3, Wait},
		{Seen{3, Closing, 1}, 3, Wait},
		{Seen{3, Preparing, 2}, 2, Wait}, // the second one has acted
		{Seen{3, Preparing, 2}, 0, Wait},
	} {
		if got := StayingTask(c.seen, 1, c.closedFor); got != c.want {
			t.Errorf("%+v, closed for %d: %v, expected %v", c.seen, c.closedFor, got, c.want)
		}
	}
}
