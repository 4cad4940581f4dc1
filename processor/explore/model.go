package explore

import (
	"fmt"
	"strings"
)

// A Model is a protocol, with the bounds within which it is explored.
type Model[S comparable] struct {
	Name  string
	Start []S
	// Next appends to steps all that may happen in a state, in an order that depends on the
	// state only.
	Next func(s S, steps []Step[S]) []Step[S]
	// Check returns what is wrong with a state; nil for nothing. Nil checks nothing.
	Check func(s S) error
	// Final returns what is wrong with a state in which nothing may happen any more; nil for
	// nothing. Nil checks nothing.
	Final func(s S) error
	// Goal reports whether the protocol has arrived, or is at rest. From each state such a
	// state must be reachable: else the protocol can be stuck for ever. Nil checks nothing.
	Goal func(s S) bool
	// Show returns a state in words, for the trace of a violation. Nil shows no state.
	Show func(s S) string
	// Limit is the most states that may be visited; 0 for LimitDefault.
	Limit int
}

// LimitDefault is the limit of a model without one.
const LimitDefault = 5_000_000

// A Step is one thing that may happen in a state.
type Step[S comparable] struct {
	To S
	// Err says that what happened is wrong, whatever state it leads to; nil if it is right.
	Err error

	name string
	args [argsMax]int
}

// argsMax is the most numbers in the name of a step.
const argsMax = 4

// To returns a step to a state. The name is a format with a %d, %c or %x for each number. It
// becomes text only in the trace of a violation.
func To[S comparable](s S, name string, args ...int) Step[S] {
	step := Step[S]{To: s, name: name}
	copy(step.args[:], args)
	return step
}

// String returns the name of the step.
func (s *Step[S]) String() string {
	n := min(strings.Count(s.name, "%"), argsMax)
	args := make([]any, n)
	for i := range args {
		args[i] = s.args[i]
	}
	return fmt.Sprintf(s.name, args...)
}

// A Result says what an exploration visited.
type Result struct {
	Model       string
	States      int
	Transitions int
	// Depth is the number of steps to the farthest state.
	Depth int
}

// String returns the result in one line.
func (r Result) String() string {
	return fmt.Sprintf("%s: %d states, %d transitions, at most %d steps from the start", r.Model, r.States, r.Transitions, r.Depth)
}

// A ViolationError is a state or a step that is wrong, with a shortest way to it.
type ViolationError struct {
	Model string
	// Trace has a line for each step from the start.
	Trace []string
	Err   error
}

// Error returns the trace and what is wrong at its end.
func (v *ViolationError) Error() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s: %v, after %d steps:", v.Model, v.Err, len(v.Trace))
	for i, line := range v.Trace {
		fmt.Fprintf(&b, "\n%4d. %s", i+1, line)
	}
	return b.String()
}

// Unwrap returns what is wrong at the end of the trace.
func (v *ViolationError) Unwrap() error { return v.Err }
