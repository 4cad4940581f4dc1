package explore

import (
	"errors"
	"testing"
)

// Holds explores a model in a test and prints the result. The test fails if the exploration finds a violation, or
// visits fewer than atLeast states: such a model does not explore any more what it was written for.
func Holds[S comparable](tb testing.TB, m Model[S], atLeast int) {
	tb.Helper()
	r, err := Explore(m)
	if err != nil {
		tb.Fatalf("%v\n%v", err, r)
	}
	tb.Log(r)
	if r.States < atLeast {
		tb.Errorf("%s has %d states, expected at least %d: it explores less than before", m.Name, r.States, atLeast)
	}
}

// Bound returns the narrow bound of a model under the race detector and with -short, else the wide bound.
func Bound[N any](wide, narrow N) N {
	if Narrow || testing.Short() {
		return narrow
	}
	return wide
}

// Finds explores a model with a planted mistake in a test and prints the shortest trace of the mistake. That trace
// must have the given number of steps. Finds returns the violation.
func Finds[S comparable](tb testing.TB, m Model[S], steps int) (wrong *ViolationError) {
	tb.Helper()
	r, err := Explore(m)
	var found *ViolationError
	if !errors.As(err, &found) {
		tb.Fatalf("%s: the planted mistake was not found: %v, %v", m.Name, r, err)
	}
	tb.Logf("%v\nfound after %d states", found, r.States)
	if len(found.Trace) != steps {
		tb.Errorf("%s: the shortest trace has %d steps, expected %d", m.Name, len(found.Trace), steps)
	}
	return found
}
