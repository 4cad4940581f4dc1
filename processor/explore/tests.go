package explore

import (
	"errors"
	"testing"
)

// Holds explores a model in a test, and prints the result. A violation fails the test, as do
// fewer states than atLeast: a model may stop to explore what it was written for.
func Holds[S comparable](t testing.TB, m Model[S], atLeast int) {
	t.Helper()
	r, err := Explore(m)
	if err != nil {
		t.Fatalf("%v\n%v", err, r)
	}
	t.Log(r)
	if r.States < atLeast {
		t.Errorf("%s has %d states, expected at least %d: it explores less than before", m.Name, r.States, atLeast)
	}
}

// Bound returns a bound of a model: the narrow one with the race detector.
func Bound[N any](wide, narrow N) N {
	if Narrow {
		return narrow
	}
	return wide
}

// Finds explores a model with a planted mistake in a test, and prints the shortest trace of
// it, which must have a number of steps. It returns the violation.
func Finds[S comparable](t testing.TB, m Model[S], steps int) *Violation {
	t.Helper()
	r, err := Explore(m)
	var found *Violation
	if !errors.As(err, &found) {
		t.Fatalf("%s: the planted mistake was not found: %v, %v", m.Name, r, err)
	}
	t.Logf("%v\nfound after %d states", found, r.States)
	if len(found.Trace) != steps {
		t.Errorf("%s: the shortest trace has %d steps, expected %d", m.Name, len(found.Trace), steps)
	}
	return found
}
