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
